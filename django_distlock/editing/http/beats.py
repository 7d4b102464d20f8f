"""One beat of a form: the script asks at the form's own address.

So everything that protects the view has been asked before: mixins, decorators, ``dispatch()``, middlewares. A beat is a
POST with the header ``Distlock-Edit`` and one JSON object; other sites cannot send the header, and need a CSRF token.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DatabaseError
from django.http import Http404, HttpResponse
from django.middleware.csrf import get_token

from django_distlock import BackendUnavailable
from django_distlock.concurrency.text import one_line
from django_distlock.editing.grants import EditGrant, read_grant
from django_distlock.editing.resources import resource_of, rows_of
from django_distlock.editing.saving import RESERVED
from django_distlock.editing.versions import version_of
from django_distlock.http.bodies import BadRequest, body_of, json_object, private_json
from django_distlock.http.grants import GrantError
from django_distlock.http.transactions import transactions_of_request
from django_distlock.http.visitors import leave_session_alone, user_of, visitor_of
from django_distlock.leases import rows
from django_distlock.leases.records import Busy, Lost, Row
from django_distlock.storage.values import ID

from .audit import take_over
from .takeover import may_take_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from django_distlock.editing.conf import EditingConfig
    from django_distlock.leases.records import Verb

logger = logging.getLogger("django_distlock.editing")
Answer = dict[str, Any]
HEADER = "Distlock-Edit"
VERBS = ("claim", "adopt", "renew", "watch", "takeover", "release")
# Bytes. A signed field has some 500, more with many fields.
LONGEST_BODY = 64 * 1024
LONGEST_REASON = 500
LONGEST_IDLE = 10 * 86400


def is_beat(request: HttpRequest) -> bool:
    """Does the script ask, and not the form?"""
    return HEADER in request.headers


def answer(
    request: HttpRequest,
    load: Callable[[], Any],
    config: EditingConfig,
    hook: Callable[[HttpRequest, Any], bool],
) -> HttpResponse:
    """Answer a beat. A GET is given a CSRF token, after a log-in in another tab.

    ``load`` gives the object of the form as this visitor may edit it; PermissionDenied or Http404 end the lease.
    ``hook`` says whether the visitor may take an object over.
    """
    if request.method in ("GET", "HEAD"):
        return private_json({"csrf": get_token(request)})
    if request.method != "POST":
        return private_json({"reason": "method"}, 405)
    try:
        asked = Asked.of(json_object(body_of(request, LONGEST_BODY)))
    except BadRequest as error:
        return private_json({"reason": "request", "detail": str(error)}, 400)
    except RequestDataTooBig:
        return private_json({"reason": "too_large"}, 413)
    try:
        ends_in = session_ends_in(request) if asked.session else None
        leave_session_alone(request)
        found = Beat(request, asked, config, hook).answer(load)
        return private_json({**found, "beat": config.beat, "session_ends_in": ends_in})
    except GrantError as error:
        user = user_of(request)
        if error.reason == "foreign" and not (user is not None and user.is_authenticated):
            return private_json({"reason": "logged_out"}, 401)
        return private_json({"state": "error", "reason": "grant", "detail": error.reason})
    except (DatabaseError, BackendUnavailable):
        # for the script this is a request that was lost: the save decides
        logger.warning("The edit locks cannot be read or written.", exc_info=True)
        return private_json({"reason": "database"}, 503)


def session_ends_in(request: HttpRequest) -> float | None:
    """Seconds until the session ends, by one SELECT; None where sessions are in no table."""
    session: Any = getattr(request, "session", None)
    model = getattr(session, "model", None)
    if model is None or not session.session_key:
        return None
    end = model._default_manager.filter(pk=session.session_key).values_list("expire_date", flat=True).first()
    return None if end is None else float((end - datetime.now(UTC if end.tzinfo else None)).total_seconds())


@dataclass(frozen=True, slots=True)
class Asked:
    """What the script wants. ``fresh``: the page has just been read again. ``session``: tell when the session ends."""

    verb: str
    grant: str
    lease: str
    previous: str
    reason: str
    idle: float
    fresh: bool
    reserve: bool
    session: bool

    @classmethod
    def of(cls, given: dict[str, Any]) -> Asked:
        """Check one request. BadRequest if it has not the shape of one."""
        verb = given.get("verb")
        if verb not in VERBS or not isinstance(given.get("grant"), str):
            raise BadRequest("A beat has a grant and a verb.")
        lease, previous = (given.get(name) or "" for name in ("lease", "previous"))
        if any(not isinstance(value, str) or (value and not ID.fullmatch(value)) for value in (lease, previous)):
            raise BadRequest("lease and previous are ids of 8 to 64 characters.")
        if verb != "watch" and not lease:
            raise BadRequest(f"{verb} needs a lease.")
        idle = given.get("idle") or 0
        if isinstance(idle, bool) or not isinstance(idle, (int, float)) or not 0 <= idle <= LONGEST_IDLE:
            idle = 0
        reason = one_line(" ".join(str(given.get("reason") or "").split()), LONGEST_REASON)
        fresh, reserve, session = (bool(given.get(name)) for name in ("fresh", "reserve", "session"))
        return cls(verb, given["grant"], lease, previous, reason, float(idle), fresh, reserve, session)


class Beat:
    """One request of the script: carry out its verb, and build the answer."""

    def __init__(
        self, request: HttpRequest, asked: Asked, config: EditingConfig, hook: Callable[[HttpRequest, Any], bool]
    ) -> None:
        self.request = request
        self.asked = asked
        self.config = config
        self.hook = hook
        self.visitor = visitor_of(request, config.label_of)

    def answer(self, load: Callable[[], Any]) -> Answer:
        """Carry out the verb. GrantError if the signed field is not one of this visitor and this object."""
        grant = read_grant(self.asked.grant, self.visitor.signer)
        if self.asked.verb == "release":
            self._release(grant, RESERVED if self.asked.reserve else None)
            return {"state": "free", "changed": None}
        try:
            with transactions_of_request():  # the view may lock rows
                obj = load()
        except (Http404, PermissionDenied) as error:
            # nothing is said about the object
            self._release(grant)
            return _lost("deleted" if isinstance(error, Http404) else "permission")
        if resource_of(obj) != grant.resource:
            raise GrantError("foreign")
        if self.asked.verb == "watch":
            return self._watch(grant, obj)
        if self.asked.verb == "takeover":
            return self._take_over(grant, obj)
        return self._take(grant, obj)

    def _release(self, grant: EditGrant, reserve: float | None = None) -> None:
        if self.asked.lease:
            rows.release(grant.resource, self.asked.lease, reserve, principal=self.visitor.principal)

    def _take(self, grant: EditGrant, obj: Any) -> Answer:
        asked, visitor, resource, ttl = self.asked, self.visitor, grant.resource, self.config.ttl
        found: Row | Busy | Lost
        if asked.verb == "renew":
            found = rows.renew(resource, asked.lease, ttl, principal=visitor.principal, idle=asked.idle)
        else:
            verb: Verb = "adopt" if asked.verb == "adopt" else "claim"
            found = rows.take(verb, resource, visitor, asked.lease, ttl, idle=asked.idle, former=asked.previous)
        if isinstance(found, Busy):
            return self._busy(found, obj)
        if isinstance(found, Lost):
            changed, deleted = self._news(grant, found.row)
            return _lost("deleted" if deleted else found.reason, found.by, changed)
        return self._held(grant, found, look=asked.verb != "renew" or asked.fresh)

    def _take_over(self, grant: EditGrant, obj: Any) -> Answer:
        resource, asked, ttl = grant.resource, self.asked, self.config.ttl
        before = rows.read_one(resource)
        if not self._may_take_over(obj, before):
            return {"state": "error", "reason": "permission"}
        found = take_over(self.request, self.visitor, resource, before, asked.lease, ttl, asked.reason)
        if isinstance(found, Busy):
            return self._busy(found, obj)
        return self._held(grant, found, look=True)

    def _watch(self, grant: EditGrant, obj: Any) -> Answer:
        row = rows.read_one(grant.resource)
        if row is not None and row.held:
            return self._busy(Busy(holder=row, own=row.principal == self.visitor.principal), obj)
        changed, deleted = self._news(grant, row) if self.asked.fresh else self._counted(grant, row)
        return _lost("deleted", changed=changed) if deleted else {"state": "free", "changed": changed}

    def _may_take_over(self, obj: Any, holder: Row | None) -> bool:
        with transactions_of_request():
            return may_take_over(self.request, self.config, obj, holder, self.hook)

    # answers

    def _held(self, grant: EditGrant, row: Row, *, look: bool) -> Answer:
        changed, deleted = self._news(grant, row) if look else (None, False)
        if deleted:
            return _lost("deleted", changed=changed)
        return {"state": "held", "lease": self.asked.lease, "expires_in": row.expires_in, "changed": changed}

    def _busy(self, found: Busy, obj: Any) -> Answer:
        row = found.holder
        holder = {
            "label": row.label if row is not None else "",
            "since": row.age if row is not None else 0,
            "idle": row.idle if row is not None else 0,
            "own": found.own,
            "saving": found.saving,
        }
        return {"state": "busy", "holder": holder, "can_take_over": not found.own and self._may_take_over(obj, row)}

    def _news(self, grant: EditGrant, row: Row | None) -> tuple[Answer | None, bool]:
        """What has happened to the object since the form was rendered (None: nothing), and whether it is deleted."""
        obj = rows_of(grant.resource).first()
        if obj is None:
            return None, True
        counted, deleted = self._counted(grant, row)
        if counted is not None or deleted:
            return counted, deleted
        inlines = {inline: list(inline.rows(obj, grant.database)) for inline in grant.inlines}
        if grant.version is not None and version_of(obj, grant.fields, inlines) != grant.version:
            return {"by": "", "at": None}, False
        return None, False

    def _counted(self, grant: EditGrant, row: Row | None) -> tuple[Answer | None, bool]:
        """The same by the counter of saves in the row alone."""
        if row is None or not grant.writes or not row.has_changed_since(grant.writes[0]):
            return None, False
        at = row.changed_at
        return {"by": row.changed_by, "at": at and at.isoformat()}, row.ended == "deleted" and not row.lease


def _lost(reason: str, by: str = "", changed: Answer | None = None) -> Answer:
    """The lease is gone. Who has deleted an object is told as ``by``, as it was a save."""
    if reason == "deleted" and changed is not None:
        by, changed = changed["by"], None
    return {"state": "lost", "reason": reason, "by": by, "changed": changed}
