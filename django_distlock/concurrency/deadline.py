"""Deadlines, pauses and backoff, in seconds on the monotonic clock."""

from __future__ import annotations

import asyncio
import math
import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds that an engine has for its answer at least, counted from the beginning of the call: if the caller does not
# wait, and if it does. The call ends at most 50 ms after its timeout.
LEAST_PATIENCE, LEAST_ANSWER = 0.5, 0.03


class Deadline:
    """A point on the monotonic clock: ``timeout`` seconds after ``start`` (now); None never ends.

    ``answer_by`` is when an engine must have answered. That is the deadline; but a caller that does not wait still
    gives it LEAST_PATIENCE to connect and to say whether the lock is busy.
    """

    __slots__ = ("_clock", "_waits", "answer_by", "at")

    def __init__(self, timeout: float | None, clock: Callable[[], float], start: float | None = None) -> None:
        start = clock() if start is None else start
        self._clock = clock
        self._waits = timeout != 0
        self.at = math.inf if timeout is None else start + timeout
        self.answer_by = max(self.at, start + (LEAST_ANSWER if self._waits else LEAST_PATIENCE))

    def over(self) -> bool:
        """Has the time of a caller who waits run out, so that nobody need be asked any more?"""
        return self._waits and self._clock() >= self.at

    def left(self) -> float:
        """Seconds left, never below zero; ``math.inf`` if there is no end."""
        left = self.at - self._clock()
        return left if left > 0 else 0.0


class Pause:
    """Sleeping as a step: ``Step(PAUSE.sleep, PAUSE.asleep, (seconds,))``."""

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(seconds)

    @staticmethod
    async def asleep(seconds: float) -> None:
        await asyncio.sleep(seconds)


PAUSE = Pause()


def backoff(attempt: int, *, first: float = 0.001, longest: float = 0.05) -> float:
    """Seconds to sleep before attempt ``attempt + 1``: doubled each time, at most ``longest``, with full jitter.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    ceiling = min(longest, first * float(2 ** min(attempt, 16)))
    return ceiling * (0.5 + random.random() / 2)  # noqa: S311 - spreads retries, guards no secret
