"""Claims and answers in a Django cache.

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

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.core.cache import caches

from django_distlock import BackendUnavailable
from django_distlock.idempotency.records import CLAIMED, UNKNOWN, KeyClaim, Record

from .base import Storage
from .encoding import record_of, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "django_distlock:idempotency:"
FIELDS = ("scope", "state", "owner", "fingerprint", "answer", "phases")
# Attempts to add or to read: a cache that hides its errors never succeeds in either.
ATTEMPTS = 20
# Seconds that a request has to take over an expired claim, which is three operations.
TAKING_OVER = 30
# Seconds between the attempts of an owner to renew its claim while another request looks at it as expired.
PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class CacheStorage(Storage):
    """Two entries for each key. Claims expire by the clock of the cache."""

    def claim(self, claim: KeyClaim, *, last: bool = True) -> Record | None:
        entry = dict(zip(FIELDS, (claim.scope, CLAIMED, claim.owner, claim.fingerprint, None, "{}"), strict=True))
        self._call("set", _alive(claim.owner), claim.owner, _whole(claim.claim_ttl))
        for _ in range(ATTEMPTS):
            if self._call("add", _key(claim.scope), entry, _whole(claim.ttl)):
                return None
            if (found := self.read(claim.scope)) is not None:
                return found
        raise BackendUnavailable("The cache of idempotency keys stores nothing.")

    def read(self, scope: str) -> Record | None:
        found = self._record(scope)
        if found is None or found.state != CLAIMED or self._call("get", _alive(found.owner)) is not None:
            return found
        now = self._record(scope)  # the request may have ended since the first look
        return replace(found, expired=True) if now == found else now

    def renew(self, claim: KeyClaim) -> bool:
        if self._entry(claim, (CLAIMED,)) is None:
            return False
        self._call("touch", _key(claim.scope), _whole(claim.ttl))
        if not self._extend(claim):
            return False
        if self._entry(claim, (CLAIMED,)) is None:  # it has ended meanwhile: whoever comes next need not wait for it
            self._call("delete", _alive(claim.owner))
            return False
        return True

    def change(
        self, held: KeyClaim | Record, states: Sequence[str], ttl: float, expires: float | None = None, **values: Any
    ) -> bool:
        if isinstance(held, Record):
            if "owner" in values:
                self._call("set", _alive(values["owner"]), values["owner"], _whole(expires or ttl))
            return self._replace(held, states, ttl, values)
        return self._keep(held) and self._write(held, states, ttl, values)

    def remove(self, held: KeyClaim, states: Sequence[str]) -> bool:
        if not self._keep(held) or self._entry(held, states) is None:
            return False
        return bool(self._call("delete", _key(held.scope)))

    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        freed = super().release(claim, failed=failed)
        if freed:  # the claim ends last: a request that finds it ended finds the new state too
            self._call("delete", _alive(claim.owner))
        return freed

    def _keep(self, claim: KeyClaim) -> bool:
        """Let the claim last until its record is written. False: another request has taken it over."""
        for pause in PAUSES:
            if self._extend(claim):
                return True
            found = self._record(claim.scope)
            if found is None or found.owner != claim.owner:
                return False
            time.sleep(pause)  # another request notes that the outcome is unknown, which the answer then corrects
        return False

    def _extend(self, claim: KeyClaim) -> bool:
        """Let the claim last for ``claim_ttl`` seconds from now. False: another request looks at it as expired."""
        key, seconds = _alive(claim.owner), _whole(claim.claim_ttl)
        if self._call("touch", key, seconds):
            return bool(self._call("get", key) == claim.owner)
        return bool(self._call("add", key, claim.owner, seconds))

    def _replace(self, record: Record, states: Sequence[str], ttl: float, values: dict[str, Any]) -> bool:
        """Change a record whose claim has ended, unless its owner renews it or another request is first."""
        key = _alive(record.owner)
        if not self._call("add", key, "", TAKING_OVER):
            return False
        try:
            return self._write(record, states, ttl, values)
        finally:
            self._call("delete", key)

    def _write(self, held: KeyClaim | Record, states: Sequence[str], ttl: float, values: dict[str, Any]) -> bool:
        """Change a record that nobody else can change meanwhile."""
        found = self._entry(held, states)
        if found is None:
            return False
        self._call("set", _key(held.scope), {**found, **stored(held.scope, values)}, _whole(ttl))
        return True

    def _entry(self, held: KeyClaim | Record, states: Sequence[str]) -> dict[str, Any] | None:
        """What is stored for a claim, unless it has another owner by now or is in none of ``states``."""
        found: Any = self._call("get", _key(held.scope))
        return found if _is_whole(found) and found["owner"] == held.owner and found["state"] in states else None

    def _record(self, scope: str) -> Record | None:
        entry = self._call("get", _key(scope))
        if entry is None:
            return None
        if not _is_whole(entry):  # it may belong to a request that was carried out
            return Record(scope=scope, state=UNKNOWN, owner="", fingerprint="")
        *texts, answer, phases = (entry[name] for name in FIELDS)
        return record_of([*texts, False, answer, phases])

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the cache. BackendUnavailable for any error: each cache raises the errors of its driver."""
        try:
            return getattr(caches[self.alias], method)(*args)
        except Exception as error:
            raise BackendUnavailable("The cache of idempotency keys cannot be used.") from error


def _is_whole(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() >= {*FIELDS}


def _key(scope: str) -> str:
    return PREFIX + scope


def _alive(owner: str) -> str:
    """The entry that exists while the claim of ``owner`` lasts."""
    return f"{PREFIX}alive:{owner}"


def _whole(seconds: float) -> int:
    """Whole seconds, and one more: some caches ignore fractions, and end an entry up to a second early."""
    return math.ceil(seconds) + 1
