"""The values of browser locks: a lease, the answer to an acquire that is refused, and a lease that is lost."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from django_distlock.keys import validate_name

if TYPE_CHECKING:
    from datetime import datetime

LostReason = Literal["expired", "released", "broken", "taken", "max_hold", "permission", "logged_out"]


def check_name(name: str) -> str:
    """Return ``name`` if it can name a lock: 1 to 512 characters that every database can store.

    TypeError for another type; ValueError for a wrong length, NUL, or half of a surrogate pair.
    """
    validate_name(name)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError("The name of a browser lock must not contain half of a surrogate pair.") from None
    if "\0" in name:
        raise ValueError("The name of a browser lock must not contain NUL.")
    return name


def digest_of(name: str) -> str:
    """The key of the row of a name: databases compare text by rules of their own, digests are compared exactly."""
    return hashlib.sha256(check_name(name).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserLease:
    """A name and its holder. ``age`` and ``expires_in`` are seconds by the clock of the database.

    ``fence`` rises with each grant of the name. A name that is free has the lease "".
    """

    name: str
    lease: str
    principal: str
    label: str
    fence: int
    since: datetime
    age: float
    expires_in: float

    @property
    def held(self) -> bool:
        """Is the name held now?"""
        return bool(self.lease) and self.expires_in > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The answer to an acquire that is refused.

    ``place`` is the number of waiters before this one. ``queued``: a ticket keeps that place, if the caller asks again
    within two ``interval`` seconds. ``crowded``: the row was busy, for example with a request that the lock protects,
    so that ``holder`` may be None; try again soon.
    """

    holder: BrowserLease | None
    place: int
    queued: bool
    crowded: bool = False
    interval: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How many leases and waiting places a principal may have; None for any number."""

    leases: int | None = None
    places: int | None = None

    def refuses(self, leases: int, places: int) -> bool:
        """Is one more too many for a principal that has so many?"""
        full = self.leases is not None and leases >= self.leases
        return full or (self.places is not None and places >= self.places)


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Full:
    """The answer to an acquire of a principal that has as many leases or places as it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost:
    """The answer to the renewal of a lease that is gone."""

    lease: str
    reason: LostReason


class Head(NamedTuple):
    """Who has a name ("": no one), and who is next in its queue, both as :func:`holder_of` says."""

    holder: str
    first: str | None
    previous: str = ""  # the lease before, and why it ended
    ended: str = ""

    def why(self, lease: str) -> str:
        """Why this lease, which had the name, has it no more."""
        if self.ended and self.previous == lease:
            return self.ended
        return "taken" if self.holder else "expired"
