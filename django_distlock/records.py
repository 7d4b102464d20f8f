"""The values that pass between the layers: requests to an engine, its results, and what operators see."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from .keys import LockKey

# Waiters of a lock that are named.
MOST_WAITING = 20

Scope = Literal["session", "transaction"]


class Claim(NamedTuple):
    """A request to an engine for a lock. A tuple, because every acquire creates one.

    ``ttl`` is in seconds; None where the engine keeps a lock as long as its session lives. ``token`` is a new random
    text that proves ownership to engines that store it, and empty for the others. ``scope`` is "transaction" where the
    lock lives on the caller's database connection and ends with its transaction. ``answer_by`` is the monotonic time by
    which the engine must answer. ``limit`` is 0 for a lock, and for a semaphore the number of claims, each with a
    different token, that may hold ``key`` at the same time.
    """

    key: LockKey
    shared: bool = False
    ttl: float | None = None
    token: str = ""
    scope: Scope = "session"
    answer_by: float = 0.0
    limit: int = 0

    def __repr__(self) -> str:
        """Without the token, which is a secret."""
        return f"<Claim {self.key.name!r}{' shared' if self.shared else ''}, ttl {self.ttl}, scope {self.scope}>"


#: A Claim of all its fields in a tuple. The class itself makes one by a function of Python.
claim_of: Callable[[tuple[LockKey, bool, float | None, str, Scope, float, int]], Claim] = partial(tuple.__new__, Claim)


class Grant(NamedTuple):
    """A lock that an engine has granted. A tuple, because every acquire creates one.

    ``acquired_at`` and ``valid_until`` are seconds of ``clock.now()``. ``valid_until`` counts from before the
    request was sent, less drift, and is None without a TTL. ``session`` is for the engine alone.
    """

    claim: Claim
    acquired_at: float
    fence: int | None = None
    valid_until: float | None = None
    session: Any = None


#: A Grant of all its five fields in a tuple. The class itself makes one by a function of Python.
grant_of: Callable[[tuple[Claim, float, int | None, float | None, Any]], Grant] = partial(tuple.__new__, Grant)


@dataclass(slots=True, kw_only=True, frozen=True)
class LockInfo:
    """One held lock, as an operator sees it.

    ``backend`` is the alias, ``key`` the engine's key of the lock, ``name`` its name in the code, behind its namespace
    if it has one; None if that is not known. ``waiters`` is the least number of waiters, None if the engine cannot
    tell: a process queues once at a server for a lock, and only that process knows the callers that wait in it.
    ``waiting`` names the first 20 of them, in order. ``details`` has what only some engines know: among others
    ``also_holds``, the other locks of the holder's session.
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
    """The held locks of one alias. If its backend did not answer, there are no locks, and ``error`` is the class of the
    error. ``breakable`` says whether :func:`django_distlock.break_lock` can break its named locks."""

    alias: str
    backend: str
    locks: tuple[LockInfo, ...] = ()
    error: str | None = None
    breakable: bool = False


@dataclass(slots=True, frozen=True)
class Finding:
    """A result of ``distlock doctor``. An "error" makes locks fail, or lets two processes hold one; a "warning" may do
    so later; "info" is neither. ``hint`` says what to do. ``alias`` is empty if all are concerned."""

    level: Literal["error", "warning", "info"]
    text: str
    hint: str = ""
    alias: str = ""


def new_token() -> str:
    """A random text that proves ownership: 128 bits, 32 hexadecimal digits."""
    return os.urandom(16).hex()  # what secrets.token_hex() reads, without its four calls


@lru_cache(maxsize=64)  # it is asked at each acquire, and TTLs are few
def drift(ttl: float) -> float:
    """Seconds by which a lease counts as shorter than its TTL: 1 % for clock rates and 2 ms for rounding.

    The allowance of the Redlock description (https://redis.io/docs/latest/develop/use/patterns/distributed-locks/).
    """
    return ttl * 0.01 + 0.002
