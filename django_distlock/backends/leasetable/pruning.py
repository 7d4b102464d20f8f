"""Pruning of the lease table: leases that ended a day ago are deleted, since fences follow the clock."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from typing import TYPE_CHECKING

from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.text import one_line

from .records import StoreError

if TYPE_CHECKING:
    from .statements import Store

logger = logging.getLogger("django_distlock.backends")

# Rows for one statement, which takes a few milliseconds of the session.
BATCH = 1000
# Seconds between two prunings by one process, on average.
EVERY = 3600.0
PATIENCE = 2.0
# Seconds between two batches, in which other statements have the session.
BREATH = 0.005


class Pruning:
    """Prunes on demand, and regularly in the background."""

    def __init__(self, store: Store, alias: str) -> None:
        self._store = store
        self._name = f"distlock-{alias}-prune"
        self._due = clock.now() + self._interval()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @staticmethod
    def _interval() -> float:
        """A random interval: processes that were started together do not prune together."""
        return EVERY * random.uniform(0.5, 1.5)  # noqa: S311

    def run(self, batch: int = BATCH, breath: float = 0.0) -> int:
        """Prune the whole table, ``batch`` rows at a time; how many leases were deleted. StoreError."""
        total = 0
        last = None
        while True:
            deleted, last = run(self._store.run(clock.now() + PATIENCE, self._store.statements.prune, last, batch))
            total += int(deleted)
            if last is None or self._stop.wait(breath):
                return total

    def tick(self, now: float) -> None:
        """Prune in the background if it is due."""
        if now >= self._due:
            self._due = now + self._interval()
            thread = threading.Thread(target=self._run_quietly, name=self._name, daemon=True)
            with contextlib.suppress(RuntimeError):  # there is no thread: the next process, or the next time
                thread.start()
                self._thread = thread

    def _run_quietly(self) -> None:
        try:
            self.run(breath=BREATH)
        except StoreError as error:
            logger.warning("Old leases could not be deleted: %s", one_line(error))

    def close(self) -> None:
        """End the pruning in the background."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(PATIENCE)
            self._stop.clear()
            self._thread = None
