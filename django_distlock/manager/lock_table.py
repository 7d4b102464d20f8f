"""What this process holds and who of this process waits: the registry that stands in front of every engine.

Engines know sessions, not tasks: all tasks on one session would get in. So one context of the process at a time asks
the engine for an exclusive lock; the others queue here, in order of arrival. Everything below one mutex is bookkeeping
in memory; nothing blocks under it.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.parking import Parker
from django_distlock.exceptions import DeadlockDetected, DistlockError
from django_distlock.records import drift

from .hold import FORKED, Hold, State, WaitQueue, closes_circle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.backends.base import Backend
    from django_distlock.records import Grant


UNFINISHED = frozenset({State.WAITING, State.CLAIMING, State.RELEASING})


class LockTable:
    """All holdings of this process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._slots: dict[bytes, WaitQueue] = {}
        self._waiting: dict[object, Hold] = {}
        self._total = 0

    def arrive(self, hold: Hold, *, may_wait: bool, reenter: bool, limit: int) -> Hold | None:
        """Ask for a place for a new holding. Returned is a holding that is HELD (re-entry), DEFERRED (to be verified),
        or the new one: CLAIMING (ask the engine) or WAITING (park first). None if busy and the caller may not wait, or
        if it is a re-entry and that is not wanted.

        Raises DeadlockDetected and, at ``limit`` holdings of the backend, DistlockError. After any exception the caller
        ends the new one, which is harmless if it got no place.
        """
        key, backend = hold.key, hold.backend
        with self._mutex:
            slot = self._slots.get(key.digest)
            if slot is not None and not hold.semaphore:
                mine = self._own(slot, hold.owner)
                if mine is not None:
                    if not reenter:
                        return None
                    if mine.shared and not hold.shared:
                        raise DeadlockDetected(
                            f"{key.name!r} is held shared by this context, which now asks for it exclusively; "
                            "it would wait for itself. Release the shared lock first, or take it exclusively at once."
                        )
                    return mine
            if self._total >= limit and self._count(backend) >= limit:
                raise DistlockError(
                    f"This process holds {limit} locks of alias {backend.alias!r}, which is its MAX_HELD. "
                    "Lock something coarser, or raise MAX_HELD in DISTLOCK."
                )
            if slot is None or (not slot.queue and slot.admits(hold)):
                if slot is None:
                    slot = self._slots[key.digest] = WaitQueue()
                self._admit(slot, hold)
                return hold
            if not may_wait:
                return None
            self._enqueue(slot, hold, limit)
            return hold

    def _enqueue(self, slot: WaitQueue, hold: Hold, limit: int) -> None:
        if not hold.semaphore:
            self._refuse_circle(slot, hold)
            self._waiting[hold.owner] = hold
        # a circle through a semaphore may be opened by another one of its holders: the deadline ends it (R8)
        hold.state = State.WAITING
        hold.parker = Parker()
        slot.limit = limit
        slot.queue.append(hold)

    def claim(self, hold: Hold, limit: int) -> bool:
        """A place for a new holding if nobody of this process has or wants the lock. :meth:`arrive` for the most
        frequent case."""
        digest = hold.key.digest
        with self._mutex:
            if digest in self._slots or self._total >= limit:
                return False
            slot = self._slots[digest] = WaitQueue()
            self._admit(slot, hold)
            return True

    @staticmethod
    def _own(slot: WaitQueue, owner: object) -> Hold | None:
        for holder in slot.holders:
            if holder.owner is owner and holder.state in (State.HELD, State.DEFERRED):
                return holder
        return None

    def _admit(self, slot: WaitQueue, hold: Hold) -> None:
        # in this order: Python looks for signals when a call has returned, so that both are done, or neither
        hold.state = State.CLAIMING
        self._total += 1
        slot.holders.append(hold)

    def _dismiss(self, slot: WaitQueue, hold: Hold) -> None:
        self._total -= 1
        slot.holders.remove(hold)

    def _count(self, backend: Backend) -> int:
        return sum(holder.backend is backend for slot in self._slots.values() for holder in slot.holders)

    def _holds_something(self, owner: object) -> bool:
        return any(holder.owner is owner for slot in self._slots.values() for holder in slot.holders)

    def _refuse_circle(self, slot: WaitQueue, new: Hold) -> None:
        """R8. Who holds nothing closes no circle, which spares a long queue the search."""
        if self._holds_something(new.owner) and closes_circle(new, slot, self._waiting, self._slots):
            raise DeadlockDetected(
                f"Waiting for {new.key.name!r} would never end: its holder waits, directly or over others, for a "
                "lock that this context holds. Take several locks with lock_all()."
            )

    def establish(self, hold: Hold, grant: Grant, lease: Any) -> None:
        """The engine granted it. Without the mutex: only the claimant itself leaves the state CLAIMING, and last."""
        hold.grant = grant
        hold.held_at = monotonic()
        hold.leases.add(lease)
        hold.state = State.HELD

    def listen(self, hold: Hold, listener: Any) -> None:
        """Have ``listener`` started for this holding, and stopped when it ends."""
        with self._mutex:
            if hold.state is not State.ENDED and listener not in hold.listeners:
                hold.listeners = (*hold.listeners, listener)
                listener.start(hold)

    def enter_again(self, hold: Hold, lease: Any) -> bool:
        """Count one more Lease of the same context. False if the holding ended meanwhile."""
        with self._mutex:
            if hold.state not in (State.HELD, State.DEFERRED) or hold.lost is not None:
                return False
            hold.state = State.HELD
            hold.leases.add(lease)
            return True

    def leave(self, hold: Hold, lease: Any) -> bool:
        """One Lease is released. True if it was the last one: the caller now gives the lock back, or defers that."""
        with self._mutex:
            hold.leases.discard(lease)
            if hold.leases or hold.state is not State.HELD:
                return False
            hold.state = State.RELEASING
            return True

    def defer(self, hold: Hold) -> None:
        """Keep it until its transactions have ended."""
        with self._mutex:
            if hold.state is State.RELEASING:
                hold.state = State.DEFERRED
                hold.kept = True

    def start_release(self, hold: Hold) -> bool:
        """Its transactions have ended, whoever still has a Lease. False if it is not held any more."""
        with self._mutex:
            if hold.state not in (State.HELD, State.DEFERRED):
                return False
            hold.state = State.RELEASING
            return True

    def end(self, hold: Hold) -> bool:
        """The engine has it back, or never granted it: let the next one of this process ask. False if already ended."""
        try:
            with self._mutex:
                return self._end(hold)
        except BaseException:  # Ctrl-C in the midst of it: then a second time, which does what is left
            with self._mutex:
                self._end(hold)
            raise

    def _end(self, hold: Hold) -> bool:
        if hold.state is State.ENDED:
            return False
        if self._waiting.get(hold.owner) is hold:
            del self._waiting[hold.owner]
        slot = self._slots.get(hold.key.digest)
        if slot is not None:
            if hold.state is State.WAITING and hold in slot.queue:
                slot.queue.remove(hold)
            if hold in slot.holders:
                self._dismiss(slot, hold)
            if slot.queue:
                self._promote(slot)
            if not slot.holders and not slot.queue:
                del self._slots[hold.key.digest]
        for listener in hold.listeners:
            listener.stop(hold)
        hold.state = State.ENDED
        return True

    def _promote(self, slot: WaitQueue) -> None:
        while slot.queue:
            head = slot.queue[0]
            if head.state is State.WAITING:  # else it was admitted, and Ctrl-C came
                # readers come in together, as many as the limit allows: the others when one of these has left
                if not slot.admits(head) or (
                    slot.holders and self._total >= slot.limit and self._count(head.backend) >= slot.limit
                ):
                    return
                self._admit(slot, head)
            if self._waiting.get(head.owner) is head:
                del self._waiting[head.owner]
            if head.parker is not None and not head.parker.wake():
                if head in slot.holders:
                    self._dismiss(slot, head)
                head.state = State.ENDED
            slot.queue.popleft()

    def lose(self, hold: Hold, reason: str, *, releasing: bool = False) -> bool:
        """It is not ours any more; the next one of this process may ask. False if that was known or it has ended.

        While it is RELEASING only its release can tell whether it was lost (``releasing``): to all others it looks lost
        as soon as the engine has it back.
        """
        with self._mutex:
            states = (State.RELEASING,) if releasing else (State.HELD, State.DEFERRED)
            if hold.lost is not None or hold.state not in states:
                return False
            hold.lost = reason
            return self._end(hold)

    def renew(self, hold: Hold, grant: Grant) -> bool:
        """Replace the grant by a renewed one, unless it was released meanwhile."""
        with self._mutex:
            if hold.state not in (State.HELD, State.DEFERRED):
                return False
            hold.grant = grant
            return True

    def shorten(self, hold: Hold, ttl: float) -> None:
        """The engine is being told that ``ttl`` seconds are left. If that is less than before, it counts from now on,
        even if nobody ever hears whether the engine has done it."""
        with self._mutex:
            grant, until = hold.grant, monotonic() + ttl - drift(ttl)
            if grant is not None and grant.valid_until is not None and until < grant.valid_until:
                hold.grant = grant._replace(valid_until=until)

    def held(self, backend: Backend | None = None) -> list[Hold]:
        """The holdings that are held or deferred now."""
        with self._mutex:
            return [
                hold
                for slot in self._slots.values()
                for hold in slot.holders
                if hold.state in (State.HELD, State.DEFERRED) and backend in (None, hold.backend)
            ]

    def unfinished(self) -> list[Hold]:
        """Those that wait, ask the engine or give the lock back: somebody is in the middle of it."""
        with self._mutex:
            everything = list(self.everything())
        return [hold for hold in everything if hold.state in UNFINISHED]

    def everything(self) -> Iterator[Hold]:
        """Every holding, without the mutex: for the child of a fork, where another thread may have taken it."""
        for slot in list(self._slots.values()):
            yield from list(slot.holders)
            yield from list(slot.queue)


lock_table = LockTable()


def _forget_parent() -> None:
    """In the child of a fork nothing is held: what the parent holds is the parent's (R22)."""
    for hold in lock_table.everything():
        hold.lost = FORKED
        hold.state = State.ENDED
        for listener in hold.listeners:
            listener.stop(hold)
    lock_table.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget_parent)
