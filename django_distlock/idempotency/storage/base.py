"""What a storage does with claims and answers: nine operations, made of a few primitives that each storage has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from django_distlock.idempotency.records import CLAIMED, COMPLETED, FAILED, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.idempotency.records import KeyClaim, Record, StoredResponse

# The states of a request that has no answer yet.
OPEN = (CLAIMED, FAILED, UNKNOWN)


class TooManyKeys(Exception):
    """The principal has as many unexpired keys as its quota allows; ``seconds`` until the first of them ends."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Too many keys; the first ends in {seconds:.0f} s.")
        self.seconds = seconds


class Storage(ABC):
    """Records by scope. Each operation is one short atomic step.

    Each write names the owner token of a claim and the states that it may change. If the record has another owner or
    another state, it stays as it is and the method returns False: a late worker must not overwrite the record of the
    next one.

    Raises BackendUnavailable if the store is down, LockNotAcquired if it is busy (a locked SQLite file, a deadlock, a
    lock timeout).
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    # -- what each storage has

    @abstractmethod
    def claim(self, claim: KeyClaim, *, last: bool = True) -> Record | None:
        """Claim the key. None: it was free and is claimed now. Else the record that is there. :exc:`TooManyKeys`.

        In a transaction it does not wait for another transaction that has the key: it returns the committed record, or
        one that only says "in flight". ``last``: the caller does not try again in this transaction.
        """

    @abstractmethod
    def read(self, scope: str) -> Record | None:
        """The record, if there is one."""

    @abstractmethod
    def renew(self, claim: KeyClaim) -> bool:
        """Extend the claim to ``claim.claim_ttl`` seconds from now."""

    @abstractmethod
    def change(
        self, held: KeyClaim | Record, states: Sequence[str], ttl: float, expires: float | None = None, **values: Any
    ) -> bool:
        """Set ``values`` in the record of ``held`` if it is in one of ``states``; keep the record ``ttl`` seconds.

        Of a Record, which somebody else holds, only if the claim has expired or its request has failed. ``expires``:
        seconds until its claim or its answer ends, where that changes. ``values`` are fields; phases are given as JSON.
        """

    @abstractmethod
    def remove(self, held: KeyClaim, states: Sequence[str]) -> bool:
        """Delete the record of ``held`` if it is in one of ``states``."""

    # -- what is made of it

    def take_over(self, record: Record, claim: KeyClaim) -> bool:
        """Replace the claim of ``record`` by ``claim``, unless the record has changed since it was read.

        Its phases stay, unless they belong to other data or to a request that was answered.
        """
        kept = record.state != COMPLETED and record.fingerprint == claim.fingerprint
        phases = {} if kept else {"phases": "{}"}
        mine = {"state": CLAIMED, "owner": claim.owner, "fingerprint": claim.fingerprint, "answer": None, **phases}
        return self.change(record, (record.state,), claim.ttl, claim.claim_ttl, **mine)

    def hold(self, record: Record, ttl: float) -> bool:
        """Set the state "unknown" for an expired claim, unless the record has changed since it was read."""
        return self.change(record, (CLAIMED,), ttl, ttl, state=UNKNOWN)

    def complete(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        """Store the answer, for ``claim.ttl`` seconds from now."""
        return self.change(claim, OPEN, claim.ttl, claim.ttl, state=COMPLETED, answer=answer)

    def add_body(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        """Store the body of an answer that was rendered after :meth:`complete`."""
        return self.change(claim, (COMPLETED,), claim.ttl, answer=answer)

    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        """Free the key. ``failed``: keep the finished phases for the next attempt."""
        return self.change(claim, OPEN, claim.ttl, state=FAILED) if failed else self.remove(claim, OPEN)

    def save_phases(self, claim: KeyClaim, phases: str) -> bool:
        """Store the results of the finished phases, given as JSON."""
        return self.change(claim, OPEN, claim.ttl, phases=phases)
