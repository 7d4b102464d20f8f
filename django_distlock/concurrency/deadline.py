"""Deadlines, pauses and backoff, in seconds on the monotonic clock."""

from __future__ import annotations

import asyncio
import math
import random
import time

from . import clock
from .flow import in_task

# Seconds from the beginning of a call that a server has for its answer, however short the timeout is: before that it
# counts neither as busy nor as unavailable (R5).
SILENCE = 1.0
# Seconds for the answer to a release, a listing or another short request that no timeout of a caller bounds.
PATIENCE = 2.0


class Deadline:
    """A point on the monotonic clock: ``timeout`` seconds after ``start`` (default: now); None never ends.

    ``answer_by`` is the time by which the engine must have answered: the deadline, and at least SILENCE after the
    start, which must be enough to connect.
    """

    __slots__ = ("answer_by", "at")

    def __init__(self, timeout: float | None, start: float | None = None) -> None:
        start = clock.now() if start is None else start
        self.at = math.inf if timeout is None else start + timeout
        self.answer_by = max(self.at, start + SILENCE)

    def left(self) -> float:
        """Seconds left, never below zero; ``math.inf`` if there is no end."""
        left = self.at - clock.now()
        return left if left > 0 else 0.0


async def pause(seconds: float) -> None:
    """Sleep."""
    if in_task():
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)  # noqa: ASYNC251 - in a thread


def backoff(attempt: int, *, first: float = 0.001, longest: float = 0.05) -> float:
    """Seconds to sleep before attempt ``attempt + 1``: doubled each time, at most ``longest``, with full jitter.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    ceiling = min(longest, first * float(2 ** min(attempt, 16)))
    return ceiling * (0.5 + random.random() / 2)  # noqa: S311 - spreads retries, guards no secret
