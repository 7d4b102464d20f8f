"""What the two stores of the lease table have in common: the values that go in and out, and how they fail."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django_distlock.backends.text import readable, short
from django_distlock.concurrency.caller import asker
from django_distlock.records import MOST_WAITING, LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_distlock.concurrency.flow import Flow

# A waiter of a process that does not tell who it is.
UNKNOWN = "unknown"
# A waiter that has not been seen for this long is passed over; it keeps its place for when it comes back.
GRACE = 1.0
# A waiter says that it lives this often.
SIGN_OF_LIFE = 0.3
# Waiters that have not been seen for this long are deleted.
DEAD = 60.0
# Leases that ended longer ago than this may be pruned: the clock alone then keeps the fence rising.
KEPT = 24 * 3600.0
# The place of somebody who has no ticket: behind everybody.
NOWHERE = 2**62

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CENTURY = 3.2e9  # seconds


class StoreError(Exception):
    """The store did not do what was asked. ``uncertain``: it may have, or may do so later."""

    def __init__(self, message: str, *, uncertain: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain


class Store(Protocol):
    """Where the leases are. ``run`` does one operation by the monotonic time ``until``, or raises StoreError."""

    def run(self, until: float, operation: str, *args: Any) -> Flow[Any]: ...


class Crowded(StoreError):
    """There was no time left to ask: the session was busy, but it works."""


class Ticket(NamedTuple):
    """A place in the queue, and how many were ahead when it was drawn."""

    place: int
    ahead: int


class Look(NamedTuple):
    """What a waiter sees: whose the live lease is, its fence, how many are ahead, and its own place."""

    token: str | None
    fence: int | None
    ahead: int
    place: int | None


class Row(NamedTuple):
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


def rows_of(found: Iterable[Sequence[Any]]) -> list[Row]:
    """One for each lease, from one for each of its waiters, with their tokens and what they tell, in order."""
    rows: list[Row] = []
    for lease, each in groupby(found, key=lambda row: row[:7]):
        waiting = [told or UNKNOWN for *_, token, told in each if token is not None]
        rows.append(Row._make((*lease, len(waiting), tuple(waiting[:MOST_WAITING]))))
    return rows


def microseconds(seconds: float) -> int:
    """At most a century: sums of it fit into 64 bits and into a datetime."""
    return int(min(seconds, _CENTURY) * 1_000_000)


def moment(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


class Holder:
    """Who asks, as host:pid:thread or task."""

    def __init__(self) -> None:
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._known: dict[str, str] = {}

    def text(self) -> str:
        name = asker()
        text = self._known.get(name)
        if text is None:
            if len(self._known) >= 1000:
                self._known.clear()
            text = self._known[name] = short(f"{self._process}:{name}")
        return text
