"""Writes what has happened a moment later, in batches, in a thread of its own."""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from django.db import InterfaceError, OperationalError, connections

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("django_distlock.operations")

# Seconds from an event until it is written.
DELAY = 1.0
# Rows of one statement, and so rows per DELAY, of which a flood of ordinary ones may take this many.
BATCH = 500
ORDINARY = 200
# Of those that must not be left out, this many wait for a database that does not take them.
KEPT = 5000
# A batch of them is tried so often, over some minutes: locks are lost just when a database is restarted.
TRIES = 8
# Seconds between two prunings of one process; and how long a process that ends waits for the last batch.
PRUNE_EVERY = 3600.0
FAREWELL = 2.0


class Recorder:
    """``write(items)`` stores a batch, ``prune()`` deletes what is old; both run in the thread only."""

    def __init__(self, write: Callable[[Sequence[Any]], None], prune: Callable[[], object]) -> None:
        self._write, self._prune = write, prune
        self.reset()

    def reset(self) -> None:
        """Nothing queued, no thread: at the start, and in the child of a fork."""
        self._guard = threading.Lock()
        self._rare: deque[Any] = deque()
        self._ordinary: deque[Any] = deque()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        # many processes start at once: they do not prune at once
        self._prune_at = monotonic() + random.random() * PRUNE_EVERY  # noqa: S311 - spreads work, guards no secret
        self.dropped = 0

    def put(self, item: Any, *, rare: bool) -> None:
        """Queue ``item``; an ordinary one is dropped in a flood, a rare one if the database takes none for long."""
        with self._guard:
            queue, most = (self._rare, KEPT) if rare else (self._ordinary, ORDINARY)
            if len(queue) >= most:
                self.dropped += 1
                return
            queue.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="distlock-history", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread to be had: written with the next event
                    self._thread = None

    def flush(self, timeout: float) -> bool:
        """Have it written now and wait for that, for at most ``timeout`` seconds; True if it is."""
        thread = self._thread
        if thread is None:
            return True
        self._hurry.set()
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        failures = 0
        while True:
            # a database that is down is asked less and less often; who is in a hurry asks once
            self._hurry.wait(min(DELAY * 2**failures, 60.0))
            with self._guard:
                rare = [self._rare.popleft() for _ in range(min(len(self._rare), BATCH))]
                ordinary = [self._ordinary.popleft() for _ in range(min(len(self._ordinary), BATCH - len(rare)))]
                dropped, self.dropped = self.dropped, 0
                if not rare and not ordinary:
                    self._end()
                    return
            if dropped:
                logger.warning("%d events of locks were not recorded: there were too many.", dropped)
            error = self._store(rare + ordinary)
            failures = 0 if error is None else failures + 1
            with self._guard:
                if isinstance(error, OperationalError | InterfaceError) and failures < TRIES:
                    self._rare.extendleft(reversed(rare))
                if error is not None and self._hurry.is_set():
                    self._end()
                    return
                failures %= TRIES

    def _end(self) -> None:
        self._thread = None
        self._hurry.clear()

    def _store(self, batch: list[Any]) -> Exception | None:
        try:
            self._write(batch)
            self._prune_if_due()
        except Exception as error:
            logger.warning("%d events of locks could not be recorded: %s", len(batch), one_line(error))
            return error
        finally:
            connections.close_all()  # those of this thread
        return None

    def _prune_if_due(self) -> None:
        if monotonic() >= self._prune_at:
            self._prune_at = monotonic() + PRUNE_EVERY
            try:
                self._prune()
            except Exception as error:  # what was written is written
                logger.warning("Old events of locks could not be deleted: %s", one_line(error))


def at_exit_and_fork(recorder: Recorder) -> None:
    """What a short command did in its last second is written; a child forgets what its parent will write."""
    atexit.register(lambda: recorder.flush(FAREWELL))
    os.register_at_fork(after_in_child=recorder.reset)
