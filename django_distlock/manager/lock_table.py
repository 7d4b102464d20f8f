"""The holders and waiters of this process: a registry in front of every engine.

Engines distinguish sessions, not tasks: all tasks on one session would get the lock. So one context of the process at a
time asks the engine for an exclusive lock; the others queue here, in order of arrival. The mutex guards bookkeeping in
memory only; no call under it blocks.
"""

from __future__ import annotations

import sys
import threading
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import in_task
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.origin import address
from django_distlock.concurrency.parking import Parker
from django_distlock.exceptions import DeadlockDetected, DistlockError
from django_distlock.records import drift

from .deadlock import would_deadlock

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from django_distlock.backends.base import Backend
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Grant, Scope


# Why the child of a fork has lost what its parent holds.
FORKED = "it belongs to the parent of this process"

# The acquire and release calls that an interrupt (KeyboardInterrupt, a task's soft time limit) has ended, by Lease, and
# the holds that the end of a transaction was to release when one came, each by itself. The keepalive thread gives back
# what they leave: see manager/interrupted.py. Python looks for signals only at calls and jumps, so an assignment to an
# item, in the handler of the first exception, is not interrupted by a second one.
interrupted_calls: dict[Any, Hold] = {}


class State(Enum):
    WAITING = auto()  # in the queue of this process
    CLAIMING = auto()  # the engine is being asked
    HELD = auto()
    DEFERRED = auto()  # released by its context, kept until a transaction ends
    RELEASING = auto()  # the engine is being asked to release it
    ENDED = auto()


# What each acquire and release uses: Python looks up an attribute of an Enum class slowly.
_CLAIMING, _HELD, _RELEASING, _ENDED = State.CLAIMING, State.HELD, State.RELEASING, State.ENDED


class Hold:
    """One context's hold of one lock, shared by all Leases of that context."""

    __slots__ = (
        "abandoned",
        "acquired",
        "address",
        "backend",
        "callbacks",
        "claim",
        "given",
        "giving",
        "grant",
        "held_at",
        "interrupted",
        "kept",
        "key",
        "leases",
        "listeners",
        "lost",
        "max_hold",
        "owner",
        "parker",
        "released_by",
        "semaphore",
        "shared",
        "state",
        "template",
        "transactions",
        "ttl",
    )

    def __init__(
        self,
        backend: Backend,
        key: LockKey,
        owner: object,
        shared: bool,
        semaphore: int = 0,
    ) -> None:
        self.backend = backend
        self.key = key
        self.owner = owner
        # the address that its owner served at the acquire
        self.address = address()
        self.shared = shared
        # how many callers may hold the key at once; 0: it is a lock
        self.semaphore = semaphore
        self.state = _CLAIMING
        # the start of the hold; the grant counts from the request to the engine
        self.held_at = 0.0
        # the name as written in a decorator
        self.template: str | None = None
        self.parker: Parker | None = None
        self.claim: Claim | None = None
        self.grant: Grant | None = None
        # True once the caller has its Lease, and once an interrupt has ended its acquire
        self.acquired = False
        self.interrupted = False
        self.leases: set[Any] = set()
        # True once the engine may have been asked to release it, and once it has it back
        self.giving = False
        self.given = False
        # the Lease whose release is to give it back, or the hold itself, if the end of its transactions is to
        self.released_by: Any = None
        self.lost: str | None = None
        self.callbacks: list[Callable[[], object]] = []
        # the open transactions that must end before the lock is released at the engine
        self.transactions: set[Any] = set()
        # on connections whose driver does not report a transaction begun by SQL
        self.listeners: tuple[Any, ...] = ()
        # True if it was ever released by its context and kept for a transaction
        self.kept = False
        # acquired by an attempt that failed: to be released at once, even inside a transaction
        self.abandoned = False
        self.ttl: float | None = None
        self.max_hold: float | None = None

    def in_use(self) -> bool:
        """Does other code refer to one of its Leases, so that they may still be released?"""
        unreferenced = {object()}
        references = [sys.getrefcount(lease) for lease in [*unreferenced, *self.leases]]
        return max(references) > references[0]

    def bounded(self, ttl: float) -> float:
        """``ttl``, but not beyond the end of ``max_hold``, which counts from the grant. It may be negative."""
        return ttl if self.max_hold is None else min(ttl, self.held_at + self.max_hold - clock.now())

    @property
    def scope(self) -> Scope:
        """Where the lock lives: on a dedicated session, or in a transaction on the caller's connection."""
        return self.grant.claim.scope if self.grant is not None else "session"

    @property
    def in_doubt(self) -> bool:
        """Is it unknown at present whether the engine still holds it?"""
        return self.grant is not None and self.state is not State.ENDED and self.backend.in_doubt(self.grant)

    @property
    def reason(self) -> str:
        """Why the lock cannot be relied on."""
        return self.lost or self.backend.doubt

    def excludes(self, other: Hold) -> bool:
        """Must ``other`` wait for this hold? A context never waits for a hold that it keeps for its transaction."""
        if self.owner is other.owner and self.state is State.DEFERRED:
            return False
        return not (self.shared and other.shared)

    # What asks the engine. The grant is stored where the engine's method returns: Python looks
    # for signals neither when a Python function returns to one nor at an assignment, so no interrupt can lose it.

    async def ask(self, claim: Claim, wait: float) -> Grant | None:
        backend = self.backend
        self.grant = await backend.atry_acquire(claim, wait) if in_task() else backend.try_acquire(claim, wait)
        return self.grant

    # The same for what releases it: a second release might take a lock from another reader of the session.

    async def give(self, grant: Any) -> bool:
        self.giving = True
        self.given = await self.backend.arelease(grant) if in_task() else self.backend.release(grant)
        return self.given

    def give_fast(self, grant: Grant) -> bool:
        """The engine's fast path; False if it is to be asked by :meth:`give`."""
        self.giving = True
        self.given = self.backend.release_fast(grant)
        return self.given


def leave_behind(hold: Hold, lease: Any) -> None:
    """Leave what a failed acquire may have got to the keepalive thread, once."""
    if hold.state is not State.ENDED and not hold.interrupted:
        hold.interrupted = True
        interrupted_calls[lease] = hold


class WaitQueue:
    """The holders of one key, and the contexts of this process that wait for it."""

    __slots__ = ("holders", "limit", "queue")

    def __init__(self, first: Hold) -> None:
        self.limit = 0  # MAX_HELD, once a context waits
        self.holders: list[Hold] = [first]
        self.queue: list[Hold] = []

    def admits(self, new: Hold) -> bool:
        if new.semaphore:
            return len(self.holders) < new.semaphore
        return not any(holder.excludes(new) for holder in self.holders)

    def blockers(self, waiter: Hold) -> list[Hold]:
        """The holds that ``waiter`` waits for: the holders, and those ahead of it in the queue.

        Holds that are being released are left out, and those whose acquire was interrupted: they end by themselves."""
        ahead: list[Hold] = []
        for other in self.queue:
            if other is waiter:
                break
            ahead.append(other)
        # a reader behind a writer waits for all that the writer waits for, other readers included
        while ahead and not ahead[-1].excludes(waiter):
            ahead.pop()
        holders = self.holders if ahead else [holder for holder in self.holders if holder.excludes(waiter)]
        return [hold for hold in holders + ahead if hold.state is not State.RELEASING and not hold.interrupted]


HELD = (State.HELD, State.DEFERRED)  # no set: to hash a State is a call of Python
UNFINISHED = frozenset({State.WAITING, State.CLAIMING, State.RELEASING})


def _upgrade(mine: Hold) -> str:
    """Why ``mine``, which is shared, is in the way of its own context, which asks for the lock exclusively."""
    if mine.state is State.DEFERRED:
        return (
            f"{mine.key.name!r} was taken shared in a transaction of this context, which keeps it until that ends: an "
            "exclusive lock would wait for itself. Take it exclusively at once, or after the transaction."
        )
    return (
        f"{mine.key.name!r} is held shared by this context, which now asks for it exclusively; it would wait for "
        "itself. Release the shared lock first, or take it exclusively at once."
    )


class LockTable:
    """All holds of this process.

    An interrupt (KeyboardInterrupt) may come inside any of its methods. Each change is done in one operation or found
    half done and finished later: see :meth:`mend`.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._slots: dict[bytes, WaitQueue] = {}
        self._waiting: dict[object, Hold] = {}
        self._total = 0
        # what is being taken out of the table
        self._ending: Hold | None = None

    def arrive(self, hold: Hold, may_wait: bool, reenter: bool, limit: int) -> Hold | None:
        """Ask for a place for a new hold.

        Returns a hold that is HELD (re-entry) or DEFERRED (to be verified), or the new one: CLAIMING (ask the engine)
        or WAITING (park first). Returns None if the lock is busy and the caller does not wait, or if this is a re-entry
        and ``reenter`` is false. Raises DeadlockDetected and, at ``limit`` holds of the backend, DistlockError. After
        any exception the caller ends the new hold, which is harmless if it got no place.
        """
        key, backend = hold.key, hold.backend
        with self._mutex:
            if self._ending is not None:
                self._end(self._ending)
            slot = self._slots.get(key.digest)
            if slot is not None and not hold.semaphore:
                mine = self._own(slot, hold.owner)
                if mine is not None:
                    if not reenter:
                        return None
                    if mine.shared and not hold.shared:
                        raise DeadlockDetected(_upgrade(mine))
                    return mine
            if self._total >= limit and self._count(backend) >= limit:
                raise DistlockError(
                    f"This process holds {limit} locks of alias {backend.alias!r}, which is its MAX_HELD. "
                    "Lock something coarser, or raise MAX_HELD in DISTLOCK."
                )
            if slot is None:
                self._slots[key.digest] = WaitQueue(hold)
                self._total += 1
                return hold
            if not slot.queue and slot.admits(hold):
                self._admit(slot, hold)
                return hold
            if not may_wait:
                return None
            self._enqueue(slot, hold, limit)
            return hold

    def _enqueue(self, slot: WaitQueue, hold: Hold, limit: int) -> None:
        if not hold.semaphore:
            self._refuse_circle(slot, hold)
        # a circle through a semaphore may be opened by another one of its holders: the deadline ends it (R8)
        hold.state = State.WAITING
        hold.parker = Parker()
        slot.limit = limit
        slot.queue.append(hold)
        if not hold.semaphore:
            self._waiting[hold.owner] = hold

    @staticmethod
    def _own(slot: WaitQueue, owner: object) -> Hold | None:
        for holder in slot.holders:
            if holder.owner is owner and holder.state in HELD:
                return holder
        return None

    def _admit(self, slot: WaitQueue, hold: Hold) -> None:
        # in this order: Python looks for signals when a call has returned, so that both are done, or neither
        hold.state = State.CLAIMING
        self._total += 1
        slot.holders.append(hold)

    def _count(self, backend: Backend) -> int:
        return sum(holder.backend is backend for slot in self._slots.values() for holder in slot.holders)

    def _holds_something(self, owner: object) -> bool:
        return any(holder.owner is owner for slot in self._slots.values() for holder in slot.holders)

    def _refuse_circle(self, slot: WaitQueue, new: Hold) -> None:
        """R8. A context that holds nothing closes no circle, which spares a long queue the search."""
        if self._holds_something(new.owner) and would_deadlock(new, slot, self._waiting, self._slots):
            raise DeadlockDetected(
                f"Waiting for {new.key.name!r} would never end: its holder waits, directly or through others, for a "
                "lock that this context holds. Take several locks with lock_all()."
            )

    @staticmethod
    def establish(hold: Hold, grant: Grant, lease: Any) -> None:
        """Note that the engine has granted the lock.

        Needs no mutex: only the claimant leaves the state CLAIMING, and does so last.
        """
        hold.grant = grant
        hold.held_at = clock.now()
        hold.leases.add(lease)
        hold.state = _HELD

    def listen(self, hold: Hold, listener: Any) -> None:
        """Start ``listener`` for this hold, and stop it when the hold ends."""
        with self._mutex:
            if hold.state is not State.ENDED and listener not in hold.listeners:
                hold.listeners = (*hold.listeners, listener)
                listener.start(hold)

    def enter_again(self, hold: Hold, lease: Any) -> bool:
        """Count one more Lease of the same context. False if the hold has just ended."""
        with self._mutex:
            if hold.state not in HELD or hold.lost is not None:
                return False
            hold.state = State.HELD
            hold.leases.add(lease)
            hold.acquired = True
            return True

    def leave(self, hold: Hold, lease: Any) -> bool:
        """Stop counting a Lease. True if it was the last one: the caller gives the lock back, or defers that.

        A lock that the end of a transaction frees is deferred here.
        """
        with self._mutex:
            hold.leases.discard(lease)
            if hold.leases or hold.state is not _HELD:
                return False
            if hold.transactions and hold.scope == "transaction":
                hold.kept = True
                hold.state = State.DEFERRED
                return False
            hold.released_by = lease
            hold.state = _RELEASING
            return True

    def defer(self, hold: Hold) -> None:
        """Keep it until its transactions have ended."""
        with self._mutex:
            if hold.state is State.RELEASING:
                hold.state = State.DEFERRED
                hold.kept = True

    def start_release(self, hold: Hold) -> bool:
        """Begin to release a hold whose transactions and Leases have ended. False if it is no longer held."""
        with self._mutex:
            if hold.state not in HELD:
                return False
            hold.released_by = hold
            hold.state = State.RELEASING
            return True

    def end(self, hold: Hold, states: Container[State] | None = None) -> bool:
        """End a hold that the engine has released or never granted, and let the next waiter ask.

        False if it had ended before, or is in none of ``states``, if they are given.
        """
        with self._mutex:
            if states is not None and hold.state not in states:
                return False
            if self._ending is None:
                self._ending = hold
            return self._end(hold)

    def mend(self) -> None:
        """Finish a change that an interrupted call has left half done."""
        with self._mutex:
            if self._ending is not None:
                self._end(self._ending)

    def _end(self, hold: Hold) -> bool:
        slot = self._slots.get(hold.key.digest)
        if (
            slot is not None
            and len(slot.holders) == 1
            and slot.holders[0] is hold
            and self._ending is hold
            and not slot.queue
            and not hold.listeners
            and hold.parker is None
        ):  # the most frequent case; from here on Python does not look for signals
            del self._slots[hold.key.digest]
            self._total -= 1
            hold.state = _ENDED
            hold.released_by = self._ending = None
            return True
        if hold.state is State.ENDED:
            if self._ending is hold:
                self._ending = None
            return False
        unfinished = self._ending
        if unfinished is not None and unfinished is not hold:
            self._end(unfinished)
        self._ending = hold
        if self._waiting.get(hold.owner) is hold:
            del self._waiting[hold.owner]
        slot = self._slots.get(hold.key.digest)
        if slot is not None:
            if hold.state is State.WAITING and hold in slot.queue:
                slot.queue.remove(hold)
            if hold in slot.holders:
                self._total -= 1
                slot.holders.remove(hold)
            if slot.queue:
                self._promote(slot)
            if not slot.holders and not slot.queue:
                del self._slots[hold.key.digest]
        for listener in hold.listeners:
            listener.stop(hold)
        hold.state = State.ENDED
        hold.released_by = None  # it refers to the hold: without the circle both are freed at once
        self._ending = None
        return True

    def _promote(self, slot: WaitQueue) -> None:
        while slot.queue:
            head = slot.queue[0]
            if head.state is State.WAITING:  # else it was admitted, and an interrupt came
                # readers come in together, as many as the limit allows: the others when one of these is released
                if not slot.admits(head) or (
                    slot.holders and self._total >= slot.limit and self._count(head.backend) >= slot.limit
                ):
                    return
                self._admit(slot, head)
            if self._waiting.get(head.owner) is head:
                del self._waiting[head.owner]
            if head.parker is not None and not head.parker.wake():
                if head in slot.holders:
                    self._total -= 1
                    slot.holders.remove(head)
                head.state = State.ENDED
            del slot.queue[0]

    def lose(self, hold: Hold, reason: str, *, releasing: bool = False) -> bool:
        """Mark a hold as lost and let the next waiter ask. False if the loss was known or the hold has ended.

        While it is RELEASING only its release knows whether it was lost (``releasing``): to others it looks lost as
        soon as the engine has it back.
        """
        with self._mutex:
            states = (State.RELEASING,) if releasing else HELD
            if hold.lost is not None or hold.state not in states:
                return False
            hold.lost = reason
            if self._ending is None:
                self._ending = hold
            return self._end(hold)

    def renew(self, hold: Hold, grant: Grant) -> bool:
        """Replace the grant by a renewed one, unless the hold was released during the renewal."""
        with self._mutex:
            if hold.state not in HELD:
                return False
            hold.grant = grant
            return True

    def shorten(self, hold: Hold, ttl: float) -> None:
        """Note that the engine is being asked to set the rest of the lease to ``ttl`` seconds.

        A shorter lease counts from now on, even if the engine's answer never comes."""
        with self._mutex:
            grant, until = hold.grant, clock.now() + ttl - drift(ttl)
            if grant is not None and grant.valid_until is not None and until < grant.valid_until:
                hold.grant = grant._replace(valid_until=until)

    def held(self, backend: Backend | None = None) -> list[Hold]:
        """The holds that are HELD or DEFERRED now."""
        with self._mutex:
            return [
                hold
                for slot in self._slots.values()
                for hold in slot.holders
                if hold.state in HELD and backend in (None, hold.backend)
            ]

    def other_grants(self, hold: Hold) -> list[Grant]:
        """The grants of the other holds of its key."""
        with self._mutex:
            slot = self._slots.get(hold.key.digest)
            holders = [] if slot is None else slot.holders
            return [other.grant for other in holders if other is not hold and other.grant is not None]

    def is_alone(self, hold: Hold) -> bool:
        """Has no other hold of this process the same key?"""
        with self._mutex:
            slot = self._slots.get(hold.key.digest)
            return slot is None or all(holder is hold for holder in slot.holders)

    def unfinished(self) -> list[Hold]:
        """The holds that are WAITING, CLAIMING or RELEASING now."""
        return [hold for hold in self.all() if hold.state in UNFINISHED]

    def all(self) -> list[Hold]:
        """Every hold, in any state."""
        with self._mutex:
            return list(self.everything())

    @property
    def empty(self) -> bool:
        """Is there no hold, in any state?"""
        return not self._slots and self._ending is None

    def everything(self) -> Iterator[Hold]:
        """Every hold, without the mutex: for the child of a fork, where another thread may have taken it."""
        for slot in list(self._slots.values()):
            yield from list(slot.holders)
            yield from list(slot.queue)


lock_table = LockTable()


def _forget_parent() -> None:
    """In the child of a fork: mark all holds as lost, because they are the parent's (R22)."""
    for hold in lock_table.everything():
        hold.lost = FORKED
        hold.state = State.ENDED
        for listener in hold.listeners:
            listener.stop(hold)
    lock_table.__init__()  # type: ignore[misc]


at_fork(Order.HOLDS, child=_forget_parent)
at_fork(Order.HOLDS, child=interrupted_calls.clear)
