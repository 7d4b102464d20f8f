"""How many callers of one process may wait at the engine at once; the others wait here."""

from __future__ import annotations

import itertools
import threading
from bisect import insort
from typing import TYPE_CHECKING

from django_distlock.concurrency import finalizers
from django_distlock.concurrency.flow import Step
from django_distlock.concurrency.parking import Parker

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow


class Place:
    """A caller's own: from before it is asked for until after it is left, so that no interrupt takes it along."""

    __slots__ = ("number", "parker")

    def __init__(self, number: int) -> None:
        self.number = number
        self.parker = Parker()


class Places:
    """``size`` places, given in the order in which callers came."""

    def __init__(self, size: int) -> None:
        self._guard = threading.Lock()
        self._size = size
        self._taken: set[Place] = set()
        self._queue: list[Place] = []
        self._numbers = itertools.count()

    def new(self) -> Place:
        """For a caller who comes now; it leaves whatever happens."""
        return Place(next(self._numbers))

    def take(self, place: Place) -> bool:
        """True if there is one that nobody waits for."""
        with self._guard:
            if len(self._taken) >= self._size or self._queue:
                return False
            self._taken.add(place)
            return True

    def enter(self, place: Place, timeout: float) -> Flow[bool]:
        """Wait for at most ``timeout`` seconds. True if taken. After an exception the caller leaves."""
        place.parker = Parker()
        with self._guard:
            if len(self._taken) < self._size:
                self._taken.add(place)
                return True
            insort(self._queue, place, key=lambda place: place.number)
        if (yield Step(place.parker.park, place.parker.apark, (timeout,))):
            return True
        self.leave(place)
        return False

    def leave(self, place: Place) -> None:
        """Give it to the first who waits for one. Leaving twice, or what was never taken, is harmless."""
        try:
            self._leave(place)
        except BaseException:  # Ctrl-C in the midst of it: then a second time, which does what is left
            self._leave(place)
            raise

    def left_behind(self, place: Place) -> None:
        """:meth:`leave` from wherever an exception came, the garbage collector included."""
        finalizers.now_or_later(self.leave, place)

    def _leave(self, place: Place) -> None:
        with self._guard:
            if place in self._queue:
                self._queue.remove(place)
            self._taken.discard(place)
            while self._queue and len(self._taken - {self._queue[0]}) < self._size:
                head = self._queue[0]
                self._taken.add(head)
                if not head.parker.wake():
                    self._taken.discard(head)
                self._queue.pop(0)
