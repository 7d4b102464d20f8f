"""Django's CSRF check: the reasons after which a page keeps the data of a form, and an answer for scripts."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.middleware.csrf import REASON_NO_CSRF_COOKIE, CsrfViewMiddleware
from django.views.decorators.csrf import csrf_exempt

from .bodies import private_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse

# Reasons that Django's middleware gives for a token of another session of the same visitor.
SESSION_CHANGED = ("CSRF token from POST incorrect.", REASON_NO_CSRF_COOKIE)


def is_sent_by_this_site(request: HttpRequest) -> bool:
    """Is the ``Origin``, which every browser sends with a POST, this host?

    Django has checked the scheme, and accepts the sites of CSRF_TRUSTED_ORIGINS as well.
    """
    try:
        origin: str = urlsplit(request.headers.get("Origin", "")).netloc
        return bool(origin) and origin == request.get_host()
    except ValueError:
        return False


class _JsonCsrf(CsrfViewMiddleware):
    """Django's check, with an answer for a script."""

    def _reject(self, request: HttpRequest, reason: str) -> HttpResponse:
        return private_json({"detail": f"CSRF: {reason}"}, 403)


def csrf_protect_json(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """As Django's ``csrf_protect``, for an address of a script: it is refused by JSON and not by a page.

    The middleware of the site must not check before: the result is exempt from it, and makes the same check itself.
    """

    @functools.wraps(view)
    def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        check = _JsonCsrf(view)  # it is asked before and after, and calls no view itself
        check.process_request(request)
        refused = check.process_view(request, view, args, kwargs)
        response: HttpResponse = refused or view(request, *args, **kwargs)
        check.process_response(request, response)  # sets the cookie
        return response

    return csrf_exempt(protected)
