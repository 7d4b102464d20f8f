"""A site whose pages and scripts are served with or without the headers of isolation; the path says which."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.support.paths import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

STATIC = PACKAGE / "static" / "django_distlock"
HERE = Path(__file__).parent
OPENER = {"Cross-Origin-Opener-Policy": "same-origin"}
EMBEDDER = {"Cross-Origin-Embedder-Policy": "require-corp"}
PAGE = '<!doctype html><html lang="en"><head><title>Mutex</title></head><body><h1>Mutex</h1></body></html>'
PAGES = {
    "/isolated/": (PAGE, OPENER | EMBEDDER),
    "/without-embedder/": (PAGE, OPENER),
    "/without-opener/": (PAGE, EMBEDDER),
}
# WebKit wants the header on the modules that a worker imports, too.
SCRIPTS = {
    "/distlock-worker.js": (STATIC / "distlock-worker.js", EMBEDDER),
    "/hand.js": (HERE / "hand.js", EMBEDDER),
    "/hand-without-embedder.js": (HERE / "hand.js", {}),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        headers: dict[str, str]
        if path in PAGES:
            text, headers = PAGES[path]
            self.answer(200, text.encode(), {"Content-Type": "text/html; charset=utf-8", **headers})
        elif path in SCRIPTS:
            file, headers = SCRIPTS[path]
            self.answer(200, file.read_bytes(), {"Content-Type": "text/javascript", **headers})
        else:
            self.answer(404, b"", {})

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def site() -> Iterator[str]:
    """The address of the site, without a slash at its end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
