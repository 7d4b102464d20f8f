"""What every contestant must be able to do, and the one that does not lock at all."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

LOCK_NAME = "bench"
# for entries inside one transaction, where a name taken twice would be a re-entry
LOCK_NAMES = tuple(f"{LOCK_NAME}-{number}" for number in range(25))


def nothing() -> None:
    """Stand in the critical section where only acquire and release are timed."""


class Entry(ABC):
    """One way to take and give back one lock, used from one process at a time after ``open``."""

    label: ClassVar[str]
    uncontended: ClassVar[bool] = True
    contended: ClassVar[bool] = True
    exclusive: ClassVar[bool] = True
    repeated: ClassVar[bool] = True  # takes part in every contended round; False where no budget asks: one round
    quick: ClassVar[bool] = True  # takes part in --quick; False where no budget asks
    pairs: ClassVar[int] = 25  # per slice; fewer where one takes milliseconds
    ours: ClassVar[bool] = False
    name: ClassVar[str] = LOCK_NAME

    def open(self) -> None:  # noqa: B027  most have something to open, and one has not
        """Connect; called in the process that measures, after it was pinned."""

    def close(self) -> None:  # noqa: B027
        """Give every connection back."""

    @abstractmethod
    def cycle(self, body: Callable[[], object]) -> None:
        """Acquire, call ``body`` once, release."""

    def around(self) -> AbstractContextManager[object]:
        """Return what surrounds a whole slice and is not timed, such as an open transaction."""
        return nullcontext()

    def slice(self, pairs: int) -> list[int]:
        """Return the nanoseconds of each of ``pairs`` acquire+release pairs."""
        clock, cycle, samples = time.perf_counter_ns, self.cycle, []
        with self.around():
            for _ in range(pairs):
                began = clock()
                cycle(nothing)
                samples.append(clock() - began)
        return samples


class AsyncEntry(Entry):
    """A contestant that is awaited; its slices run on one event loop that is kept between them."""

    contended = False

    def open(self) -> None:
        """Make the loop that all slices share, so that sessions bound to a loop are opened once."""
        self.runner = asyncio.Runner()

    def close(self) -> None:
        """Close the loop."""
        self.runner.close()

    def cycle(self, body: Callable[[], object]) -> None:
        """Run one pair on the loop; the loop's own start and stop are part of it, so slices do not use this."""
        self.runner.run(self.acycle(body))

    @abstractmethod
    async def acycle(self, body: Callable[[], object]) -> None:
        """Acquire, call ``body`` once, release."""

    def slice(self, pairs: int) -> list[int]:
        """Return the nanoseconds of each pair, taken inside the running loop."""
        return self.runner.run(self._slice(pairs))

    async def _slice(self, pairs: int) -> list[int]:
        clock, acycle, samples = time.perf_counter_ns, self.acycle, []
        for _ in range(pairs):
            began = clock()
            await acycle(nothing)
            samples.append(clock() - began)
        return samples


class NoLock(Entry):
    """Exclude nobody: the checker of lost updates must find some here, or it proves nothing for the others."""

    label = "none"
    uncontended = exclusive = repeated = False  # --quick checks as well

    def cycle(self, body: Callable[[], object]) -> None:
        """Call ``body`` without any lock."""
        body()
