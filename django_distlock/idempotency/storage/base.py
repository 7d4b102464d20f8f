"""What a storage can do. Each method is one short step that is atomic by itself.

A storage that does not answer raises BackendUnavailable; one that is busy for longer than it waits (a locked SQLite
file, a deadlock, a lock timeout) raises LockNotAcquired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_distlock.idempotency.records import Answer, Claim, Record


class TooManyKeys(Exception):
    """The principal has as many keys that live as it may have; ``seconds`` until the first of them ends."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"Too many keys; the first ends in {seconds:.0f} s.")
        self.seconds = seconds


class Storage(ABC):
    """Rows by scope. Who writes names the owner token of its claim; a row that has another owner stays as it is, and
    the method returns False. Two for the same place are equal."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.alias == self.alias

    def __hash__(self) -> int:
        return hash((type(self), self.alias))

    @abstractmethod
    def claim(self, claim: Claim) -> Record | None:
        """None: the key was free and is ours now. Else what is there. :exc:`TooManyKeys`."""

    @abstractmethod
    def read(self, scope: str) -> Record | None:
        """What is there."""

    @abstractmethod
    def take_over(self, record: Record, claim: Claim) -> bool:
        """Make ``record`` ours, unless it has changed since it was read. Its phases stay, unless they are of
        other data or of a request that was answered."""

    @abstractmethod
    def hold(self, record: Record, ttl: float) -> bool:
        """The state "unknown" for a claim that ran out, unless it has changed since it was read."""

    @abstractmethod
    def complete(self, claim: Claim, answer: Answer) -> bool:
        """The answer, for ``claim.ttl`` seconds from now."""

    @abstractmethod
    def add_body(self, claim: Claim, answer: Answer) -> bool:
        """The body of an answer that was rendered after :meth:`complete`."""

    @abstractmethod
    def release(self, claim: Claim, *, failed: bool = False) -> bool:
        """Free the key. ``failed``: it has finished phases, which the next attempt has to know."""

    @abstractmethod
    def renew(self, claim: Claim) -> bool:
        """Another ``claim.claim_ttl`` seconds from now."""

    @abstractmethod
    def save_phases(self, claim: Claim, phases: str) -> bool:
        """The results of the finished phases, as JSON."""

    def close(self) -> None:  # noqa: B027 - a storage may have nothing to close
        """End what this thread has opened; for threads of our own."""
