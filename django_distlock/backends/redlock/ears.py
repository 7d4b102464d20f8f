"""Ears: connections on which waiters sleep until the node at which they stand in line calls them.

One for each waiter, apart from the lanes, so that a sleeper holds up nobody and needs no thread that wakes it. Who gets
none, because there are too many or the node allows no channels, looks again and again instead.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django_distlock.backends.redis.pool import LinkError, Pool
from django_distlock.backends.redis.protocol import pack
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.backends.redis.pool import Link
    from django_distlock.backends.redis.target import Target
    from django_distlock.concurrency.flow import Flow

# Those of one process to each node, at most.
EARS = 16
# So long may it take to open one, for which its caller waits; and after a failure nobody tries for the other. Seconds.
OPENING, DEAF = 1.0, 2.0

_PING = pack("PING")


class Ears:
    """Those of a process, by node."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._pools = [Pool(target) for target in targets]
        self._deaf_until = [0.0] * len(targets)
        self._opening = threading.Lock()

    def take(self, index: int) -> Link | None:
        """One at hand for the node ``index``, or None."""
        return self._pools[index].take()

    def give(self, index: int, ear: Link) -> None:
        self._pools[index].give(ear)

    def open(self, index: int, until: float) -> Flow[bool]:
        """Have one at hand; False if that cannot be at present. One after the other: who waits for many names at once
        would have no time for anything else."""
        pool, now, ear = self._pools[index], monotonic(), None
        if pool.size >= EARS or now < self._deaf_until[index] or not self._opening.acquire(False):
            return False
        until = min(until, now + OPENING)
        try:
            ear = yield from pool.link(until)
            if not ear.subscribed:
                ear.subscribe()
                ear.send(_PING)
                yield Step(
                    ear.receive, ear.areceive, (until,)
                )  # whatever it says, the answer to the other has come before
        except BaseException as error:
            if ear is not None:
                pool.discard(ear)
            if not isinstance(error, LinkError):
                raise
            self._deaf_until[index] = now + DEAF
            return False
        finally:
            self._opening.release()
        pool.give(ear)
        return True

    def tick(self, now: float) -> bool:
        """Close those that nobody uses. Is any left?"""
        for pool in self._pools:
            pool.close_idle(now)
        return any(pool.is_open for pool in self._pools)

    def close(self) -> None:
        for pool in self._pools:
            pool.close()

    def abandon(self) -> None:
        """In the child of a fork."""
        self._opening = threading.Lock()
        for pool in self._pools:
            pool.abandon()


def called(ear: Link, member: bytes, until: float) -> Flow[bool]:
    """Sleep until ``member`` is called; False at the monotonic time ``until``. LinkError if nobody can be heard."""
    while True:
        push = yield Step(ear.listen, ear.alisten, (until,))
        if push is None:
            return False
        # whoever had this ear before may have been called too late
        if push[0] == b"message" and push[2] == member:
            return True
