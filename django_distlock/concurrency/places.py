"""Places for the waiters of a process at a server: few, given in order of arrival, and taken in turns.

A waiter without a place is in no queue of the server. So while others want a place, a waiter that has had one for a
while gives it up, and goes to the end of the line.
"""

from __future__ import annotations

import threading

from .parking import Parker

# How long a waiter keeps its place while others want one; seconds. Doubled each time, so that it gets in at last even
# where many wait for its lock.
TURN = 1.0


class Place:
    """One of :class:`Places`, or a request for one."""

    __slots__ = ("parker",)

    def __init__(self) -> None:
        self.parker: Parker | None = None


class Places:
    """``size`` places for the waiters of this process at a server, given in order of arrival.

    Callers without a place wait here. The caller creates its :class:`Place` first and leaves it last, so that an
    interrupt cannot lose it.
    """

    def __init__(self, size: int) -> None:
        self._guard = threading.Lock()
        self.size = size
        self._taken: set[Place] = set()
        self._queue: list[Place] = []

    def wanted(self) -> bool:
        """Are there callers without a place?"""
        return bool(self._queue)

    def take(self, place: Place, *, first: bool = False) -> bool:
        """Take the place if there is room and no other caller waits; else queue for it. True if taken."""
        with self._guard:
            if place not in self._taken and place not in self._queue:
                self._queue.insert(0 if first else len(self._queue), place)
            self._serve()
            return place in self._taken

    async def enter(self, place: Place, timeout: float) -> bool:
        """:meth:`take` the place, waiting for at most ``timeout`` seconds. True if taken. Else it stays in the queue,
        until the caller leaves it."""
        place.parker = Parker()
        if not self.take(place):
            await place.parker.park(timeout)
        place.parker = None
        return self.take(place, first=True)  # the wait may have ended at the moment of its turn

    def leave(self, place: Place) -> None:
        """Give the place to the first waiter. Leaving twice, or without having taken it, is harmless."""
        try:
            self._leave(place)
        except BaseException:  # interrupted by Ctrl-C: the second call does the rest
            self._leave(place)
            raise

    def _leave(self, place: Place) -> None:
        with self._guard:
            if place in self._queue:
                self._queue.remove(place)
            self._taken.discard(place)
            self._serve()

    def _serve(self) -> None:
        while self._queue and (self._queue[0] in self._taken or len(self._taken) < self.size):
            head = self._queue[0]
            self._taken.add(head)
            if head.parker is not None and not head.parker.wake():
                self._taken.discard(head)  # its time is over, or its event loop is closed
            self._queue.pop(0)
