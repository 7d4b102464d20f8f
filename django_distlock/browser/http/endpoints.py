"""The addresses that distlock.js asks. Every answer is JSON, is kept by no cache, and writes no session."""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING, Any

from django.core.exceptions import BadRequest as DjangoBadRequest
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import Error
from django.http import HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.middleware.csrf import get_token

from django_distlock import BackendUnavailable
from django_distlock.browser.conf import config
from django_distlock.browser.records import BrowserLease
from django_distlock.http.bodies import BadRequest, body_of, json_object, private, private_json, refuse_too_long
from django_distlock.http.csrf import csrf_protect_json
from django_distlock.http.transactions import outside_transactions
from django_distlock.http.visitors import leave_session_alone, visitor_of

from .actions import Desk, LeaseRenewal, ScriptRefused, Wish, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

logger = logging.getLogger("django_distlock.browser")
RETRY_AFTER = 2  # seconds, after which a client asks a database again that was down
_down: set[str] = set()  # the databases whose failure has been logged


def script_view(*methods: str) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """What the addresses have in common: methods, the CSRF check, and answers in JSON to what goes wrong."""

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        checked = csrf_protect_json(view)

        @functools.wraps(view)
        def answer(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if request.method not in methods:
                return _method_not_allowed(methods)
            try:
                refuse_too_long(request, config().max_body)  # before the CSRF check, which reads a form
                response = checked(request, **kwargs)
            except ScriptRefused as refused:
                return private_json(refused.facts, refused.status)
            except RequestDataTooBig:
                return private_json({"reason": "too_large"}, 413)
            except (BadRequest, SuspiciousOperation, DjangoBadRequest, MultiPartParserError) as error:
                detail = str(error) if isinstance(error, BadRequest) else "The request cannot be read."
                return private_json({"reason": "request", "detail": detail}, 400)
            except (Error, BackendUnavailable):
                note_outage()
                return unavailable()
            _down.discard(config().database)
            return response

        answer.csrf_exempt = True  # type: ignore[attr-defined]  # `checked` checks
        # LoginRequiredMiddleware: a redirect to the log-in page would tell the script nothing
        answer.login_required = False  # type: ignore[attr-defined]
        return outside_transactions(answer)

    return decorate


@script_view("GET", "POST")
def leases_view(request: HttpRequest) -> HttpResponse:
    """``POST``: acquire, or keep a place in the queue. ``GET``: the sender's leases."""
    desk = desk_of(request)
    if request.method == "GET":
        return private_json({"leases": desk.listed()})
    wish = Wish.of(json_object(body_of(request, config().max_body)))
    found = desk.acquire(wish)
    if isinstance(found, BrowserLease):
        facts = {"id": found.lease, "fence": found.fence, "expires_in": found.expires_in}
        return private_json(facts, 201)
    refusal = refusal_of(found)
    response = private_json(refusal, 409)
    response["Retry-After"] = str(math.ceil(refusal["retry_after"]))
    response._has_been_logged = True  # type: ignore[attr-defined]  # waiting is no incident: Django would warn of it
    return response


@script_view("POST")
def renew_view(request: HttpRequest) -> HttpResponse:
    """Renew a batch of leases."""
    batch = LeaseRenewal.batch(json_object(body_of(request, config().max_body)))
    return private_json({"leases": desk_of(request).renew(batch)})


@script_view("POST")
def release_view(request: HttpRequest, lease: str) -> HttpResponse:
    """Give a lease or a place back. Always 204: the page may be gone, and a stranger learns nothing."""
    return _released(request, lease)


@script_view("DELETE")
def lease_view(request: HttpRequest, lease: str) -> HttpResponse:
    """As :func:`release_view`."""
    return _released(request, lease)


@script_view("GET")
def csrf_view(request: HttpRequest) -> HttpResponse:
    """A CSRF token, for a page without one, or after a log-in in another tab."""
    return private_json({"csrf": get_token(request)})


def desk_of(request: HttpRequest) -> Desk:
    """The leases of the sender. This request writes no session."""
    leave_session_alone(request)
    settings = config()
    return Desk(request, visitor_of(request, settings.label_of), settings)


def _released(request: HttpRequest, lease: str) -> HttpResponse:
    try:
        desk_of(request).release(lease)
    except (Error, BackendUnavailable):
        note_outage()  # the lease will expire
    return private(HttpResponse(status=204))


def _method_not_allowed(methods: tuple[str, ...]) -> HttpResponse:
    response = private_json({"reason": "method"}, 405)
    response["Allow"] = ", ".join(methods)
    return response


def note_outage() -> None:
    """Log the first of a row of failures."""
    alias = config().database
    if alias not in _down:
        _down.add(alias)
        logger.warning("The browser locks cannot be read or written.", exc_info=True)


def unavailable() -> HttpResponse:
    """The answer while the database fails."""
    response = private_json({"reason": "database"}, 503)
    response["Retry-After"] = str(RETRY_AFTER)
    return response
