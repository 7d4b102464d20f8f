"""Records the events of locks for their history, if ``DISTLOCK_HISTORY_DAYS`` is set.

Receivers of the signals queue the events; a thread with its own database connection writes them in batches, so that no
acquire and no release pays a statement. In a flood the oldest events are left out.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import socket
import threading
from collections import deque
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, connections

from django_distlock import signals
from django_distlock.concurrency import clock
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.text import one_line
from django_distlock.conf import history_days
from django_distlock.keys import full_name
from django_distlock.models import LockEvent

from . import history

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.dispatch import Signal

logger = logging.getLogger("django_distlock.operations")

UID = "django_distlock.history"
# The signals that are recorded.
KINDS = ("acquired", "released", "timed_out", "lost", "broken")
# Seconds from an event until it is written.
DELAY = 1.0
# Events that wait to be written, and rows of one statement.
MOST, BATCH = 5000, 500
# How often a batch is tried, over some minutes: locks are lost when a database is being restarted.
TRIES = 8
# Seconds between two prunings by one process.
PRUNE_EVERY = 3600.0
# Seconds that a process waits at its exit for the last batch.
EXIT_TIMEOUT = 2.0


class Recorder:
    """Queues events for its thread, which calls ``write(items)`` with batches of them and ``prune()`` once an hour."""

    def __init__(self, write: Callable[[Sequence[Any]], None], prune: Callable[[], object]) -> None:
        self._write, self._prune = write, prune
        self.reset()

    def reset(self) -> None:
        """Start with an empty queue and without a thread: also in the child of a fork."""
        self._guard = threading.Lock()
        self._items: deque[Any] = deque(maxlen=MOST)
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        # processes that start together do not prune together
        self._prune_at = clock.now() + random.random() * PRUNE_EVERY  # noqa: S311 - spreads work, guards no secret

    def put(self, item: Any) -> None:
        """Queue ``item``."""
        with self._guard:
            self._items.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="distlock-history", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread can be started: the next event tries again
                    self._thread = None

    def flush(self, timeout: float) -> bool:
        """Write what is queued now, and try it once. True if that is done within ``timeout`` seconds."""
        thread = self._thread
        if thread is None:
            return True
        self._hurry.set()
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        while batch := self._next_batch():
            for failures in range(TRIES):
                error = _try(partial(self._write, batch), f"{len(batch)} events of locks could not be recorded")
                if not isinstance(error, OperationalError | InterfaceError) or self._hurry.is_set():
                    break
                # a database that is down is tried ever less often
                self._hurry.wait(min(DELAY * 2 ** (failures + 1), 60.0))
            if clock.now() >= self._prune_at:
                self._prune_at = clock.now() + PRUNE_EVERY
                _try(self._prune, "Old events of locks could not be deleted")

    def _next_batch(self) -> list[Any]:
        """What has been queued for a second. Nothing: the thread ends, and the next event starts another."""
        self._hurry.wait(DELAY)
        with self._guard:
            batch = [self._items.popleft() for _ in range(min(len(self._items), BATCH))]
            if not batch:
                self._thread = None
                self._hurry.clear()
        return batch


def _try(action: Callable[[], object], failed: str) -> Exception | None:
    try:
        action()
    except Exception as error:
        logger.warning("%s: %s", failed, one_line(error))
        return error
    finally:
        connections.close_all()  # the connections of this thread
    return None


def configure() -> None:
    """Start or stop recording, as the setting says."""
    try:
        on = history.enabled()
    except ImproperlyConfigured:  # reported by the system check
        on = False
    for kind in KINDS:
        signal: Signal = getattr(signals, f"lock_{kind}")
        if on:
            signal.connect(partial(_put, kind), dispatch_uid=UID, weak=False)
        else:
            signal.disconnect(dispatch_uid=UID)


def _put(kind: str, sender: type, *, name: str, namespace: str, using: str, **facts: Any) -> None:
    recorder.put((kind, datetime.now(UTC), full_name(namespace, name), using, facts))


def _write(items: Sequence[tuple[str, datetime, str, str, dict[str, Any]]]) -> None:
    holder = one_line(f"{socket.gethostname()}:{os.getpid()}")[:255]
    LockEvent.rows.bulk_create(
        LockEvent(
            alias=history.ascii_of(using),
            digest=history.digest_of(name),
            name=one_line(name)[:512],
            kind=kind,
            at=at,
            wait=facts.get("wait"),
            hold=None if kind == "acquired" else facts.get("hold"),
            fence=facts.get("fence"),
            reason=one_line(facts.get("reason", ""))[:255],
            holder=holder,
        )
        for kind, at, name, using, facts in items
    )


def _prune() -> None:
    if (days := history_days()) is not None:
        history.prune(days)


recorder = Recorder(_write, _prune)
# A short command's last second is written. The child of a fork forgets what its parent will write.
atexit.register(lambda: recorder.flush(EXIT_TIMEOUT))
at_fork(Order.THREADS, child=recorder.reset)
