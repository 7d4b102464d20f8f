"""The operations of a storage. Each is one short atomic step.

A storage that does not answer raises BackendUnavailable. One that stays busy for longer than it waits (a locked SQLite
file, a deadlock, a lock timeout) raises LockNotAcquired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_distlock.idempotency.records import KeyClaim, Record, StoredResponse


class TooManyKeys(Exception):
    """The principal has as many unexpired keys as its quota allows; ``seconds`` until the first of them ends."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Too many keys; the first ends in {seconds:.0f} s.")
        self.seconds = seconds


class Storage(ABC):
    """Records by scope.

    Each write names the owner token of a claim. If the record has another owner, it stays as it is and the method
    returns False.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @abstractmethod
    def claim(self, claim: KeyClaim) -> Record | None:
        """Claim the key. None: it was free and is claimed now. Else the record that is there. :exc:`TooManyKeys`."""

    @abstractmethod
    def read(self, scope: str) -> Record | None:
        """The record, if there is one."""

    @abstractmethod
    def take_over(self, record: Record, claim: KeyClaim) -> bool:
        """Replace the claim of ``record`` by ``claim``, unless the record has changed since it was read.

        Its phases stay, unless they belong to other data or to a request that was answered.
        """

    @abstractmethod
    def hold(self, record: Record, ttl: float) -> bool:
        """Set the state "unknown" for an expired claim, unless the record has changed since it was read."""

    @abstractmethod
    def complete(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        """Store the answer, for ``claim.ttl`` seconds from now."""

    @abstractmethod
    def add_body(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        """Store the body of an answer that was rendered after :meth:`complete`."""

    @abstractmethod
    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        """Free the key. ``failed``: keep the finished phases for the next attempt."""

    @abstractmethod
    def renew(self, claim: KeyClaim) -> bool:
        """Extend the claim to ``claim.claim_ttl`` seconds from now."""

    @abstractmethod
    def save_phases(self, claim: KeyClaim, phases: str) -> bool:
        """Store the results of the finished phases, given as JSON."""

    def close(self) -> None:  # noqa: B027 - a storage may have nothing to close
        """Close the connection of this thread; for the background threads of the package."""
