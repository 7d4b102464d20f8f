"""One context's hold of one lock, the queue for it inside this process, and the search for deadlocks."""

from __future__ import annotations

import sys
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.caller import address
from django_distlock.concurrency.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django_distlock.backends.base import Backend
    from django_distlock.concurrency.parking import Parker
    from django_distlock.keys import LockKey
    from django_distlock.records import Grant, Scope


# Why the child of a fork has lost what its parent holds.
FORKED = "it belongs to the parent of this process"


class State(Enum):
    WAITING = auto()  # in the queue of this process
    CLAIMING = auto()  # asking the engine
    HELD = auto()
    DEFERRED = auto()  # released by everybody, kept until a transaction ends
    RELEASING = auto()  # being given back to the engine
    ENDED = auto()


class Hold:
    """One context's hold of one lock, shared by all Leases of that context."""

    __slots__ = (
        "abandoned",
        "address",
        "backend",
        "callbacks",
        "claimed_at",
        "grant",
        "held_at",
        "kept",
        "key",
        "leases",
        "listeners",
        "lost",
        "max_hold",
        "owner",
        "parker",
        "semaphore",
        "shared",
        "state",
        "template",
        "transactions",
        "ttl",
    )

    def __init__(self, backend: Backend, key: LockKey, owner: object, shared: bool, semaphore: int = 0) -> None:
        self.backend = backend
        self.key = key
        self.owner = owner
        # what its owner served when it asked
        self.address = address()
        self.shared = shared
        # how many may hold the key at once; 0: it is a lock
        self.semaphore = semaphore
        self.state = State.CLAIMING
        self.claimed_at = monotonic()
        # since when it is held; the grant counts from when it was asked for
        self.held_at = 0.0
        # the name as a decorator spells it
        self.template: str | None = None
        self.parker: Parker | None = None
        self.grant: Grant | None = None
        self.leases: set[Any] = set()
        self.lost: str | None = None
        self.callbacks: list[Callable[[], object]] = []
        # the open transactions that must end before the engine may give the lock away
        self.transactions: set[Any] = set()
        # on connections whose driver does not tell of a transaction begun by SQL
        self.listeners: tuple[Any, ...] = ()
        # was it ever released by everybody and kept for a transaction?
        self.kept = False
        # taken by an attempt that failed: given back at once, transaction or not
        self.abandoned = False
        self.ttl: float | None = None
        self.max_hold: float | None = None

    def in_use(self) -> bool:
        """Does anybody refer to one of its Leases, so that they may still be released?"""
        nobodys = {object()}
        references = [sys.getrefcount(lease) for lease in [*nobodys, *self.leases]]
        return max(references) > references[0]

    @property
    def scope(self) -> Scope:
        """Where the lock lives: on a session of ours, or on the caller's connection and with its transaction."""
        return self.grant.claim.scope if self.grant is not None else "session"

    @property
    def in_doubt(self) -> bool:
        """Nobody may rely on it now, though it may yet come back."""
        return self.grant is not None and self.state is not State.ENDED and self.backend.in_doubt(self.grant)

    @property
    def reason(self) -> str:
        """Why nobody may rely on it."""
        return self.lost or self.backend.doubt

    def excludes(self, other: Hold) -> bool:
        """Must the one wait for the other? What a context keeps for its own transaction never stands in its way."""
        if self.owner is other.owner and self.state is State.DEFERRED:
            return False
        return not (self.shared and other.shared)

    # as a target of Call: the wait in the queue of this process

    def park(self, timeout: float) -> bool:
        return self.parker is None or self.parker.park(timeout)

    async def apark(self, timeout: float) -> bool:
        return self.parker is None or await self.parker.apark(timeout)


class WaitQueue:
    __slots__ = ("holders", "limit", "queue")

    def __init__(self) -> None:
        self.limit = 0  # MAX_HELD, once somebody waits
        self.holders: list[Hold] = []
        self.queue: deque[Hold] = deque()

    def admits(self, new: Hold) -> bool:
        if new.semaphore:
            return len(self.holders) < new.semaphore
        return not any(holder.excludes(new) for holder in self.holders)

    def blockers(self, waiter: Hold) -> list[Hold]:
        """Whom ``waiter`` waits for: the holders, and those who came before it. What is being given back ends by itself
        and is waited for by nobody."""
        ahead: list[Hold] = []
        for other in self.queue:
            if other is waiter:
                break
            ahead.append(other)
        # a reader behind a writer waits for whom that writer waits for, other readers too
        while ahead and not ahead[-1].excludes(waiter):
            ahead.pop()
        holders = self.holders if ahead else [holder for holder in self.holders if holder.excludes(waiter)]
        return [holder for holder in holders if holder.state is not State.RELEASING] + ahead


def closes_circle(new: Hold, slot: WaitQueue, waiting: Mapping[object, Hold], slots: Mapping[bytes, WaitQueue]) -> bool:
    """Would ``new``, at the end of the queue of ``slot``, wait for itself? Walk from waiter to holder to what that
    holder waits for."""
    seen: set[int] = set()
    pending = [(slot, new)]
    while pending:
        here, waiter = pending.pop()
        for blocker in here.blockers(waiter):
            if blocker.owner is new.owner:
                return True
            beyond = waiting.get(blocker.owner)
            if beyond is None or id(beyond) in seen:
                continue
            seen.add(id(beyond))
            there = slots[beyond.key.digest]
            if there is not here:  # those ahead in one queue wait for nobody that this waiter does not wait for
                pending.append((there, beyond))
    return False
