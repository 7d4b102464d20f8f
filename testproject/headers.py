"""Headers of pages: a strict policy, and what it takes to share memory with workers."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING

from django.contrib.staticfiles.handlers import StaticFilesHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse
    from django.http.response import HttpResponseBase

    View = Callable[[HttpRequest], HttpResponse]

STRICT = {"Content-Security-Policy": "default-src 'self'"}
EMBEDDER = {"Cross-Origin-Embedder-Policy": "require-corp"}


def strict(view: View) -> View:
    """Serve a page that runs no script and no style but those of this site."""
    return _with(STRICT, view)


def isolated(view: View) -> View:
    """Serve a page isolated from other origins. SecurityMiddleware sets the other header that it needs."""
    return _with(EMBEDDER, view)


def _with(headers: dict[str, str], view: View) -> View:
    @wraps(view)
    def answer(request: HttpRequest) -> HttpResponse:
        response = view(request)
        for name, value in headers.items():
            response[name] = value
        return response

    return answer


class IsolatedStaticFiles(StaticFilesHandler):
    """Static files with the header that the scripts of workers need. Other pages use these files as before."""

    def serve(self, request: HttpRequest) -> HttpResponseBase:
        response = super().serve(request)
        for name, value in EMBEDDER.items():
            response[name] = value
        return response
