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
    from collections.abc import Callable

PREFIX = "django_distlock:idempotency:"
# Attempts to add or to read: a cache that hides its errors never succeeds in either.
ATTEMPTS = 20
T = TypeVar("T")


class CacheStorage(Storage):
    """One entry for each key. Times are by the clock of this machine."""

    def claim(self, claim: KeyClaim) -> Record | None:
        fresh = Record(scope=claim.scope, state=CLAIMED, owner=claim.owner, fingerprint=claim.fingerprint)
        for _ in range(ATTEMPTS):
            now = time.time()
            text = to_text(fresh, now + claim.claim_ttl, now + claim.ttl)
            if self._call(lambda text=text: self._cache.add(_key(claim.scope), text, claim.ttl)):  # type: ignore[misc]
                return None
            if (found := self.read(claim.scope)) is not None:
                return found
        raise BackendUnavailable("The cache of idempotency keys stores nothing.")

    def read(self, scope: str) -> Record | None:
        found = self._read(scope)
        return None if found is None else found[0]

    def take_over(self, record: Record, claim: KeyClaim) -> bool:
        # only the first request to ask for this claim wins
        if not self._call(lambda: self._cache.add(f"{_key(record.scope)}:{record.owner}", "", claim.claim_ttl)):
            return False
        # that entry expires, and this process may have been suspended until then: compare with the record
        if (found := self.read(record.scope)) is None or (found.owner, found.state) != (record.owner, record.state):
            return False
        phases = record.phases if record.state != COMPLETED and record.fingerprint == claim.fingerprint else {}
        mine = replace(
            record, state=CLAIMED, owner=claim.owner, fingerprint=claim.fingerprint, answer=None, phases=phases
        )
        return self._write(mine, claim.claim_ttl, claim.ttl)

    def hold(self, record: Record, ttl: float) -> bool:
        found = self._read(record.scope)
        if found is None or found[0].owner != record.owner or found[0].state != CLAIMED:
            return False
        return self._write(replace(found[0], state=UNKNOWN), ttl, ttl)

    def complete(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        return self._change(claim, claim.ttl, state=COMPLETED, answer=answer)

    def add_body(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        found = self.read(claim.scope)
        if found is None or found.owner != claim.owner or found.state != COMPLETED:
            return False
        return self._write(replace(found, answer=answer), claim.ttl, claim.ttl)

    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        if failed:
            return self._change(claim, claim.claim_ttl, state=FAILED)
        found = self.read(claim.scope)
        if found is None or found.owner != claim.owner or found.state == COMPLETED:
            return False
        return bool(self._call(lambda: self._cache.delete(_key(claim.scope))))

    def renew(self, claim: KeyClaim) -> bool:
        found = self.read(claim.scope)
        return found is not None and found.state == CLAIMED and self._change(claim, claim.claim_ttl)

    def save_phases(self, claim: KeyClaim, phases: str) -> bool:
        return self._change(claim, claim.claim_ttl, phases=json.loads(phases))

    def close(self) -> None:
        self._call(lambda: self._cache.close())

    @property
    def _cache(self) -> Any:
        return caches[self.alias]

    def _read(self, scope: str) -> tuple[Record, float] | None:
        text = self._call(lambda: self._cache.get(_key(scope)))
        if text is None:
            return None
        # an entry that cannot be read may belong to a request that was carried out
        torn = Record(scope=scope, state=UNKNOWN, owner="", fingerprint="")
        return of_text(text, time.time()) or (torn, time.time())

    def _change(self, claim: KeyClaim, seconds: float, **changes: Any) -> bool:
        found = self.read(claim.scope)
        if found is None or found.owner != claim.owner or found.state == COMPLETED:
            return False
        return self._write(replace(found, **changes), seconds, claim.ttl)

    def _write(self, record: Record, seconds: float, ttl: float) -> bool:
        now = time.time()
        text = to_text(record, now + seconds, now + ttl)
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


def to_text(record: Record, expires: float, lives_until: float) -> str:
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
            "lives_until": lives_until,
        }
    )


def of_text(text: object, now: float) -> tuple[Record, float] | None:
    """The record that :func:`to_text` wrote, and the end of its lifetime; None for any other text."""
    try:
        found: Any = json.loads(text) if isinstance(text, str) else None
        record = decode_record(
            str(found["scope"]),
            str(found["state"]),
            str(found["owner"]),
            str(found["fingerprint"]),
            expired=float(found["expires"]) <= now,
            facts=found["answer"],
            body=None if found["body"] is None else base64.b64decode(found["body"]),
            phases=found["phases"],
        )
        return record, float(found["lives_until"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
