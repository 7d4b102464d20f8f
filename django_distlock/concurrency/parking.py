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
        self._signal: Callable[[], object] | None = None
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

    def _listen(self, signal: Callable[[], object]) -> bool:
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
        """Sleep for at most ``timeout`` seconds. True if woken. After an exception the caller asks :meth:`leave`, or
        takes the waiter out of its queue."""
        if in_task():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def signal() -> None:
                if asyncio._get_running_loop() is loop:  # woken by its own loop, which need not be woken
                    _settle(future)
                else:
                    loop.call_soon_threadsafe(_settle, future)

            if not self._listen(signal):
                timer = loop.call_later(min(timeout, threading.TIMEOUT_MAX), _settle, future)
                try:
                    await future
                finally:
                    timer.cancel()
        else:
            gate = threading.Lock()
            gate.acquire()
            if not self._listen(gate.release):
                clock.wait(gate, timeout)
        return self.leave()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class FairLock:
    """A mutex that serves threads and tasks in order of arrival, each within its own time.

    It is used by :class:`Turn`. The lock refers to the turn of its holder weakly: a turn that an interrupt
    (KeyboardInterrupt) has lost is gone, and the next caller finds the lock free.
    """

    __slots__ = ("_guard", "_holder", "_queue")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._holder: weakref.ref[Turn] | None = None
        self._queue: deque[Turn] = deque()

    def turn(self) -> Turn:
        """A caller's turn at this lock, for ``try``/``finally``."""
        return Turn(self)

    def try_turn(self) -> Turn | None:
        """A turn that holds the lock; None if the lock is not free."""
        turn = Turn(self)
        return turn if turn.try_acquire() else None

    def _take(self, turn: Turn) -> bool:
        if (self._holder is None or self._holder() is None) and not (self._queue and self._serve()):
            self._holder = turn._reference
            return True
        return False

    def _serve(self) -> bool:
        """Hand it to the first waiter that still waits; False if there is none. It may be repeated."""
        while self._queue:
            first = self._queue[0]
            if woken := first.parker.wake():
                self._holder = first._reference
            self._queue.popleft()
            if woken:
                return True
        self._holder = None
        return False


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
    """

    __slots__ = ("__weakref__", "_lock", "_reference", "parker")

    parker: Parker

    def __init__(self, lock: FairLock) -> None:
        self._lock = lock
        self._reference = weakref.ref(self)

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        lock = self._lock
        with lock._guard:
            if lock._holder is None and not lock._queue:  # the usual case, without a call
                lock._holder = self._reference
                return True
            return lock._take(self)

    async def acquire(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds. True if it holds the lock now."""
        lock = self._lock
        with lock._guard:
            if lock._take(self):
                return True
            self.parker = Parker()
            lock._queue.append(self)
        await self.parker.park(timeout)
        with lock._guard:
            if self in lock._queue:
                lock._queue.remove(self)
            return lock._holder is self._reference or lock._take(self)

    def release(self) -> None:
        """Give the lock back, or leave its queue; nothing if neither is to be done, so it may be repeated."""
        leftovers.now_or_later(self._release)

    def _release(self) -> None:
        lock = self._lock
        with lock._guard:
            if not lock._queue:  # each statement comes here
                if lock._holder is self._reference:
                    lock._holder = None
                return
            if self in lock._queue:
                lock._queue.remove(self)
            if lock._holder is self._reference:
                lock._serve()
