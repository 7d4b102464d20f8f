"""The values of leases: a row of the table, who wants it, what a browser that asks for a name is told. No Django."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django_distlock.keys import validate_name
from django_distlock.storage.values import check_id, exact, micros, shown

if TYPE_CHECKING:
    from datetime import datetime

LostReason = Literal["expired", "released", "broken", "taken", "max_hold", "permission", "logged_out"]
May = Literal["own", "same", "any"]
# A lease without a longest hold ends after a hundred years.
NO_END = 100 * 366 * 86400.0


class Key(NamedTuple):
    """What is locked: an object (``model``, and its key as ``name``), or a name that browsers lock (no ``model``)."""

    digest: str
    model: str
    name: str


class Claim(NamedTuple):
    """Who wants a row, by which lease, for ``ttl`` seconds, and for at most ``hold`` with all renewals."""

    principal: str
    label: str
    lease: str
    ttl: float
    hold: float = NO_END
    idle: float = 0.0  # seconds since the last input

    def parameters(self, key: Key, **more: Any) -> dict[str, Any]:
        """For the statements. ValueError for a lease that is no id."""
        return {
            **key._asdict(),
            "principal": exact(self.principal),
            "label": shown(self.label),
            "lease": check_id("lease", self.lease),
            "ttl": micros(self.ttl),
            "hold": micros(self.hold),
            "first": micros(min(self.ttl, self.hold)),
            "idle": micros(self.idle),
            **more,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """An object or a name, and its holder. A free one has the lease "".

    ``age``, ``idle`` (since the last input) and ``expires_in`` are seconds by the clock of the database. ``fence``
    rises with each grant, ``writes`` with each save. ``previous`` is the lease before this one, ``ended`` why it ended.
    """

    digest: str
    model: str
    name: str
    lease: str
    principal: str
    label: str
    fence: int
    writes: int
    since: datetime
    changed_at: datetime | None
    age: float
    idle: float
    expires_in: float
    at_its_end: bool  # the lease ends, or has ended, because of its longest hold
    page_left: bool  # only the tab that had it may adopt it
    previous: str
    ended: str
    changed_by: str

    @property
    def held(self) -> bool:
        """Is it held now?"""
        return bool(self.lease) and self.expires_in > 0

    def is_of(self, principal: str, lease: str) -> bool:
        """Is it this lease of this principal? Another one may have chosen the same id. "" is any principal."""
        return bool(lease) and self.lease == lease and (not principal or self.principal == exact(principal))

    def may_take(self, claim: Claim, may: May, former: str = "") -> bool:
        """May the caller have the row, as it was read? ``former`` is the lease that its tab had before."""
        if not self.held or may == "any":
            return True
        own = self.principal == exact(claim.principal)
        return own and (may == "own" or self.lease in (claim.lease, former))


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


def holder_of(lease: str, principal: str) -> str:
    """The identity of a tab that holds or waits: a client chooses the id of its lease, another may choose the same."""
    return hashlib.sha256(f"{lease}\0{exact(principal)}".encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The answer to an acquire that is refused.

    ``place`` is the number of waiters before this one. ``queued``: a ticket keeps that place, if the caller asks again
    within two ``interval`` seconds. ``crowded``: the row was busy, for example with a request that the lock protects,
    so that ``holder`` may be None; try again soon.
    """

    holder: Row | None
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
