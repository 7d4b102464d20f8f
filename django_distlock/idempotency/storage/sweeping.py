"""Deletes what has outlived its lifetime, as requests go by: once per interval and process, in a thread that lives for
no longer than that takes. The request that happens to come when it is due waits for nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import threading
from typing import TYPE_CHECKING

from django.db import connections

from django_distlock import LockNotAcquired
from django_distlock.concurrency.clock import monotonic
from django_distlock.idempotency.conf import config

from .database import DatabaseStorage

if TYPE_CHECKING:
    from django_distlock.idempotency.storage import Storage

logger = logging.getLogger("django_distlock.idempotency")
# What one sweep deletes at most, so that it never is one long burden; what is left is for the next.
BATCH, BATCHES = 500, 20


class Sweeper:
    """When this process swept each storage last."""

    def __init__(self) -> None:
        self._due: dict[Storage, float] = {}
        self._busy: set[Storage] = set()  # a server that hangs may hold up a sweep for minutes
        self._guard = threading.Lock()

    def look(self, storage: Storage) -> None:
        """Start a sweep if one is due. The first is due at a random time within the interval, so that processes which
        began together do not sweep together."""
        interval = config().purge_every
        if interval is None:
            return
        now = monotonic()
        due = self._due.get(storage)
        if due is None:
            self._due[storage] = now + interval * random.random()  # noqa: S311 - no secret
        elif now >= due:
            self._begin(storage, now, interval)

    def _begin(self, storage: Storage, now: float, interval: float) -> None:
        with self._guard:
            if now < self._due[storage]:
                return
            self._due[storage] = now + interval
            if storage in self._busy or not isinstance(storage, DatabaseStorage) or _in_test_case(storage.alias):
                return  # a cache forgets by itself
            self._busy.add(storage)
        with contextlib.suppress(RuntimeError):  # no thread to be had: the next one is tried in time
            threading.Thread(target=self._sweep, args=(storage,), name="idempotency-sweep", daemon=True).start()
            return
        self._busy.discard(storage)

    def _sweep(self, storage: DatabaseStorage) -> None:
        try:
            deleted = storage.purge(batch=BATCH, batches=BATCHES)
            if deleted == BATCH * BATCHES:  # there may be more
                self._due[storage] = -math.inf
        except LockNotAcquired:
            logger.info("The table of idempotency keys is busy: old keys are deleted later.")
        except Exception:
            logger.exception("Old idempotency keys could not be deleted; it is tried again later.")
        finally:
            with contextlib.suppress(Exception):
                storage.close()
            self._busy.discard(storage)


def _in_test_case(alias: str) -> bool:
    """In the transaction of a TestCase: another connection would see nothing, or wait for its end."""
    return any(getattr(block, "_from_testcase", False) for block in connections[alias].atomic_blocks)


sweeper = Sweeper()
os.register_at_fork(after_in_child=lambda: sweeper.__init__())  # type: ignore[misc]
