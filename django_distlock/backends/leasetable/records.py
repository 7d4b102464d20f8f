"""The values of the lease table that go in and out, and its errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.backends.text import readable
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import MOST_WAITING, LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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


class StoreError(BackendUnavailable):
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


def moment(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)
