"""Claims and answers in a Django cache, as JSON.

Each key of a request has one entry, its record. A second entry, named by the owner of the claim, exists for as long as
the claim lasts: a renewal extends it, and writes nothing else. The claim has expired once that entry is gone, and a
request takes it over only if its own ``add()`` of the same entry succeeds. So a renewal never changes a record, and of
a late renewal and a take-over only one succeeds. ``add()`` is the one atomic operation that is needed: Redis performs
it as ``SET NX PX``, memcached as ``add``.

To write its record, an owner renews its claim first, and then reads and writes. Only a process that is suspended for
the whole of ``claim_ttl`` between the two can overwrite the claim of another one. A cache may also evict entries; the
database does not.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from django.core.cache import caches

from django_distlock import BackendUnavailable
from django_distlock.idempotency.records import CLAIMED, COMPLETED, FAILED, UNKNOWN, KeyClaim, Record, StoredResponse

from .base import Storage
from .encoding import decode_record, encode_answer, encode_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

PREFIX = "django_distlock:idempotency:"
# Attempts to add or to read: a cache that hides its errors never succeeds in either.
ATTEMPTS = 20
# Seconds that a request has to take over an expired claim, which is three operations.
TAKING_OVER = 30
UNANSWERED = frozenset({CLAIMED, FAILED, UNKNOWN})
T = TypeVar("T")


class CacheStorage(Storage):
    """Two entries for each key. Claims expire by the clock of the cache."""

    def claim(self, claim: KeyClaim) -> Record | None:
        fresh = Record(scope=claim.scope, state=CLAIMED, owner=claim.owner, fingerprint=claim.fingerprint)
        self._begin(claim)
        for _ in range(ATTEMPTS):
            if self._call(lambda: self._cache.add(_key(claim.scope), to_text(fresh), _whole(claim.ttl))):
                return None
            if (found := self.read(claim.scope)) is not None:
                return found
        raise BackendUnavailable("The cache of idempotency keys stores nothing.")

    def read(self, scope: str) -> Record | None:
        found = self._record(scope)
        if found is None or found.state != CLAIMED or self._get(_alive(found.owner)) is not None:
            return found
        now = self._record(scope)  # the request may have ended since the first look
        return replace(found, expired=True) if now == found else now

    def take_over(self, record: Record, claim: KeyClaim) -> bool:
        kept = record.state != COMPLETED and record.fingerprint == claim.fingerprint
        forgotten: dict[str, Any] = {} if kept else {"phases": {}}
        self._begin(claim)
        return self._replace(
            record,
            claim.ttl,
            state=CLAIMED,
            owner=claim.owner,
            fingerprint=claim.fingerprint,
            answer=None,
            **forgotten,
        )

    def hold(self, record: Record, ttl: float) -> bool:
        return record.state == CLAIMED and self._replace(record, ttl, state=UNKNOWN)

    def complete(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        return self._change(claim, UNANSWERED, state=COMPLETED, answer=answer)

    def add_body(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        return self._change(claim, {COMPLETED}, answer=answer)

    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        freed = self._change(claim, UNANSWERED, state=FAILED) if failed else self._delete(claim)
        if freed:  # the claim ends last: a request that finds it ended finds the new state too
            self._call(lambda: self._cache.delete(_alive(claim.owner)))
        return freed

    def renew(self, claim: KeyClaim) -> bool:
        if self._mine(claim, {CLAIMED}) is None:
            return False
        self._call(lambda: self._cache.touch(_key(claim.scope), _whole(claim.ttl)))
        if not self._extend(claim):
            return False
        if self._mine(claim, {CLAIMED}) is None:  # it has ended meanwhile: whoever comes next need not wait for it
            self._call(lambda: self._cache.delete(_alive(claim.owner)))
            return False
        return True

    def save_phases(self, claim: KeyClaim, phases: str) -> bool:
        return self._change(claim, UNANSWERED, phases=json.loads(phases))

    def close(self) -> None:
        self._call(lambda: self._cache.close())

    @property
    def _cache(self) -> Any:
        return caches[self.alias]

    def _get(self, key: str) -> Any:
        return self._call(lambda: self._cache.get(key))

    def _record(self, scope: str) -> Record | None:
        text = self._get(_key(scope))
        if text is None:
            return None
        # an entry that cannot be read may belong to a request that was carried out
        return of_text(text) or Record(scope=scope, state=UNKNOWN, owner="", fingerprint="")

    def _mine(self, claim: KeyClaim | Record, states: Collection[str]) -> Record | None:
        """The record of ``claim``, unless it has another owner by now or is in none of ``states``."""
        found = self._record(claim.scope)
        return found if found is not None and found.owner == claim.owner and found.state in states else None

    def _begin(self, claim: KeyClaim) -> None:
        self._call(lambda: self._cache.set(_alive(claim.owner), claim.owner, _whole(claim.claim_ttl)))

    def _extend(self, claim: KeyClaim) -> bool:
        """Let the claim last for ``claim_ttl`` seconds from now. False: another request is taking it over."""
        key, seconds = _alive(claim.owner), _whole(claim.claim_ttl)
        if self._call(lambda: self._cache.touch(key, seconds)):
            return bool(self._get(key) == claim.owner)
        return bool(self._call(lambda: self._cache.add(key, claim.owner, seconds)))

    def _change(self, claim: KeyClaim, states: Collection[str], **changes: Any) -> bool:
        """Change the record of a claim, which nobody can take over meanwhile."""
        if not self._extend(claim) or (found := self._mine(claim, states)) is None:
            return False
        return self._write(replace(found, **changes), claim.ttl)

    def _delete(self, claim: KeyClaim) -> bool:
        if not self._extend(claim) or self._mine(claim, UNANSWERED) is None:
            return False
        return bool(self._call(lambda: self._cache.delete(_key(claim.scope))))

    def _replace(self, record: Record, ttl: float, **changes: Any) -> bool:
        """Change a record whose claim has ended, unless its owner renews it or another request is first."""
        key = _alive(record.owner)
        if not self._call(lambda: self._cache.add(key, "", TAKING_OVER)):
            return False
        try:
            found = self._mine(record, {record.state})
            return found is not None and self._write(replace(found, **changes), ttl)
        finally:
            self._call(lambda: self._cache.delete(key))

    def _write(self, record: Record, ttl: float) -> bool:
        self._call(lambda: self._cache.set(_key(record.scope), to_text(record), _whole(ttl)))
        return True

    def _call(self, call: Callable[[], T]) -> T:
        """Raise BackendUnavailable for any error: each cache raises the errors of its driver."""
        try:
            return call()
        except Exception as error:
            raise BackendUnavailable("The cache of idempotency keys cannot be used.") from error


def _key(scope: str) -> str:
    return PREFIX + scope


def _alive(owner: str) -> str:
    """The entry that exists while the claim of ``owner`` lasts."""
    return f"{PREFIX}alive:{owner}"


def _whole(seconds: float) -> int:
    """Whole seconds, and one more: some caches ignore fractions, and end an entry up to a second early."""
    return math.ceil(seconds) + 1


def to_text(record: Record) -> str:
    """A record as JSON, and never as pickle."""
    facts, body = (None, None) if record.answer is None else encode_answer(record.scope, record.answer)
    return json.dumps(
        {
            "scope": record.scope,
            "state": record.state,
            "owner": record.owner,
            "fingerprint": record.fingerprint,
            "answer": facts,
            "body": None if body is None else base64.b64encode(body).decode("ascii"),
            "phases": encode_phases(record.scope, json.dumps(record.phases)) if record.phases else "{}",
        }
    )


def of_text(text: object) -> Record | None:
    """The record that :func:`to_text` wrote; None for any other text."""
    try:
        found: Any = json.loads(text) if isinstance(text, str) else None
        body = None if found["body"] is None else base64.b64decode(found["body"])
        texts = [str(found[name]) for name in ("scope", "state", "owner", "fingerprint")]
        return decode_record([*texts, False, found["answer"], body, found["phases"]])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
