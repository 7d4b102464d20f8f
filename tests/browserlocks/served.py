"""uvicorn in another process that a test can kill; it tells what is open in it."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, Self

from tests.conftest import PATIENCE
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.support.child import Link


class Site:
    """The site of this folder on a database; also after a restart, at the same port."""

    def __init__(self, alias: str = "default", **setting: Any) -> None:
        self.alias, self.setting, self.port = alias, setting, 0

    def __enter__(self) -> Self:
        self.child = Child(serve, self.alias, self.port, self.setting)
        self.child.__enter__()
        self.port = self.child.hear()
        return self

    def __exit__(self, *error: object) -> None:
        self.child.kill()
        self.child.__exit__(None, None, None)

    def open(self) -> dict[str, int]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/open/")
            found: dict[str, int] = json.load(connection.getresponse())
        return found


def serve(link: Link, alias: str, port: int, setting: dict[str, Any]) -> None:
    """Serve until the link ends."""
    import uvicorn
    from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
    from django.core.asgi import get_asgi_application
    from django.db import connections
    from django.test import override_settings

    def end() -> None:
        try:
            link.hear()
        finally:
            os._exit(0)

    connections.settings["default"] = connections.settings[alias]
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    with override_settings(ROOT_URLCONF="tests.browserlocks.site", DISTLOCK_BROWSER=setting, ALLOWED_HOSTS=["*"]):
        application = ASGIStaticFilesHandler(get_asgi_application())
        threading.Thread(target=end, daemon=True).start()
        link.say(listener.getsockname()[1])
        uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off")).run(sockets=[listener])
