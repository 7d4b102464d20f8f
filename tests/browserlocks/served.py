"""uvicorn in another process that a test can kill; it tells what is open in it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

from tests.conftest import PATIENCE
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.support.child import Link


class Site:
    """A site on a database; also after a restart, at the same port."""

    def __init__(self, alias: str = "default", urlconf: str = "tests.browserlocks.site", **setting: Any) -> None:
        self.alias, self.urlconf, self.setting, self.port = alias, urlconf, setting, 0

    def __enter__(self) -> Self:
        self.child = Child(serve, self.alias, self.urlconf, self.port, self.setting)
        self.child.__enter__()
        self.port = self.child.hear()
        return self

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.__exit__(None, None, None)

    def open(self) -> dict[str, int]:
        self.child.say("what is open?")
        found: dict[str, int] = self.child.hear()
        return found


def serve(link: Link, alias: str, urlconf: str, port: int, setting: dict[str, Any]) -> None:
    """Serve until the link ends; answer each question with what is open."""
    import uvicorn
    from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
    from django.core.asgi import get_asgi_application
    from django.db import connections
    from django.test import override_settings

    connections.settings["default"] = connections.settings[alias]
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    loops: list[asyncio.AbstractEventLoop] = []
    with override_settings(ROOT_URLCONF=urlconf, DISTLOCK_BROWSER=setting, ALLOWED_HOSTS=["*"]):
        application = ASGIStaticFilesHandler(get_asgi_application())

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
    """Tasks and threads of this process, and the streams of events."""
    from django_distlock.browser.events import watcher

    names = [thread.name for thread in threading.enumerate()]
    watchers = sum(name.startswith("distlock-browser") for name in names)
    tasks, streams = len(asyncio.all_tasks()) - 1, len(watcher._streams)
    return {"tasks": tasks, "streams": streams, "threads": len(names), "watchers": watchers}
