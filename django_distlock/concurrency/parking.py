"""Where threads and tasks wait side by side: one sleeper (Parker) and one first-come mutex (FairLock).

``threading`` and ``asyncio`` each have their own locks, and neither queues the waiters of the other. A lock session is
used by both, and so is the queue in front of an engine.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from . import clock, leftovers
from .flow import in_task

if TYPE_CHECKING:
    from collections.abc import Callable


class Parker:
    """One waiter, asleep until :meth:`wake` or until its time is over. Used once."""

    __slots__ = ("_left", "_mutex", "_signal", "woken")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._signal: Callable[[], None] | None = None
        self._left = False
        self.woken = False

    def wake(self) -> bool:
        """Wake the waiter. False if it has given up or its event loop is closed: then the next one is to be woken.

        A second time does nothing.
        """
        with self._mutex:
            if self._left or self.woken:
                return self.woken
            self.woken = True
            if self._signal is not None:
                try:
                    self._signal()
                except RuntimeError:  # the event loop is closed: nobody will ever look
                    self._left, self.woken = True, False
                    self._signal = None  # it refers to the task, which is garbage now
            return self.woken

    def _listen(self, signal: Callable[[], None]) -> bool:
        with self._mutex:
            self._signal = signal
            return self.woken

    def leave(self) -> bool:
        """Stop waiting. True if it was woken before, so that it owns what it waited for."""
        with self._mutex:
            self._left = not self.woken
            self._signal = None
            return self.woken

    async def park(self, timeout: float) -> bool:
        """Sleep for at most ``timeout`` seconds. True if woken. After an exception the caller asks :meth:`leave`."""
        if in_task():
            await self._suspend(timeout)
        else:
            gate = threading.Lock()
            gate.acquire()
            if not self._listen(gate.release):
                clock.wait(gate, timeout)
        return self.leave()

    async def _suspend(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def signal() -> None:
            loop.call_soon_threadsafe(_settle, future)

        if not self._listen(signal):
            timer = loop.call_later(timeout, _settle, future) if timeout <= threading.TIMEOUT_MAX else None
            try:
                await future
            finally:
                if timer is not None:
                    timer.cancel()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


HOLDER = "holder"


class _Place:
    """A place in the queue of a :class:`FairLock`.

    A place is called to find out whose it is: the Turn, None once that is gone without a release, because the release
    was interrupted. The place of a holder that did not have to wait is no more than a weak reference to its Turn.
    """

    __slots__ = ("_turn", "parker")

    def __init__(self, turn: Turn) -> None:
        self.parker = Parker()
        self._turn = weakref.ref(turn)

    def __call__(self) -> object:
        return self._turn()


class _Kept:
    """The place of a holder without a Turn, which is never gone."""

    __slots__ = ()

    def __call__(self) -> object:
        return self


class FairLock:
    """A mutex that serves threads and tasks in order of arrival, each within its own time.

    It is taken and released without its guard as long as nobody waits: ``setdefault()`` of a dict does not let another
    thread in between.
    """

    __slots__ = ("_guard", "_held", "_queue")

    def __init__(self) -> None:
        # for the queue, and for all that is done for those in it
        self._guard = threading.Lock()
        # the place of the holder, under HOLDER
        self._held: dict[str, Callable[[], object]] = {}
        self._queue: deque[_Place] = deque()

    def turn(self) -> Turn:
        """A caller's turn at this lock, for ``try``/``finally``."""
        return Turn(self)

    def try_turn(self) -> Turn | None:
        """A turn that holds the lock; None if the lock is not free."""
        turn = Turn(self)
        return turn if turn.try_acquire() else None

    def try_acquire(self) -> bool:
        """Take it if it is free. Where an interrupt may come use :meth:`try_turn`."""
        turn = self.try_turn()
        return turn is not None and turn.keep()

    async def acquire(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds. True if taken."""
        turn = Turn(self)
        try:
            return await turn.acquire(timeout) and turn.keep()
        except BaseException:
            turn.release()
            raise

    def release(self) -> None:
        """Hand it to the first waiter that still waits."""
        holder = self._held.get(HOLDER)
        if holder is not None:
            self._pass_on(holder)

    def _arrive(self, turn: Turn) -> _Place | None:
        """The place of ``turn`` in the queue; None if it has the lock now."""
        if self._held:
            self._mended()
        with self._guard:
            if not self._queue and self._held.setdefault(HOLDER, turn._place) is turn._place:
                return None
            turn._place = place = _Place(turn)
            self._queue.append(place)
            if not self._held:  # released in between, by a holder that saw no queue
                self._serve(None)
            return place

    def _settle(self, place: _Place) -> bool:
        """The wait is over: True if ``place`` is the holder's, else it leaves the queue."""
        with self._guard:
            if place in self._queue:  # the holder's too, if an interrupt came before it was woken
                self._queue.remove(place)
            return self._held.get(HOLDER) is place

    def _mended(self) -> bool:
        """Finish a release that was interrupted, if there is one. True if the lock is free after that."""
        holder = self._held.get(HOLDER)
        if holder is not None and holder() is None:
            self._pass_on(holder)
        elif self._queue and holder in (None, self._queue[0]):  # the first one was not woken yet
            self._pass_on(_Kept())
        return not self._held

    def _pass_on(self, place: Callable[[], object]) -> None:
        """Give up ``place``: if it is the holder's, the first waiter that still waits gets the lock.

        The next one is the holder before it is woken. So if this is interrupted, a second call does what is left.
        """
        with self._guard:
            if place in self._queue:
                self._queue.remove(place)  # type: ignore[arg-type]
            holder = self._held.get(HOLDER)
            if holder is None or holder is place or (self._queue and self._queue[0] is holder):
                self._serve(holder)

    def _serve(self, holder: object) -> None:
        """``holder`` has given it up, or there was none: the first waiter that still waits gets it."""
        if holder is None and not (self._queue and self._held.setdefault(HOLDER, self._queue[0]) is self._queue[0]):
            return  # a caller that came in between releases it to the queue
        while self._queue:
            self._held[HOLDER] = first = self._queue[0]
            woken = first.parker.wake()
            self._queue.popleft()
            if woken:
                return
        self._held.clear()


class Turn:
    """One caller's turn at a :class:`FairLock`: made before it is asked for, given back whatever happens.

    ::

        turn = lock.turn()
        try:
            if not await turn.acquire(seconds):
                raise StatementTimeout
            ...
        finally:
            turn.release()

    The lock itself knows whose turn it is, so that an interrupt (KeyboardInterrupt) on the way back cannot lose it. If
    the release is interrupted, the next caller of the lock finds that this turn is gone, and does what is left.
    """

    __slots__ = ("__weakref__", "_lock", "_place")

    def __init__(self, lock: FairLock) -> None:
        self._lock = lock
        self._place: Callable[[], object] = weakref.ref(self)

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        lock, place = self._lock, self._place
        if (lock._held or lock._queue) and not lock._mended():
            return False
        return lock._held.setdefault(HOLDER, place) is place

    async def acquire(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds. True if it holds the lock now."""
        place = self._lock._arrive(self)
        if place is None:
            return True
        await place.parker.park(timeout)
        return self._lock._settle(place)

    def keep(self) -> bool:
        """Leave the lock to the caller, who calls :meth:`FairLock.release`. Returns True."""
        self._lock._held[HOLDER] = self._place = _Kept()
        return True

    def release(self) -> None:
        """Give the lock back, or leave its queue; nothing if neither is to be done."""
        leftovers.now_or_later(self._release)

    def _release(self) -> None:
        lock, place = self._lock, self._place
        if not lock._queue and lock._held.get(HOLDER) is place:
            del lock._held[HOLDER]
            if not lock._queue:
                return
        lock._pass_on(place)
