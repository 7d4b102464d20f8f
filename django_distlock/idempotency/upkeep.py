"""Background threads of the keys: claims are renewed while their views run, and expired records are deleted.

No request waits for either, and a process without claims has no such thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
from typing import TYPE_CHECKING

from django.db import connections

from django_distlock import LockNotAcquired
from django_distlock.concurrency import clock
from django_distlock.concurrency.fork import Order, at_fork

from .conf import config
from .storage.database import DatabaseStorage

if TYPE_CHECKING:
    from django_distlock.schema import Tenant

    from .handle import KeyedRequest
    from .storage import Storage

logger = logging.getLogger("django_distlock.idempotency")
IDLE = 5.0  # seconds that the renewal thread stays without a claim
# Unfinished rounds of renewals per storage. At a third of 30 s for each they cover the 130 s in which psycopg gives up
# connecting.
MOST_ROUNDS = 16
# The most records that one sweep deletes, so that it never burdens the server for long; the next one continues.
BATCH, BATCHES = 500, 20


class Renewal:
    """The claims of this process. Each is renewed after a third of its ``claim_ttl``.

    One thread keeps the time for all claims. The storage is called by another thread for each round, so that a dead
    connection or a hanging server delays only that round. A round that does not end in time is abandoned.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, tuple[float, KeyedRequest]] = {}
        self._thread: threading.Thread | None = None
        self._begun: dict[Storage, list[float]] = {}  # when the unfinished rounds of a storage began

    def add(self, attempt: KeyedRequest) -> None:
        with self._changed:
            due = clock.now() + attempt.claim.claim_ttl / 3
            first = min((at for at, _attempt in self._due.values()), default=None)
            self._due[attempt.claim.owner] = (due, attempt)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="idempotency-renewal", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread can be started now: the next claim tries again
                    self._thread = None
            elif first is None or due < first:
                self._changed.notify()

    def remove(self, attempt: KeyedRequest) -> None:
        with self._changed:
            self._due.pop(attempt.claim.owner, None)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._changed.wait(IDLE)
                    if not self._due:
                        self._thread = None
                        return
                now = clock.now()
                times = {owner: self._time_of(at, attempt) for owner, (at, attempt) in self._due.items()}
                due = [self._due[owner][1] for owner, at in times.items() if at <= now]
                if not due:
                    self._changed.wait(min(min(times.values()) - now, IDLE))
                    continue
                for attempt in due:
                    self._due[attempt.claim.owner] = (now + attempt.claim.claim_ttl / 3, attempt)
                for storage in {attempt.storage for attempt in due}:
                    self._begin(storage, [attempt for attempt in due if attempt.storage is storage], now)

    def _time_of(self, due: float, attempt: KeyedRequest) -> float:
        """When a claim is renewed: not while a round of its storage runs that may still end in time."""
        begun = self._begun.get(attempt.storage)
        if not begun:
            return due
        return math.inf if len(begun) >= MOST_ROUNDS else max(due, begun[-1] + attempt.claim.claim_ttl / 3)

    def _begin(self, storage: Storage, attempts: list[KeyedRequest], now: float) -> None:
        name = "idempotency-renewal-round"
        try:
            threading.Thread(target=self._renew, args=(storage, attempts, now), name=name, daemon=True).start()
        except RuntimeError:
            logger.exception("No thread could be started to renew claims; the next round tries again.")
            return
        self._begun.setdefault(storage, []).append(now)

    def _renew(self, storage: Storage, attempts: list[KeyedRequest], began: float) -> None:
        try:
            for attempt in attempts:
                try:
                    if attempt.tenant is not None:
                        attempt.tenant.enter()
                    if not storage.renew(attempt.claim):
                        self.remove(attempt)
                except Exception:
                    logger.exception("A claim could not be renewed; the next round tries again.")
            try:
                storage.close()
                connections.close_all()  # of this thread: a cache in a database has one
            except Exception:
                logger.exception("A connection could not be closed.")
        finally:
            with self._changed:
                self._begun[storage].remove(began)
                if not self._begun[storage]:
                    del self._begun[storage]
                self._changed.notify()


class Sweeper:
    """Deletes the expired records of each database, once per ``PURGE_EVERY`` and process, as requests go by."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}  # by alias
        self._busy: set[str] = set()  # a sweep may take minutes if the server hangs
        self._guard = threading.Lock()

    def sweep_if_due(self, storage: Storage, tenant: Tenant | None = None) -> None:
        """Start a sweep in a thread if one is due, in the schema of ``tenant``.

        The first is due at a random time within the interval, so that processes which began together do not sweep
        together.
        """
        interval = config().purge_every
        if interval is None or not isinstance(storage, DatabaseStorage):  # a cache deletes what has expired
            return
        now = clock.now()
        due = self._due.get(storage.alias)
        if due is None:
            self._due[storage.alias] = now + interval * random.random()  # noqa: S311 - no secret
        elif now >= due:
            self._begin(storage, tenant, now, interval)

    def _begin(self, storage: DatabaseStorage, tenant: Tenant | None, now: float, interval: float) -> None:
        with self._guard:
            if now < self._due[storage.alias]:
                return
            self._due[storage.alias] = now + interval
            if storage.alias in self._busy or _in_test_case(storage.alias):
                return
            self._busy.add(storage.alias)
        with contextlib.suppress(RuntimeError):  # no thread can be started now: the next sweep is tried in time
            threading.Thread(target=self._sweep, args=(storage, tenant), name="idempotency-sweep", daemon=True).start()
            return
        self._busy.discard(storage.alias)

    def _sweep(self, storage: DatabaseStorage, tenant: Tenant | None) -> None:
        try:
            if tenant is not None:
                tenant.enter()
            deleted = storage.purge(batch=BATCH, batches=BATCHES)
            if deleted == BATCH * BATCHES:  # there may be more
                self._due[storage.alias] = -math.inf
        except LockNotAcquired:
            logger.info("The table of idempotency keys is busy: old keys are deleted later.")
        except Exception:
            logger.exception("Old idempotency keys could not be deleted; the next sweep tries again.")
        finally:
            with contextlib.suppress(Exception):
                storage.close()
            self._busy.discard(storage.alias)


def _in_test_case(alias: str) -> bool:
    """Is the connection in the transaction of a TestCase, whose rows another connection does not see?"""
    return any(getattr(block, "_from_testcase", False) for block in connections[alias].atomic_blocks)


def _after_fork() -> None:
    """The threads are the parent's, and so are its claims."""
    renewal.__init__()  # type: ignore[misc]
    sweeper.__init__()  # type: ignore[misc]


renewal = Renewal()
sweeper = Sweeper()
at_fork(Order.THREADS, child=_after_fork)
