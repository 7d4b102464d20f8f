"""Where threads and tasks wait side by side: one sleeper (Parker) and one first-come mutex (FairLock).

``threading`` and ``asyncio`` each have their own locks, and neither queues the waiters of the other. A lock session is
used by both, and so is the queue in front of an engine.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from typing import TYPE_CHECKING

from . import finalizers

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

    def park(self, timeout: float) -> bool:
        """Sleep in this thread for at most ``timeout`` seconds. True if woken.

        After an exception (KeyboardInterrupt) the caller asks :meth:`leave`.
        """
        gate = threading.Lock()
        gate.acquire()
        if not self._listen(gate.release):
            gate.acquire(timeout=max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        return self.leave()

    async def apark(self, timeout: float) -> bool:
        """Sleep in this task for at most ``timeout`` seconds. True if woken."""
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
        return self.leave()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class FairLock:
    """A mutex that serves threads and tasks in order of arrival, each within its own time.

    A free one costs no more than a ``threading.Lock``. Somebody who comes in the moment of a hand-over may get in
    before the first in the queue, once.
    """

    __slots__ = ("_guard", "_lock", "_queue", "try_acquire")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._lock = threading.Lock()
        self._queue: deque[Parker] = deque()
        # take it if it is free
        self.try_acquire: Callable[[], bool] = functools.partial(self._lock.acquire, False)

    def acquire(self, timeout: float) -> bool:
        """Wait for at most ``timeout`` seconds. True if taken."""
        parker = self._arrive()
        if parker is None:
            return True
        try:
            return parker.park(timeout) or self._quit(parker)
        except BaseException:
            self._desert(parker)
            raise

    async def aacquire(self, timeout: float) -> bool:
        """:meth:`acquire` for a task."""
        parker = self._arrive()
        if parker is None:
            return True
        try:
            return await parker.apark(timeout) or self._quit(parker)
        except BaseException:
            finalizers.now_or_later(self._desert, parker)
            raise

    def release(self) -> None:
        """Hand it to the first waiter that still waits."""
        if not self._queue:
            self._lock.release()
            # somebody may have queued between the two lines; if it was taken meanwhile, its next release sees to that
            if not self._queue or not self._lock.acquire(False):
                return
        with self._guard:
            while self._queue:
                if self._queue.popleft().wake():
                    return
            self._lock.release()

    def _arrive(self) -> Parker | None:
        with self._guard:
            if not self._queue and self._lock.acquire(False):
                return None
            parker = Parker()
            self._queue.append(parker)
            # it may have been released just before the queue had anybody in it
            if len(self._queue) == 1 and self._lock.acquire(False):
                self._queue.clear()
                return None
            return parker

    def _quit(self, parker: Parker) -> bool:
        with self._guard:
            if parker in self._queue:
                self._queue.remove(parker)
        return False

    def _desert(self, parker: Parker) -> None:
        if parker.leave():
            self.release()
        else:
            self._quit(parker)
