"""Background threads of the keys: claims are renewed while their views run, and expired records are deleted.

No request waits for either, and a process without claims has no such thread.
"""

from __future__ import annotations

import logging
import math
import queue
import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from django.core.cache import caches
from django.db import connections

from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.fork import Order, at_fork

from .conf import config
from .storage.database import DatabaseStorage

if TYPE_CHECKING:
    from django_distlock.schema import Tenant

    from .handle import KeyedRequest
    from .storage import Storage

logger = logging.getLogger("django_distlock.idempotency")
# Unfinished rounds of renewals. At a third of 30 s for each they cover the 130 s in which psycopg gives up connecting.
MOST_ROUNDS = 16
BATCH = 500  # the most records that one sweep deletes; if there are more, the next one is due at once


class Renewal:
    """The claims of this process: all are renewed at each third of the shortest ``claim_ttl`` among them.

    One thread keeps the time. Another one calls the storage for each round, so that a dead connection costs one round:
    the clock waits for it until the next round is due, and begins that one.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._sooner: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the thread for an earlier round
        self._attempts: dict[str, KeyedRequest] = {}  # by owner
        self._thread: threading.Thread | None = None
        self._due = math.inf  # the time of the next round
        self._rounds = Background("idempotency-renewal-round", MOST_ROUNDS)

    def add(self, attempt: KeyedRequest) -> None:
        due = clock.now() + attempt.claim.claim_ttl / 3
        with self._mutex:
            self._attempts[attempt.claim.owner] = attempt
            if due < self._due:
                self._due = due
                self._sooner.put(None)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="idempotency-renewal", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread can be started now: the next claim tries again
                    self._thread = None

    def remove(self, attempt: KeyedRequest) -> None:
        self._attempts.pop(attempt.claim.owner, None)

    def _work(self) -> None:
        while attempts := self._wait():
            try:
                run(self._rounds.call(self._due, self._renew, attempts))
            except CallTimeout:
                pass  # the next round asks again, on another connection
            except NotStarted:
                logger.exception("Claims could not be renewed; the next round tries again.")

    def _wait(self) -> list[KeyedRequest]:
        """Wait until a round is due. Returns its claims; without any the thread ends."""
        while (left := self._due - clock.now()) > 0:
            with suppress(queue.Empty):
                self._sooner.get(timeout=min(left, threading.TIMEOUT_MAX))
        with self._mutex:
            attempts = list(self._attempts.values())
            self._due = clock.now() + min((attempt.claim.claim_ttl for attempt in attempts), default=math.inf) / 3
            if not attempts:
                self._thread = None
            return attempts

    def _renew(self, attempts: list[KeyedRequest]) -> None:
        for attempt in attempts:
            try:
                attempt.tenant.enter()
                if not attempt.storage.renew(attempt.claim):
                    self.remove(attempt)
            except Exception:
                logger.exception("A claim could not be renewed; the next round tries again.")
        _close()


class Sweeper:
    """Deletes the expired records of each database, once per ``PURGE_EVERY`` and process, as requests go by."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}  # by alias; never while a sweep runs
        self._sweeps = Background("idempotency-sweep")

    def sweep_if_due(self, storage: Storage, tenant: Tenant) -> None:
        """Start a sweep in a thread if one is due, in the schema of ``tenant``.

        The first is due at a random time within the interval, so that processes which began together do not sweep
        together.
        """
        interval = config().purge_every
        if interval is None or not isinstance(storage, DatabaseStorage):  # a cache deletes what has expired
            return
        now = clock.now()
        first = now + interval * random.random()  # noqa: S311 - no secret
        if now < self._due.setdefault(storage.alias, first) or _in_test_case(storage.alias):
            return
        self._due[storage.alias] = math.inf
        try:
            self._sweeps.start(self._sweep, storage, tenant, interval)
        except NotStarted:
            self._due[storage.alias] = now + interval

    def _sweep(self, storage: DatabaseStorage, tenant: Tenant, interval: float) -> None:
        deleted = 0
        try:
            tenant.enter()
            deleted = storage.purge(batch=BATCH)
        except Exception:
            logger.exception("Old idempotency keys could not be deleted; the next sweep tries again.")
        finally:
            _close()
            self._due[storage.alias] = clock.now() + (0 if deleted == BATCH else interval)


def _close() -> None:
    """Close the connections of this thread, which ends."""
    try:
        caches.close_all()
        connections.close_all()
    except Exception:
        logger.exception("A connection could not be closed.")


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
