"""The values that cross every boundary: what is asked of an engine, what it gave, what an operator sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .keys import LockKey

# So many of those who wait for a lock are named.
MOST_WAITING = 20

Scope = Literal["session", "transaction"]


@dataclass(slots=True, kw_only=True, frozen=True)
class Claim:
    """What is asked of an engine.

    ``ttl`` is in seconds and None where the engine keeps a lock for as long as its session lives. ``token`` is drawn
    anew for each claim and proves ownership to engines that store it; it is empty for the others. ``scope`` is
    "transaction" where the lock shall live on the caller's own database connection and die with its transaction.
    ``answer_by`` is the monotonic time by which the engine must have answered, whatever the answer is. ``limit`` is 0
    for a lock; for a semaphore it is how many may hold ``key`` at once, each with a claim and a token of its own.
    """

    key: LockKey
    shared: bool = False
    ttl: float | None = None
    token: str = field(default="", repr=False)
    scope: Scope = "session"
    answer_by: float = 0.0
    limit: int = 0


class Note(NamedTuple):
    """What is written down of a lock whose engine keeps only a hash of the name.

    ``session`` is what the server calls the session that holds it, 0 if only the name is to be noted, and negative if
    that session has given it back; ``since`` is when the hold began, on the monotonic clock of this process.
    """

    key: LockKey
    session: int = 0
    since: float = 0.0
    holder: str = ""


class Noted(NamedTuple):
    """What now stands there for a key: the name that came first, and ``other`` if a second one has the same key."""

    key: str
    alias: str
    name: str
    other: str


class Grant(NamedTuple):
    """What an engine gave; a tuple, because one is made for every acquire.

    ``acquired_at`` and ``valid_until`` are seconds on the clock of ``clock.monotonic()``. ``valid_until`` counts from
    before the request was sent, less drift, and is None without a TTL. ``session`` is the engine's own business.
    """

    claim: Claim
    acquired_at: float
    fence: int | None = None
    valid_until: float | None = None
    session: Any = None


@dataclass(slots=True, kw_only=True, frozen=True)
class LockInfo:
    """What an operator sees of one held lock.

    ``backend`` is the alias. ``key`` is what the engine calls the lock, ``name`` what the code calls it, None if that
    is not known. ``waiters`` is how many wait at least, None if the engine cannot tell: a process stands in line
    at a server once for a lock, and callers that queue in there, behind its first one or behind a holder of their own
    process, are known to that process only. ``waiting`` says who, first come first, at most 20 of them. ``details``
    has what only some engines know: ``also_holds``, what else the holder's session holds, and ``collision``, another
    name with the same key.
    """

    backend: str
    key: str
    name: str | None = None
    shared: bool = False
    holder: str | None = None
    acquired_at: datetime | None = None
    expires_at: datetime | None = None
    fence: int | None = None
    waiters: int | None = None
    waiting: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, frozen=True)
class BackendReport:
    """The held locks of one alias. A backend that did not answer has no locks and ``error``, the class of the error.

    ``breakable``: can :func:`django_distlock.break_lock` take its named locks away?
    """

    alias: str
    backend: str
    locks: tuple[LockInfo, ...] = ()
    error: str | None = None
    breakable: bool = False


@dataclass(slots=True, frozen=True)
class Finding:
    """What a look at a server found. An "error" makes locks fail, or let two in; a "warning" may do so some day; "info"
    is for who reads. ``hint`` says what to do. ``alias`` is empty for what concerns all."""

    level: Literal["error", "warning", "info"]
    text: str
    hint: str = ""
    alias: str = ""


def drift(ttl: float) -> float:
    """Seconds by which a lease is held to be shorter than its TTL: 1 % for clock rates and 2 ms for rounding.

    The allowance of the Redlock description (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/).
    """
    return ttl * 0.01 + 0.002
