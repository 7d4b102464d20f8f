"""What the page shows that a person waits on: the outcome, as soon as there is one."""

# What a flow yields is called by its driver: the values that come back have no type here.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django.core import signing

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.sitekey import site_key

from . import answers, engine
from .records import CLAIMED, COMPLETED, FAILED, Record
from .requests import principal_of
from .storage import storage_of

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from .job import Flow


def look(request: HttpRequest) -> Flow[HttpResponse | None]:
    """The outcome that the waiting page asks for; None if this is no such request."""
    token = request.GET.get(answers.WAIT_PARAMETER)
    if not token or len(token) > 2048:
        return None
    try:
        facts = signing.loads(token, salt=answers.WAIT_SALT, max_age=86400)
        secret = yield site_key.load
        principal = yield partial(principal_of, request)
        if facts["mark"] != engine.keyed(secret, "mark", principal.text):
            return None
        storage = storage_of(facts["alias"] or None)
        record = yield partial(storage.read, facts["scope"])
        if record is None and facts["alias"] and (yield partial(storage.is_running, facts["scope"])):  # type: ignore[attr-defined]
            return (yield partial(answers.working, request, request.get_full_path()))
    except signing.BadSignature:
        return None
    except (BackendUnavailable, LockNotAcquired):
        return (yield partial(answers.working, request, request.get_full_path()))
    return (yield partial(_seen, request, record, facts["fingerprint"]))


def _seen(request: HttpRequest, record: Record | None, fingerprint: str) -> HttpResponse:
    if record is not None and record.state == CLAIMED and not record.expired:
        return answers.working(request, request.get_full_path())
    if record is None or record.state == FAILED:
        return answers.page(request, "working", 200, url=None)
    if record.state == COMPLETED and record.fingerprint != fingerprint:
        location = None if record.answer is None else record.answer.location
        return answers.page(request, "saved", 200, changed=True, location=location, action=None)
    if record.answer is not None and (record.answer.body is not None or record.answer.location):
        return answers.replay(request, record.answer)
    return answers.page(request, "saved", 200, unknown=record.state != COMPLETED, action=None)
