"""uvicorn with the site of this folder, in another process that a test can kill."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from tests.browserlocks.http.asgi import PATIENCE, what_is_open

if TYPE_CHECKING:
    from tests.support.child import Link


def serve(link: Link, port: int, ttl: float) -> None:
    """Serve until the link ends; answer each question with what is open."""
    import uvicorn
    from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
    from django.core.asgi import get_asgi_application
    from django.test import override_settings

    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    loops: list[asyncio.AbstractEventLoop] = []
    with override_settings(ROOT_URLCONF="tests.browserlocks.pages.site", DISTLOCK_BROWSER={"TTL": ttl}, DEBUG=False):
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
