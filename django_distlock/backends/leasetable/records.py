"""What the two stores of the lease table have in common: interface, values that go in and out, and errors."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from django_distlock.backends.text import readable, short
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.origin import describe_caller
from django_distlock.records import MOST_WAITING, LockInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django_distlock.concurrency.flow import Flow
    from django_distlock.records import Claim

S = TypeVar("S")
P = ParamSpec("P")

# Shown for a waiter whose process did not write who it is.
UNKNOWN = "unknown"
# Seconds without a sign of life after which a waiter is passed over. It keeps its place until it is deleted.
GRACE = 1.0
# Seconds between two signs of life of a waiter.
SIGN_OF_LIFE = 0.3
# Seconds without a sign of life after which a waiter is deleted.
DEAD = 60.0
# Seconds after which a lease that ended may be pruned: by then the clock alone keeps the fence rising.
KEPT = 24 * 3600.0
# The place of a caller without a ticket: behind all tickets.
NOWHERE = 2**62

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CENTURY = 3.2e9  # seconds


class StoreError(Exception):
    """An operation failed. ``uncertain``: it may have been executed, or may be executed later."""

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain


class StoreOverloaded(StoreError):
    """Other callers of this process used the session for all the time that there was. The server works."""


class Ticket(NamedTuple):
    """A place in the queue, and how many were ahead when it was drawn."""

    place: int
    ahead: int


class Look(NamedTuple):
    """The token and the fence of the live lease, how many waiters are ahead, and the waiter's own place."""

    token: str | None
    fence: int | None
    ahead: int
    place: int | None


class LiveLease(NamedTuple):
    """A live lease. ``digest`` in hexadecimal; times in microseconds since 1970."""

    digest: str
    name: str
    token: str
    fence: int
    acquired_at: int
    expires_at: int
    holder: str
    waiters: int
    waiting: tuple[str, ...]

    def info(self, backend: str) -> LockInfo:
        return LockInfo(
            backend=backend,
            key=self.digest,
            name=readable(self.name),
            holder=self.holder,
            acquired_at=moment(self.acquired_at),
            expires_at=moment(self.expires_at),
            fence=self.fence,
            waiters=self.waiters,
            waiting=self.waiting,
            details={"token": self.token[:8]},
        )


def rows_of(found: Iterable[Sequence[Any]]) -> list[LiveLease]:
    """One row for each lease, from rows of a lease and one of its waiters, or none, in order."""
    rows: list[LiveLease] = []
    for lease, each in groupby(found, key=lambda row: row[:7]):
        waiting = [holder or UNKNOWN for *_, token, holder in each if token is not None]
        rows.append(LiveLease._make((*lease, len(waiting), tuple(waiting[:MOST_WAITING]))))
    return rows


class Statements(ABC, Generic[S]):
    """The operations on the leases of one alias. Each is executed on a session: of a server, or an open file."""

    @abstractmethod
    def enter(self, session: S, claim: Claim, holder: str, queue: bool) -> tuple[int | None, Ticket | None]:
        """Take the lease, or else draw a ticket if ``queue``; the fence, and the ticket."""

    @abstractmethod
    def look(self, session: S, claim: Claim, place: int) -> Look:
        """How the lease and the queue are, without writing."""

    @abstractmethod
    def join(self, session: S, claim: Claim, holder: str) -> Ticket:
        """Draw a ticket."""

    @abstractmethod
    def take_turn(self, session: S, claim: Claim, holder: str, place: int) -> int | None:
        """Take the lease if no live waiter is before ``place``, and leave the queue; the fence, or None."""

    @abstractmethod
    def refresh(self, session: S, claim: Claim, place: int) -> None:
        """Note that the waiter is alive."""

    @abstractmethod
    def leave(self, session: S, claim: Claim) -> None:
        """Delete the ticket, and those of dead waiters."""

    @abstractmethod
    def give(self, session: S, claim: Claim) -> bool:
        """Free the lease; False if the claim does not hold it."""

    @abstractmethod
    def extend(self, session: S, claim: Claim, ttl: float) -> bool:
        """Let the lease live for ``ttl`` seconds from now; False if the claim does not hold it."""

    @abstractmethod
    def holds(self, session: S, claim: Claim) -> bool:
        """Does the claim hold the lease?"""

    @abstractmethod
    def rows(self, session: S) -> list[LiveLease]:
        """The live leases of this alias."""

    @abstractmethod
    def break_lease(self, session: S, digest: str, fence: int) -> bool:
        """Free the lease that was granted with ``fence``; False if it has ended."""

    @abstractmethod
    def prune(self, session: S, after: Any, limit: int) -> tuple[int, Any]:
        """Delete leases that ended a day ago, among the ``limit`` ones with digests above ``after``; how many, and the
        last digest. It is None at the end of the table, when dead waiters are deleted."""


class Store(ABC, Generic[S]):
    """Where the leases are: it has the session and executes the statements on it."""

    statements: Statements[S]

    @abstractmethod
    def run(
        self, until: float, operation: Callable[Concatenate[S, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> Flow[Any]:
        """Execute one of the statements, again while it is worth while. StoreError at the monotonic time ``until``."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Is there a session to be closed once it is idle?"""

    @property
    @abstractmethod
    def used_at(self) -> float:
        """The monotonic time of the last statement."""

    def watch(self, now: float) -> float | None:
        """End a statement that has no time left; the deadline of the present one."""
        return None

    def run_watched(self, flow: Flow[Any]) -> Any:
        """Run ``flow`` for the thread that otherwise calls :meth:`watch`."""
        return run(flow)

    def close_idle(self) -> None:
        """Close the session unless it is in use."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the session. Leases are rows and stay; the next statement opens another session."""

    @abstractmethod
    def abandon(self) -> None:
        """In the child of a fork: leave the session to the parent."""


def microseconds(seconds: float) -> int:
    """At most a century: sums of it fit into 64 bits and into a datetime."""
    return int(min(seconds, _CENTURY) * 1_000_000)


def moment(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


class Holder:
    """The caller, as host:pid:thread or task."""

    def __init__(self) -> None:
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._known: dict[str, str] = {}

    def text(self) -> str:
        name = describe_caller()
        text = self._known.get(name)
        if text is None:
            if len(self._known) >= 1000:
                self._known.clear()
            text = self._known[name] = short(f"{self._process}:{name}")
        return text
