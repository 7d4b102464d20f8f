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

from .hold import FORKED, Holding, Slot, State, closes_circle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.backends.base import Backend
    from django_distlock.records import Grant


UNFINISHED = frozenset({State.WAITING, State.CLAIMING, State.RELEASING})


class Holdings:
    """All holdings of this process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._slots: dict[bytes, Slot] = {}
        self._waiting: dict[object, Holding] = {}
        self._total = 0

    def arrive(self, holding: Holding, *, may_wait: bool, reenter: bool, limit: int) -> Holding | None:
        """Ask for a place for a new holding. Returned is a holding that is HELD (re-entry), DEFERRED (to be verified),
        or the new one: CLAIMING (ask the engine) or WAITING (park first). None if busy and the caller may not wait, or
        if it is a re-entry and that is not wanted.

        Raises DeadlockDetected and, at ``limit`` holdings of the backend, DistlockError. After any exception the caller
        ends the new one, which is harmless if it got no place.
        """
        key, backend = holding.key, holding.backend
        with self._mutex:
            slot = self._slots.get(key.digest)
            if slot is not None and not holding.semaphore:
                mine = self._own(slot, holding.owner)
                if mine is not None:
                    if not reenter:
                        return None
                    if mine.shared and not holding.shared:
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
            if slot is None or (not slot.queue and slot.admits(holding)):
                if slot is None:
                    slot = self._slots[key.digest] = Slot()
                self._admit(slot, holding)
                return holding
            if not may_wait:
                return None
            self._enqueue(slot, holding, limit)
            return holding

    def _enqueue(self, slot: Slot, holding: Holding, limit: int) -> None:
        if not holding.semaphore:
            self._refuse_circle(slot, holding)
            self._waiting[holding.owner] = holding
        # a circle through a semaphore may be opened by another one of its holders: the deadline ends it (R8)
        holding.state = State.WAITING
        holding.parker = Parker()
        slot.limit = limit
        slot.queue.append(holding)

    def claim(self, holding: Holding, limit: int) -> bool:
        """A place for a new holding if nobody of this process has or wants the lock. :meth:`arrive` for the most
        frequent case."""
        digest = holding.key.digest
        with self._mutex:
            if digest in self._slots or self._total >= limit:
                return False
            slot = self._slots[digest] = Slot()
            self._admit(slot, holding)
            return True

    @staticmethod
    def _own(slot: Slot, owner: object) -> Holding | None:
        for holder in slot.holders:
            if holder.owner is owner and holder.state in (State.HELD, State.DEFERRED):
                return holder
        return None

    def _admit(self, slot: Slot, holding: Holding) -> None:
        # in this order: Python looks for signals when a call has returned, so that both are done, or neither
        holding.state = State.CLAIMING
        self._total += 1
        slot.holders.append(holding)

    def _dismiss(self, slot: Slot, holding: Holding) -> None:
        self._total -= 1
        slot.holders.remove(holding)

    def _count(self, backend: Backend) -> int:
        return sum(holder.backend is backend for slot in self._slots.values() for holder in slot.holders)

    def _holds_something(self, owner: object) -> bool:
        return any(holder.owner is owner for slot in self._slots.values() for holder in slot.holders)

    def _refuse_circle(self, slot: Slot, new: Holding) -> None:
        """R8. Who holds nothing closes no circle, which spares a long queue the search."""
        if self._holds_something(new.owner) and closes_circle(new, slot, self._waiting, self._slots):
            raise DeadlockDetected(
                f"Waiting for {new.key.name!r} would never end: its holder waits, directly or over others, for a "
                "lock that this context holds. Take several locks with lock_all()."
            )

    def establish(self, holding: Holding, grant: Grant, lease: Any) -> None:
        """The engine granted it. Without the mutex: only the claimant itself leaves the state CLAIMING, and last."""
        holding.grant = grant
        holding.held_at = monotonic()
        holding.leases.add(lease)
        holding.state = State.HELD

    def listen(self, holding: Holding, listener: Any) -> None:
        """Have ``listener`` started for this holding, and stopped when it ends."""
        with self._mutex:
            if holding.state is not State.ENDED and listener not in holding.listeners:
                holding.listeners = (*holding.listeners, listener)
                listener.start(holding)

    def enter_again(self, holding: Holding, lease: Any) -> bool:
        """Count one more Lease of the same context. False if the holding ended meanwhile."""
        with self._mutex:
            if holding.state not in (State.HELD, State.DEFERRED) or holding.lost is not None:
                return False
            holding.state = State.HELD
            holding.leases.add(lease)
            return True

    def leave(self, holding: Holding, lease: Any) -> bool:
        """One Lease is released. True if it was the last one: the caller now gives the lock back, or defers that."""
        with self._mutex:
            holding.leases.discard(lease)
            if holding.leases or holding.state is not State.HELD:
                return False
            holding.state = State.RELEASING
            return True

    def defer(self, holding: Holding) -> None:
        """Keep it until its transactions have ended."""
        with self._mutex:
            if holding.state is State.RELEASING:
                holding.state = State.DEFERRED
                holding.kept = True

    def start_release(self, holding: Holding) -> bool:
        """Its transactions have ended, whoever still has a Lease. False if it is not held any more."""
        with self._mutex:
            if holding.state not in (State.HELD, State.DEFERRED):
                return False
            holding.state = State.RELEASING
            return True

    def end(self, holding: Holding) -> bool:
        """The engine has it back, or never granted it: let the next one of this process ask. False if already ended."""
        try:
            with self._mutex:
                return self._end(holding)
        except BaseException:  # Ctrl-C in the midst of it: then a second time, which does what is left
            with self._mutex:
                self._end(holding)
            raise

    def _end(self, holding: Holding) -> bool:
        if holding.state is State.ENDED:
            return False
        if self._waiting.get(holding.owner) is holding:
            del self._waiting[holding.owner]
        slot = self._slots.get(holding.key.digest)
        if slot is not None:
            if holding.state is State.WAITING and holding in slot.queue:
                slot.queue.remove(holding)
            if holding in slot.holders:
                self._dismiss(slot, holding)
            if slot.queue:
                self._promote(slot)
            if not slot.holders and not slot.queue:
                del self._slots[holding.key.digest]
        for listener in holding.listeners:
            listener.stop(holding)
        holding.state = State.ENDED
        return True

    def _promote(self, slot: Slot) -> None:
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

    def lose(self, holding: Holding, reason: str, *, releasing: bool = False) -> bool:
        """It is not ours any more; the next one of this process may ask. False if that was known or it has ended.

        While it is RELEASING only its release can tell whether it was lost (``releasing``): to all others it looks lost
        as soon as the engine has it back.
        """
        with self._mutex:
            states = (State.RELEASING,) if releasing else (State.HELD, State.DEFERRED)
            if holding.lost is not None or holding.state not in states:
                return False
            holding.lost = reason
            return self._end(holding)

    def renew(self, holding: Holding, grant: Grant) -> bool:
        """Replace the grant by a renewed one, unless it was released meanwhile."""
        with self._mutex:
            if holding.state not in (State.HELD, State.DEFERRED):
                return False
            holding.grant = grant
            return True

    def shorten(self, holding: Holding, ttl: float) -> None:
        """The engine is being told that ``ttl`` seconds are left. If that is less than before, it counts from now on,
        even if nobody ever hears whether the engine has done it."""
        with self._mutex:
            grant, until = holding.grant, monotonic() + ttl - drift(ttl)
            if grant is not None and grant.valid_until is not None and until < grant.valid_until:
                holding.grant = grant._replace(valid_until=until)

    def held(self, backend: Backend | None = None) -> list[Holding]:
        """The holdings that are held or deferred now."""
        with self._mutex:
            return [
                holding
                for slot in self._slots.values()
                for holding in slot.holders
                if holding.state in (State.HELD, State.DEFERRED) and backend in (None, holding.backend)
            ]

    def unfinished(self) -> list[Holding]:
        """Those that wait, ask the engine or give the lock back: somebody is in the middle of it."""
        with self._mutex:
            everything = list(self.everything())
        return [holding for holding in everything if holding.state in UNFINISHED]

    def everything(self) -> Iterator[Holding]:
        """Every holding, without the mutex: for the child of a fork, where another thread may have taken it."""
        for slot in list(self._slots.values()):
            yield from list(slot.holders)
            yield from list(slot.queue)


holdings = Holdings()


def _forget_parent() -> None:
    """In the child of a fork nothing is held: what the parent holds is the parent's (R22)."""
    for holding in holdings.everything():
        holding.lost = FORKED
        holding.state = State.ENDED
        for listener in holding.listeners:
            listener.stop(holding)
    holdings.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget_parent)
