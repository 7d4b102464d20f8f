"""The values of leases: what is locked, who wants it, its row, and what a client that asks is told. No Django."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from django_distlock.keys import validate_name
from django_distlock.storage.values import LONGEST_PRINCIPAL, check_id, exact, micros, shown

if TYPE_CHECKING:
    from datetime import datetime

# "claim" takes a free row, or that of another tab of the same principal; "adopt" a free one, or that of the lease that
# the tab had before; "takeover" any.
Verb = Literal["claim", "adopt", "takeover"]
LostReason = Literal[
    "expired",
    "released",
    "broken",
    "taken",
    "max_hold",
    "permission",
    "logged_out",
    "taken_over",
    "other_tab",
    "deleted",
    "saved",
]
# A lease without a longest hold ends after a hundred years.
NO_END = 100 * 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Resource:
    """What is locked in a database: an object, or a name that browsers lock (``pk``, without a ``model``).

    ``model`` is the label of its topmost concrete model, ``pk`` the exact text of its primary key there. ``kind`` is
    the label of the model that the form edits: a child of multi-table inheritance has the lock of its parent.
    ``schema`` is that of the tenant, "" without tenants: they have objects with the same keys.
    """

    database: str
    model: str
    pk: str
    kind: str = field(default="", compare=False)
    schema: str = ""

    @property
    def digest(self) -> str:
        """The key of the row: databases compare text by rules of their own, digests are compared exactly."""
        if not self.model:
            return digest_of(self.pk)
        schema = f"{self.schema}\0" if self.schema else ""
        return hashlib.sha256(f"{schema}{self.model}\0{self.pk}".encode()).hexdigest()

    def columns(self) -> dict[str, Any]:
        """For the statements."""
        return {"digest": self.digest, "model": self.model, "name": self.pk}


def named(database: str, name: str) -> Resource:
    """The name of a browser lock. TypeError or ValueError if it can name none."""
    return Resource(database, "", check_name(name))


class Holder(Protocol):
    """A user, a visitor, or a piece of code: ``principal`` says who it is ("user:5"), ``label`` is for others."""

    @property
    def principal(self) -> str: ...
    @property
    def label(self) -> str: ...


def claim_of(
    principal: str, label: str, lease: str, ttl: float, *, hold: float = NO_END, idle: float = 0.0, **more: Any
) -> dict[str, Any]:
    """Who wants a row, by which lease, for ``ttl`` seconds, and for at most ``hold`` with all renewals; for statements.

    ``idle`` are the seconds since the last input. ValueError for a principal of a wrong length, or a lease that is no
    id.
    """
    if not 0 < len(principal) <= LONGEST_PRINCIPAL:
        raise ValueError(f"principal must have 1 to {LONGEST_PRINCIPAL} characters.")
    return {
        "principal": exact(principal),
        "label": shown(label),
        "lease": check_id("lease", lease),
        "ttl": micros(ttl),
        "hold": micros(hold),
        "first": micros(min(ttl, hold)),
        "idle": micros(idle),
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
    saving: bool = False  # another transaction had locked the row: a save was in progress

    @property
    def held(self) -> bool:
        """Is it held now?"""
        return bool(self.lease) and self.expires_in > 0

    def is_of(self, principal: str, lease: str) -> bool:
        """Is it this lease of this principal? Another one may have chosen the same id. "" is any principal."""
        return bool(lease) and self.lease == lease and (not principal or self.principal == exact(principal))

    def is_held_by_another(self, principal: str) -> bool:
        """Does another user hold it now?"""
        return self.held and self.principal != principal

    def may_take(self, verb: Verb, principal: str, leases: tuple[str, ...]) -> bool:
        """May the caller have the row, as it was read? ``leases``: its own, and the one that its tab had before."""
        if not self.held or verb == "takeover":
            return True
        return self.principal == exact(principal) and (verb == "claim" or self.lease in leases)

    def has_changed_since(self, writes: int | None) -> bool:
        """Has a save under the lock been committed since ``writes`` was read? None: there was no row then.

        A new row has no ``changed_at``. Rows are deleted only after FORM_TTL without a save, when no rendered form can
        be older.
        """
        return self.changed_at is not None and self.writes != writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The answer to a claim that is refused.

    ``own``: the holder is another tab of the same principal. ``saving``: a save is in progress, and the claim did not
    wait for it. ``holder`` is None if the row is not visible yet.
    """

    holder: Row | None
    own: bool = False
    saving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The answer to the renewal of a lease that is gone. ``by`` is the label of the present or last holder.

    ``row`` is the row as it is now; None if there is none.
    """

    reason: LostReason
    by: str = ""
    row: Row | None = None


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
