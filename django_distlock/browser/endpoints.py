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
from django.views.decorators.csrf import csrf_protect

from django_distlock import BackendUnavailable
from django_distlock.http.bodies import BadRequest, body_of, json_object, private, private_json, refuse_too_long
from django_distlock.http.grants import GrantError
from django_distlock.http.transactions import outside_transactions
from django_distlock.leases import queue, rows, upkeep
from django_distlock.leases.records import Full, Lost, Quota, Row, Waiting, named
from django_distlock.storage.values import ID, exact

from .conf import config
from .requests import Sender, members

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

logger = logging.getLogger("django_distlock.browser")
MOST_RENEWED = 100
# Seconds between two requests of one waiter. The next one asks often, and each further place a little less often: when
# its turn comes it still has the interval of the place before. A thousand waiters send some 90 requests a second.
HEAD, STEP, TAIL = 0.5, 0.1, 15.0
# Browsers slow down the timers of a hidden tab. Those whose turn is near still ask often: the others wait for them.
HIDDEN, HIDDEN_HEAD = 60.0, 5.0
RETRY_AFTER = 2  # seconds, after which a client asks a database again that was down
_down: set[str] = set()  # the databases whose failure has been logged


def script_view(*methods: str) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """What the addresses have in common: methods, the CSRF check, and answers in JSON to what goes wrong."""

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @functools.wraps(view)
        def answer(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            if request.method not in methods:
                return method_not_allowed(*methods)
            try:
                refuse_too_long(request, config().max_body)  # before the CSRF check, which reads a form
                response: HttpResponse = csrf_protect(view)(request, **kwargs)  # reads the settings as they are now
            except RequestDataTooBig:
                return refused(413, "too_large")
            except (BadRequest, SuspiciousOperation, DjangoBadRequest, MultiPartParserError) as error:
                return bad_request(str(error) if isinstance(error, BadRequest) else "The request cannot be read.")
            except (Error, BackendUnavailable):
                return unavailable()
            _down.discard(config().database)
            return response

        answer.csrf_exempt = True  # type: ignore[attr-defined]  # the check is above
        # LoginRequiredMiddleware: a redirect to the log-in page would tell the script nothing
        answer.login_required = False  # type: ignore[attr-defined]
        return outside_transactions(answer)

    return decorate


@script_view("GET")
def csrf_view(request: HttpRequest) -> HttpResponse:
    """A CSRF token, for a page without one, or after a log-in in another tab."""
    return private_json({"csrf": get_token(request)})


@script_view("GET", "POST")
def leases_view(request: HttpRequest) -> HttpResponse:
    """``POST``: acquire, or keep a place in the queue. ``GET``: the sender's leases, of all tabs and devices."""
    sender = Sender.of(request)
    if request.method == "POST":
        return _acquire(sender, _json(request))
    leases = [
        {"id": row.lease, "name": row.name, "fence": row.fence, "age": row.age, "expires_in": row.expires_in}
        for row in upkeep.held(sender.settings.database, of_objects=False, principal=sender.principal)
    ]
    return private_json({"leases": leases})


def _acquire(sender: Sender, body: dict[str, Any]) -> HttpResponse:
    text, lease, ttl, waits, hidden, again = members(body, "grant", "id", "ttl", "queue", "hidden", "again")
    settings = sender.settings
    try:
        grant = sender.grant(text)
    except GrantError as error:
        if error.signer.startswith("user:") and not sender.visitor.logged_in:
            return refused(401, "logged_out")
        return refused(403, "grant", detail=error.reason)
    if not sender.is_permitted(grant.name):
        queue.release(settings.database, lease, principal=sender.principal, name=grant.name)
        return refused(403, "permission")
    found = queue.acquire(
        settings.database,
        grant.name,
        lease=lease,
        principal=sender.principal,
        label=sender.visitor.label,
        ttl=sender.ttl(grant, ttl),
        max_hold=grant.max_hold if grant.max_hold is not None else settings.max_hold,
        queue=waits,
        interval=functools.partial(interval_of, hidden=hidden),
        quota=Quota(leases=settings.max_held, places=settings.max_waiting),
        again=again,  # it has waited before: to look first saves a statement
    )
    if isinstance(found, Full):
        return refused(429, "quota")
    if isinstance(found, Row):
        return private_json({"id": found.lease, "fence": found.fence, "expires_in": found.expires_in}, 201)
    return _waiting(found)


def interval_of(place: int, *, hidden: bool) -> float:
    """The seconds after which a waiter with ``place`` others ahead has to ask again."""
    if hidden:
        return min(HIDDEN_HEAD * (place + 1), HIDDEN)
    return min(HEAD + STEP * place, TAIL)


def _waiting(found: Waiting) -> HttpResponse:
    """409. Whoever found the row busy, and not the lock, asks again soon."""
    seconds = min(found.interval, HEAD) if found.crowded else found.interval
    holder = found.holder.label if found.holder is not None else None
    response = private_json({"holder": holder, "place": found.place, "retry_after": seconds}, 409)
    response["Retry-After"] = str(math.ceil(seconds))
    response._has_been_logged = True  # type: ignore[attr-defined]  # waiting is no incident: Django would warn of it
    return response


@script_view("POST")
def renew_view(request: HttpRequest) -> HttpResponse:
    """Renew leases; the answers are in the order of the batch."""
    found = _json(request).get("leases")
    if not isinstance(found, list) or len(found) > MOST_RENEWED:
        raise BadRequest(f"leases is a list of at most {MOST_RENEWED}.")
    batch = [members(item, "grant", "id", "ttl", "fence") for item in found]  # all are checked before one is renewed
    sender = Sender.of(request)
    return private_json({"leases": [{"id": item[1], **_renew(sender, *item)} for item in batch]})


def _renew(sender: Sender, text: str, lease: str, ttl: float | None, fence: int) -> dict[str, Any]:
    """``expires_in``; or ``lost``, why the lease has ended. Without a grant or a permission it ends now.

    The name comes from the grant: with that of another name a lease is not found.
    """
    alias, principal, name = sender.settings.database, sender.principal, None
    try:
        grant = sender.grant(text)
    except GrantError as error:
        reason = "grant"
        if error.signer not in ("", sender.visitor.signer):  # the user that had it is logged out
            reason, principal = "logged_out", exact(error.signer)
    else:
        if sender.is_permitted(grant.name):
            resource, seconds = named(alias, grant.name), sender.ttl(grant, ttl)
            answer = rows.renew(resource, lease, seconds, principal=principal, fence=fence)
            return {"lost": answer.reason} if isinstance(answer, Lost) else {"expires_in": answer.expires_in}
        reason, name = "permission", grant.name
    queue.release(alias, lease, principal=principal, name=name)
    return {"lost": reason}


@script_view("POST")
def release_view(request: HttpRequest, lease: str) -> HttpResponse:
    """Give a lease or a place back. Always 204: the page may be gone, and a stranger learns nothing."""
    try:
        sender = Sender.of(request)
        if ID.fullmatch(lease):
            queue.release(sender.settings.database, lease, principal=sender.principal)
    except (Error, BackendUnavailable):
        unavailable()  # the lease will expire
    return private(HttpResponse(status=204))


def _json(request: HttpRequest) -> dict[str, Any]:
    return json_object(body_of(request, config().max_body))


def refused(status: int, reason: str, **facts: str) -> HttpResponse:
    """An answer that says why nothing was done."""
    return private_json({"reason": reason, **facts}, status)


def method_not_allowed(*methods: str) -> HttpResponse:
    response = refused(405, "method")
    response["Allow"] = ", ".join(methods)
    return response


def bad_request(detail: str) -> HttpResponse:
    return refused(400, "request", detail=detail)


def unavailable() -> HttpResponse:
    """The answer while the database fails; the first of a row of failures is logged."""
    alias = config().database
    if alias not in _down:
        _down.add(alias)
        logger.warning("The browser locks cannot be read or written.", exc_info=True)
    response = refused(503, "database")
    response["Retry-After"] = str(RETRY_AFTER)
    return response
