"""Headers of pages: a strict policy, and what it takes to share memory with workers."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from django.contrib.staticfiles.handlers import StaticFilesHandler

if TYPE_CHECKING:
    from collections.abc import Callable

# No script and no style but those of this site.
STRICT = {"Content-Security-Policy": "default-src 'self'"}
# Isolated from other origins. SecurityMiddleware sets the other header that it needs.
ISOLATED = {"Cross-Origin-Embedder-Policy": "require-corp"}


def with_headers(headers: dict[str, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        def answer(*args: Any, **kwargs: Any) -> Any:
            response = view(*args, **kwargs)
            for name, value in headers.items():
                response[name] = value
            return response

        return answer

    return decorate


class IsolatedStaticFiles(StaticFilesHandler):
    """Static files with the header that the scripts of workers need. Other pages use these files as before."""

    serve = with_headers(ISOLATED)(StaticFilesHandler.serve)
