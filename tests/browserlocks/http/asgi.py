"""uvicorn with the site of this folder, in another process; and clients that hold its streams."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tests.support.child import Link

PATIENCE = 20.0  # seconds


def serve(link: Link, alias: str, **constants: float) -> None:
    """Serve on the database ``alias`` until the link ends; answer each question with what is open.

    ``constants`` are those of :mod:`django_distlock.browser.http.events`.
    """
    import uvicorn
    from django.core.asgi import get_asgi_application
    from django.db import connections
    from django.test import override_settings

    from django_distlock.browser.http import events

    for name, value in constants.items():
        setattr(events, name, value)
    connections.settings["default"] = connections.settings[alias]
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    loops: list[asyncio.AbstractEventLoop] = []
    with override_settings(ROOT_URLCONF="tests.browserlocks.http.site", ALLOWED_HOSTS=["*"]):
        application = get_asgi_application()

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            loops[:] = [asyncio.get_running_loop()]
            await application(scope, receive, send)

        def answer() -> None:
            link.say(listener.getsockname()[1])
            while link.hear() is not None:
                link.say(asyncio.run_coroutine_threadsafe(what_is_open(), loops[0]).result(PATIENCE))
            os._exit(0)

        threading.Thread(target=answer, daemon=True).start()
        uvicorn.Server(uvicorn.Config(noting, log_level="critical", lifespan="off")).run(sockets=[listener])


async def what_is_open() -> dict[str, int]:
    """Tasks and threads of this process, and what the events keep."""
    from django_distlock.browser.http.watching import watcher

    names = [thread.name for thread in threading.enumerate()]
    return {
        "tasks": len(asyncio.all_tasks()) - 1,
        "watches": len(watcher._watches),
        "threads": len(names),
        "watchers": sum(name.startswith("distlock-browser") for name in names),
    }


class Stream:
    """A stream of events, as a browser holds it."""

    def __init__(self, port: int, path: str, timeout: float = PATIENCE, **headers: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        sent = {"Host": f"127.0.0.1:{port}", "Accept": "text/event-stream", **headers}
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self._file = self.socket.makefile("rb")
        self.headers: dict[str, str] = {}
        try:
            self.status = int(self._file.readline().split()[1])
            self._read_headers()
        except BaseException:
            self.close()
            raise

    def _read_headers(self) -> None:
        while line := self._file.readline().decode().strip():
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()

    def chunk(self) -> str:
        """What arrives next; "" at the end."""
        size = int(self._file.readline().strip() or b"0", 16)
        text = self._file.read(size).decode()
        self._file.readline()
        return text

    def event(self, timeout: float = PATIENCE) -> tuple[str, dict[str, Any]]:
        """The next event; comments are skipped."""
        self.socket.settimeout(timeout)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            text = self.chunk()
            assert text, "The stream has ended."
            if text.startswith("event:"):
                kind, data = text.strip().split("\n")[:2]
                return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))
        raise AssertionError("There was no event.")

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
