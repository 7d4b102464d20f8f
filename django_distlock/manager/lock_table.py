"""The holders and waiters of this process: a table in front of every engine.

Engines distinguish sessions, not tasks: all tasks on one session would get the lock. So one context of the process at a
time asks the engine for an exclusive lock; the others queue here. The mutex guards bookkeeping in memory only; no call
under it blocks.

Holders and waiters of a lock share one line, in order of arrival. A hold may ask the engine when nothing before it in
the line excludes it: the position decides. What ends a hold is one assignment, ``hold.state = ENDED``;
:meth:`LockTable.settle` derives the rest and may be repeated at any time. So an exception of a signal
(KeyboardInterrupt) leaves nothing half done for longer than a tick of the keepalive thread.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency import clock
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.origin import address
from django_distlock.concurrency.parking import Parker
from django_distlock.exceptions import DeadlockDetected, DistlockError
from django_distlock.records import drift

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_distlock.backends.base import Backend
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Grant, Scope


# Why the child of a fork has lost what its parent holds.
FORKED = "it belongs to the parent of this process"


class State(Enum):
    WAITING = auto()  # in the queue of this process
    CLAIMING = auto()  # the engine is being asked
    HELD = auto()
    DEFERRED = auto()  # released by its context, kept until a transaction ends
    RELEASING = auto()  # the engine is being asked to release it, or to undo a claim that was cut off
    ENDED = auto()


# Python looks up an attribute of an Enum class slowly.
WAITING, CLAIMING, HELD, DEFERRED, RELEASING, ENDED = State
IN_USE = (HELD, DEFERRED)  # no set: to hash a State is a call of Python


@dataclass(slots=True, eq=False, repr=False)
class Hold:
    """One context's hold of one lock, shared by all Leases of that context."""

    backend: Backend
    key: LockKey
    owner: object
    shared: bool
    # how many callers may hold the key at once; 0: it is a lock
    limit: int = 0
    # the name as written in a decorator
    template: str | None = None
    # the address that its owner served at the acquire
    address: str = field(default_factory=address)
    state: State = CLAIMING
    # when the engine's grant arrived; 0 before that. The times of the grant count from the request.
    held_at: float = 0.0
    parker: Parker | None = None
    # the transactions that its context is in while it waits
    inside: Sequence[object] = ()
    # has its wait ended because its context was given a hold that these transactions keep?
    passed_on: bool = False
    claim: Claim | None = None
    grant: Grant | None = None
    # References to the Leases that are not released. That of a dropped Lease stays, so that the lock stays held.
    leases: set[weakref.ref[Any]] = field(default_factory=set)
    lost: str | None = None
    callbacks: list[Callable[[], object]] = field(default_factory=list)
    # the TransactionWatch of each open transaction that must end before the lock is released at the engine
    transactions: set[Any] = field(default_factory=set)
    ttl: float | None = None
    max_hold: float | None = None

    def in_use(self) -> bool:
        """Does other code refer to one of its Leases, so that they may still be released?"""
        return any(lease() is not None for lease in list(self.leases))

    def bounded(self, ttl: float) -> float:
        """``ttl``, but not beyond the end of ``max_hold``, which counts from the grant. It may be negative."""
        return ttl if self.max_hold is None else min(ttl, self.held_at + self.max_hold - clock.now())

    @property
    def waits(self) -> bool:
        """Does it wait in the queue of this process? Once it is woken it goes on to ask the engine."""
        return self.state is WAITING and self.parker is not None and not self.parker.woken

    @property
    def scope(self) -> Scope:
        """Where the lock lives: on a dedicated session, or in a transaction on the caller's connection."""
        return self.grant.claim.scope if self.grant is not None else "session"

    @property
    def in_doubt(self) -> bool:
        """Is it unknown at present whether the engine still holds it?"""
        return self.grant is not None and self.state is not ENDED and self.backend.in_doubt(self.grant)

    @property
    def reason(self) -> str:
        """Why the lock cannot be relied on."""
        return self.lost or self.backend.doubt


def _ahead(hold: Hold, line: list[Hold]) -> list[Hold]:
    """The holds before ``hold`` in its line; all of them, if it has not joined."""
    return line[: line.index(hold)] if hold in line else line


# A loop stands in a function of its own, and not in the block of the mutex: from Python 3.12 on the jump back in such a
# block is outside of what the block protects, and the exception of a signal that comes there would keep the mutex.


def _held_by(owner: object, line: list[Hold], states: tuple[State, ...]) -> Hold | None:
    """The first hold that ``owner`` has in this line in one of ``states``, if it has one."""
    for hold in line:
        if hold.owner is owner and hold.state in states:
            return hold
    return None


def _admitted(hold: Hold, place: int, readers: bool) -> bool:
    """May ``hold`` ask the engine, at this place of its line? ``readers``: are all before it shared?"""
    if hold.limit:
        return place < hold.limit
    return not place or (readers and hold.shared)


def _upgrade(mine: Hold) -> str:
    """Why ``mine``, which is shared, is in the way of its own context, which asks for the lock exclusively."""
    if mine.state is DEFERRED:
        return (
            f"{mine.key.name!r} was taken shared in a transaction of this context, which keeps it until that ends: an "
            "exclusive lock would wait for itself. Take it exclusively at once, or after the transaction."
        )
    return (
        f"{mine.key.name!r} is held shared by this context, which now asks for it exclusively; it would wait for "
        "itself. Release the shared lock first, or take it exclusively at once."
    )


class LockTable:
    """All holds of this process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        # by digest of the key; no line is empty
        self._lines: dict[bytes, list[Hold]] = {}

    def arrive(self, hold: Hold, may_wait: bool, reenter: bool, most: int) -> Hold | None:
        """Ask for a place for a new hold.

        Returns a hold that is HELD (re-entry) or DEFERRED (to be verified), or the new one: CLAIMING (ask the engine)
        or WAITING (park first). Returns None if the lock is busy and the caller does not wait, or if this is a re-entry
        and ``reenter`` is false. The place of a semaphore is entered again only if a transaction alone keeps it: each
        open block has one of its own. Raises DeadlockDetected and, at ``most`` locks of the backend, DistlockError.
        After any exception the caller ends the new hold, which is harmless if it got no place.
        """
        key = hold.key
        with self._mutex:
            line = self._lines.get(key.digest)
            if line is None:
                if len(self._lines) >= most:
                    self._refuse_too_many(hold.backend, most)
                self._lines[key.digest] = [hold]
                return hold
            mine = _held_by(hold.owner, line, (DEFERRED,) if hold.limit else IN_USE)
            if mine is not None:
                if mine.shared and not hold.shared:
                    raise DeadlockDetected(_upgrade(mine))
                return mine if reenter or mine.state is DEFERRED else None
            if not _admitted(hold, len(line), all(other.shared for other in line)):
                if not may_wait:
                    return None
                # a circle through a semaphore may be opened by another one of its holders: the deadline ends it (R8)
                if not hold.limit and self._closes_circle(hold, line):
                    raise DeadlockDetected(
                        f"Waiting for {key.name!r} would never end: its holder waits, directly or through others, for "
                        "a lock that this context holds. Take several locks with lock_all()."
                    )
                hold.state, hold.parker = WAITING, Parker()
            line.append(hold)
            return hold

    def _refuse_too_many(self, backend: Backend, most: int) -> None:
        if sum(line[0].backend is backend for line in self._lines.values()) >= most:
            raise DistlockError(
                f"This process holds {most} locks of alias {backend.alias!r}, which is its MAX_HELD. "
                "Lock something coarser, or raise MAX_HELD in DISTLOCK."
            )

    def _closes_circle(self, new: Hold, line: list[Hold]) -> bool:
        """Would ``new``, at the end of ``line``, wait for itself (R8)?

        Walks from each waiter to those ahead of it, and from them to the locks that they wait for themselves.
        """
        if not any(hold.owner is new.owner for hold in self._everything()):
            return False  # a context that holds nothing closes no circle, which spares a long line the search
        waiting = {hold.owner: hold for hold in self._everything() if hold.waits and not hold.limit}
        seen: set[Hold] = set()
        pending = [(new, line)]
        while pending:
            waiter, here = pending.pop()
            ahead = _ahead(waiter, here)
            last = len(ahead)
            # a reader behind readers waits for what they wait for; behind a writer, for the readers before that, too
            while last and waiter.shared and ahead[last - 1].shared:
                last -= 1
            for other in ahead[:last]:
                if other.state in (RELEASING, ENDED):
                    continue  # it ends by itself, or has ended, and whoever ended it is about to settle the line
                if other.owner is new.owner:
                    return True
                beyond = waiting.get(other.owner)
                if beyond is not None and beyond not in seen:
                    seen.add(beyond)
                    pending.append((beyond, self._lines[beyond.key.digest]))
        return False

    def enter_again(self, hold: Hold, lease: Any) -> bool:
        """Count one more Lease of the same context. False if the hold has just ended."""
        with self._mutex:
            if hold.state not in IN_USE or hold.lost is not None:
                return False
            hold.state = HELD
            lease._reference = weakref.ref(lease)
            hold.leases.add(lease._reference)
            return True

    def leave(self, hold: Hold, lease: Any) -> bool:
        """Stop counting a Lease. True if it was the last one: the caller gives the lock back, or defers that.

        ``lease._last`` tells it, too: if an exception cuts the release off, whoever finishes it finds out so.
        """
        with self._mutex:
            hold.leases.discard(lease._reference)
            if hold.leases or hold.state is not HELD:
                return False
            lease._last = True
            hold.state = RELEASING
            return True

    def defer(self, hold: Hold) -> bool:
        """Keep it until its transactions have ended. False if another thread has just ended the last one: then the
        caller gives the lock back."""
        with self._mutex:
            if hold.state is RELEASING and hold.transactions:
                hold.state = DEFERRED
                self._pass_on(hold.key.digest)
            return hold.state is DEFERRED

    def wait_inside(self, hold: Hold, opened: Sequence[object]) -> None:
        """Note that ``hold`` waits inside of these open transactions.

        A lock that is only kept until they end would wait for the wait itself: the waiter's context gets it.
        """
        with self._mutex:
            hold.inside = opened
            self._pass_on(hold.key.digest)

    def _pass_on(self, digest: bytes) -> None:
        line = self._lines.get(digest, [])
        for kept in line:
            connections = {watch.connection for watch in list(kept.transactions) if kept.state is DEFERRED}
            for hold in line if connections else ():
                if hold.waits and connections.issubset(hold.inside):
                    hold.passed_on = True  # first: it may look as soon as it is woken
                    if hold.parker is not None and hold.parker.wake():
                        kept.owner = hold.owner
                        return

    def start_release(self, hold: Hold, states: tuple[State, ...] = IN_USE) -> bool:
        """Begin to release a hold whose last transaction has ended, or whose task is gone; Leases that are open end
        with it. False if it is in none of ``states``."""
        with self._mutex:
            if hold.state not in states:
                return False
            hold.state = RELEASING
            return True

    def end(self, hold: Hold) -> None:
        """End a hold that the engine has released or never granted, and let the next waiter ask."""
        hold.state = ENDED  # if an exception cuts off the rest, the next tick does it
        with self._mutex:
            self._settle(hold.key.digest)

    def settle(self) -> None:
        """Do what interrupted calls have left undone."""
        with self._mutex:
            for digest in list(self._lines):
                self._settle(digest)

    def _settle(self, digest: bytes) -> None:
        """Drop the ended holds of a line and wake those that may ask now. It may be repeated at any time."""
        line = self._lines.get(digest)
        if line is None:
            return
        place, readers = 0, True
        for hold in line:
            if hold.state is ENDED:
                continue
            if hold.waits:
                if not _admitted(hold, place, readers):
                    break
                if hold.parker is not None and not hold.parker.wake():  # it has given up, or its event loop is closed
                    hold.state = ENDED
                    continue
            place, readers = place + 1, readers and hold.shared
        left = [hold for hold in line if hold.state is not ENDED]
        if left:
            self._lines[digest] = left
        else:
            del self._lines[digest]

    def lose(self, hold: Hold, reason: str, *, releasing: bool = False) -> bool:
        """Mark a hold as lost and let the next waiter ask. False if the loss was known or the hold has ended.

        While it is RELEASING only its release knows whether it was lost (``releasing``): to others it looks lost as
        soon as the engine has it back.
        """
        with self._mutex:
            if hold.lost is not None or hold.state not in ((RELEASING,) if releasing else IN_USE):
                return False
            hold.lost = reason
            hold.state = ENDED
            self._settle(hold.key.digest)
            return True

    def renew(self, hold: Hold, grant: Grant) -> bool:
        """Replace the grant by a renewed one, unless the hold was released during the renewal."""
        with self._mutex:
            if hold.state not in IN_USE:
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
        return [hold for hold in self.all() if hold.state in IN_USE and backend in (None, hold.backend)]

    def all(self) -> list[Hold]:
        """Every hold, in any state; those of one lock in order of arrival."""
        with self._mutex:
            return list(self._everything())

    @property
    def empty(self) -> bool:
        """Is there no hold, in any state?"""
        return not self._lines

    def _everything(self) -> Iterator[Hold]:
        for line in list(self._lines.values()):
            yield from line

    def forget_parent(self) -> None:
        """In the child of a fork: mark all holds as lost, because they are the parent's (R22)."""
        for hold in self._everything():  # without the mutex, which another thread may have had
            hold.lost = FORKED
            hold.state = ENDED
        self.__init__()  # type: ignore[misc]


lock_table = LockTable()
at_fork(Order.HOLDS, child=lock_table.forget_parent)
