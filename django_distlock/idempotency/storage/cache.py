"""Claims and answers in a Django cache, as JSON.

``add()`` is the one atomic operation that is needed: Redis performs it as ``SET NX PX``, memcached as ``add``. The
entry of a claim outlives the claim, so that an expired claim can still be read; to take it over, a request must win an
``add()`` for the token of that claim. "Write if it is still my claim" is a read and a write, and not atomic: between
them the claim may expire and be taken over, and then the answer of the first run is stored. A cache may also evict
entries; the database does not.
"""

from __future__ import annotations

import base64
import json
import time
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
UNANSWERED = frozenset({CLAIMED, FAILED, UNKNOWN})
T = TypeVar("T")


class CacheStorage(Storage):
    """One entry for each key. Times are by the clock of this machine."""

    def claim(self, claim: KeyClaim) -> Record | None:
        fresh = Record(scope=claim.scope, state=CLAIMED, owner=claim.owner, fingerprint=claim.fingerprint)
        for _ in range(ATTEMPTS):
            text = to_text(fresh, time.time() + claim.claim_ttl)
            if self._call(lambda text=text: self._cache.add(_key(claim.scope), text, claim.ttl)):  # type: ignore[misc]
                return None
            if (found := self.read(claim.scope)) is not None:
                return found
        raise BackendUnavailable("The cache of idempotency keys stores nothing.")

    def read(self, scope: str) -> Record | None:
        text = self._call(lambda: self._cache.get(_key(scope)))
        if text is None:
            return None
        # an entry that cannot be read may belong to a request that was carried out
        return of_text(text, time.time()) or Record(scope=scope, state=UNKNOWN, owner="", fingerprint="")

    def take_over(self, record: Record, claim: KeyClaim) -> bool:
        # only the first request to ask for this claim wins
        if not self._call(lambda: self._cache.add(f"{_key(record.scope)}:{record.owner}", "", claim.claim_ttl)):
            return False
        # that entry expires, and this process may have been suspended until then: compare with the record
        if self._mine(record, {record.state}) is None:
            return False
        phases = record.phases if record.state != COMPLETED and record.fingerprint == claim.fingerprint else {}
        mine = replace(
            record, state=CLAIMED, owner=claim.owner, fingerprint=claim.fingerprint, answer=None, phases=phases
        )
        return self._write(mine, claim.claim_ttl, claim.ttl)

    def hold(self, record: Record, ttl: float) -> bool:
        return self._change(record, {CLAIMED}, ttl, ttl, state=UNKNOWN)

    def complete(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        return self._change(claim, UNANSWERED, claim.ttl, claim.ttl, state=COMPLETED, answer=answer)

    def add_body(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        return self._change(claim, {COMPLETED}, claim.ttl, claim.ttl, answer=answer)

    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        if failed:
            return self._change(claim, UNANSWERED, claim.claim_ttl, claim.ttl, state=FAILED)
        if self._mine(claim, UNANSWERED) is None:
            return False
        return bool(self._call(lambda: self._cache.delete(_key(claim.scope))))

    def renew(self, claim: KeyClaim) -> bool:
        return self._change(claim, {CLAIMED}, claim.claim_ttl, claim.ttl)

    def save_phases(self, claim: KeyClaim, phases: str) -> bool:
        return self._change(claim, UNANSWERED, claim.claim_ttl, claim.ttl, phases=json.loads(phases))

    def close(self) -> None:
        self._call(lambda: self._cache.close())

    @property
    def _cache(self) -> Any:
        return caches[self.alias]

    def _mine(self, claim: KeyClaim | Record, states: Collection[str]) -> Record | None:
        """The record of ``claim``, unless it has another owner by now or is in none of ``states``."""
        found = self.read(claim.scope)
        return found if found is not None and found.owner == claim.owner and found.state in states else None

    def _change(
        self, claim: KeyClaim | Record, states: Collection[str], seconds: float, ttl: float, **changes: Any
    ) -> bool:
        found = self._mine(claim, states)
        return found is not None and self._write(replace(found, **changes), seconds, ttl)

    def _write(self, record: Record, seconds: float, ttl: float) -> bool:
        text = to_text(record, time.time() + seconds)
        self._call(lambda: self._cache.set(_key(record.scope), text, ttl))
        return True

    def _call(self, call: Callable[[], T]) -> T:
        """Raise BackendUnavailable for any error: each cache raises the errors of its driver."""
        try:
            return call()
        except Exception as error:
            raise BackendUnavailable("The cache of idempotency keys cannot be used.") from error


def _key(scope: str) -> str:
    return PREFIX + scope


def to_text(record: Record, expires: float) -> str:
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
            "expires": expires,
        }
    )


def of_text(text: object, now: float) -> Record | None:
    """The record that :func:`to_text` wrote; None for any other text."""
    try:
        found: Any = json.loads(text) if isinstance(text, str) else None
        expired = float(found["expires"]) <= now
        body = None if found["body"] is None else base64.b64decode(found["body"])
        texts = [str(found[name]) for name in ("scope", "state", "owner", "fingerprint")]
        return decode_record([*texts, expired, found["answer"], body, found["phases"]])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
