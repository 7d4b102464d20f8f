"""Where threads and tasks wait side by side: one sleeper (Parker), and a first-come lock of some places (FairLock).

``threading`` and ``asyncio`` each have their own locks, and neither queues the waiters of the other.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from . import clock, leftovers
from .flow import in_task

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds after which a waiter looks whether a turn before it is gone without its release, which wakes nobody.
LOOK_AGAIN = 1.0


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
                timer = loop.call_later(timeout, _settle, future) if timeout < threading.TIMEOUT_MAX else None
                try:
                    await future
                finally:
                    if timer is not None:
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
    """At most ``size`` holders at once, threads and tasks, served in order of arrival, each within its own time.

    It refers to its holders weakly: a :class:`Turn` that an interrupt (KeyboardInterrupt) has lost is gone, and what it
    held is free.
    """

    __slots__ = ("_guard", "_holders", "_queue", "size")

    def __init__(self, size: int = 1) -> None:
        self._guard = threading.Lock()
        self._holders: WeakSet[Turn] = WeakSet()
        self._queue: list[Turn] = []
        self.size = size

    def turn(self) -> Turn:
        """A caller's turn at this lock, for ``try``/``finally``."""
        return Turn(self)

    def give_way(self, turn: Turn) -> bool:
        """Give the place of ``turn`` to the caller that has waited longest; False if nobody waits."""
        with self._guard:
            if not self._queue:
                return False
            self._holders.discard(turn)
            self._serve()
            return True

    def _arrive(self, turn: Turn, first: bool) -> None:
        if turn not in self._holders and turn not in self._queue:
            self._queue.insert(0 if first else len(self._queue), turn)
        self._serve()

    def leave(self, turn: Turn | None) -> None:
        """A turn is over. None: it is gone, and so what it held is free."""
        with self._guard:
            if turn is not None:
                if turn in self._queue:
                    self._queue.remove(turn)
                self._holders.discard(turn)
            self._serve()

    def _serve(self) -> None:
        """Let in those that have waited longest. It may be repeated at any time."""
        while self._queue and (self._queue[0] in self._holders or len(self._holders) < self.size):
            head = self._queue[0]
            self._holders.add(head)
            parker = head.parker  # once: its caller puts None there when it has waited
            if parker is not None and not parker.wake():  # its time is over, or its event loop is closed
                self._holders.discard(head)
            self._queue.pop(0)


class Turn:
    """One caller's turn at a :class:`FairLock`: made before it is asked for, and released in a ``finally`` block."""

    __slots__ = ("__weakref__", "_lock", "parker")

    def __init__(self, lock: FairLock) -> None:
        self._lock = lock
        self.parker: Parker | None = None

    def arrive(self, *, first: bool = False) -> bool:
        """Take the lock, or queue for it, before all others if ``first``. True if it holds the lock now."""
        with self._lock._guard:
            self._lock._arrive(self, first)
            return self in self._lock._holders

    async def acquire(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds. True if it holds the lock now; else it stays in the queue until
        :meth:`release`."""
        until, first = clock.now() + timeout, False
        while True:
            self.parker = Parker()
            left = until - clock.now()
            if self.arrive(first=first) or left <= 0:
                self.parker = None
                return self.arrive(first=True)
            await self.parker.park(min(left, LOOK_AGAIN))
            first = True  # the wait may have ended at the moment of its turn

    def release(self) -> None:
        """Give the lock back, or leave its queue; nothing if neither is to be done, so it may be repeated."""
        lock = self._lock
        if isinstance(sys.exc_info()[1], GeneratorExit):  # see concurrency/leftovers.py; it may take long to be done
            me = ref(self)
            leftovers.leave(lambda: lock.leave(me()))
            return
        try:
            lock.leave(self)
        except BaseException:  # of a signal: the second call does the rest
            lock.leave(self)
            raise
