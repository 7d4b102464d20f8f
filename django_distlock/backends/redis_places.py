"""How many callers of one process may wait at the engine at once; the others wait here."""

from __future__ import annotations

import itertools
import threading
from bisect import insort
from typing import TYPE_CHECKING

from django_distlock import garbage
from django_distlock.parking import Parker
from django_distlock.waiting import Call

if TYPE_CHECKING:
    from django_distlock.waiting import Flow


class Places:
    """``size`` places, given in the order of the numbers that callers drew when they came."""

    def __init__(self, size: int) -> None:
        self._guard = threading.Lock()
        self._free = size
        self._queue: list[tuple[int, Parker]] = []
        self._numbers = itertools.count()

    def number(self) -> int:
        """The next number: a caller draws one and comes back with it."""
        return next(self._numbers)

    def take(self) -> bool:
        """A place, if there is one that nobody waits for."""
        with self._guard:
            if not self._free or self._queue:
                return False
            self._free -= 1
            return True

    def enter(self, number: int, timeout: float) -> Flow[bool]:
        """Wait for a place for at most ``timeout`` seconds. True if taken."""
        parker = Parker()
        with self._guard:
            if self._free:
                self._free -= 1
                return True
            insort(self._queue, (number, parker))
        try:
            taken: bool = yield Call(parker, "park", (timeout,))
        except BaseException:
            garbage.now_or_later(self._desert, number, parker)
            raise
        if not taken:
            self._quit(number, parker)
        return taken

    def leave(self) -> None:
        """Give a place to the first who waits for one."""
        with self._guard:
            while self._queue:
                if self._queue.pop(0)[1].wake():
                    return
            self._free += 1

    def _quit(self, number: int, parker: Parker) -> None:
        with self._guard:
            if (number, parker) in self._queue:
                self._queue.remove((number, parker))

    def _desert(self, number: int, parker: Parker) -> None:
        if parker.leave():
            self.leave()
        else:
            self._quit(number, parker)
