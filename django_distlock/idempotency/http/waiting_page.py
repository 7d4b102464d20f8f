"""The page that a person waits on: it shows the outcome as soon as there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core import signing

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.idempotency.decisions import SAFE_METHODS
from django_distlock.idempotency.execution import blocking, load_site_key, mark_of
from django_distlock.idempotency.options import options_of, view_class
from django_distlock.idempotency.records import CLAIMED, COMPLETED, FAILED, Record
from django_distlock.idempotency.storage import storage_of

from . import responses
from .requests import address_of, principal_of, query_of

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


def is_outcome_request(request: HttpRequest) -> bool:
    """Does the request ask for an outcome? Its token is not checked yet."""
    return request.method in SAFE_METHODS and responses.WAIT_PARAMETER in request.META.get("QUERY_STRING", "")


def is_answered_by_view(view: Any, method: str) -> bool:
    """Does ``@idempotent`` or the mixin of this view answer such a request, after the decorators above it?"""
    return options_of(view, method) is not None or getattr(view_class(view), "idempotency_in_view", False)


async def outcome(request: HttpRequest, view: Any = None, *, bare: bool = False) -> HttpResponse | None:
    """The outcome that the waiting page asks for; None if this is no such request.

    Nothing of the stored answer is shown if ``bare``, or if the request does not pass the decorators of ``view``.
    """
    token = dict(query_of(request)).get(responses.WAIT_PARAMETER)
    if not token or len(token) > 2048:
        return None
    try:
        facts = signing.loads(token, salt=responses.wait_salt(request), max_age=86400)
        secret = await load_site_key()
        principal = await blocking(principal_of, request)
        if facts["mark"] != mark_of(request, secret, principal):
            return None
        bare = bare or (view is not None and is_answered_by_view(view, facts["method"]))
        bare = bare or (principal.kind == "credential" and not facts.get("replays"))
        storage = storage_of(facts["alias"] or None)
        record = await blocking(storage.read, facts["scope"])
        if record is None and facts["alias"] and await blocking(storage.is_claimed_elsewhere, facts["scope"]):  # type: ignore[attr-defined]
            return await blocking(responses.working, request, address_of(request))
    except signing.BadSignature:
        return None
    except (BackendUnavailable, LockNotAcquired):
        return await blocking(responses.working, request, address_of(request))
    return await blocking(_seen, request, record, facts["fingerprint"], bare)


def _seen(request: HttpRequest, record: Record | None, fingerprint: str, bare: bool) -> HttpResponse:
    if record is not None and record.state == CLAIMED and not record.expired:
        return responses.working(request, address_of(request))
    if record is None or record.state == FAILED:
        return responses.page(request, "working", 200, url=None)
    if record.state == COMPLETED and record.fingerprint != fingerprint:
        location = None if record.answer is None or bare else record.answer.location
        return responses.page(request, "saved", 200, changed=True, location=location, action=None)
    answer = None if bare else record.answer
    found = None
    if answer is not None and (answer.body is not None or answer.location):
        found = responses.replay(request, answer)
    if found is not None:
        return found
    return responses.page(request, "saved", 200, unknown=record.state != COMPLETED, action=None)
