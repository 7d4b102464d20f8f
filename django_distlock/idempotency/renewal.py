"""Claims are renewed while their views run: one thread of the process keeps the time for all of them, and none where
none is held. The stores are asked by threads of their own, one for each round: a connection that is dead, or a server
that hangs, holds up that round, and neither the next one nor another store.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import TYPE_CHECKING

from django_distlock.concurrency.clock import monotonic

if TYPE_CHECKING:
    from .job import Job
    from .storage import Storage

logger = logging.getLogger("django_distlock.idempotency")
IDLE = 5.0  # seconds that the thread stays without anything to renew
# That a store may owe an answer. At a third of 30 s for each they cover the 130 s in which psycopg gives up connecting.
MOST_ROUNDS = 16


class Renewal:
    """The claims of this process, each renewed after every third of its lease. A round that does not come back within
    that time is left to itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, tuple[float, Job]] = {}
        self._thread: threading.Thread | None = None
        self._begun: dict[Storage, list[float]] = {}  # when the unfinished rounds of a store began

    def add(self, job: Job) -> None:
        with self._changed:
            due = monotonic() + job.claim_ttl / 3
            first = min((at for at, _job in self._due.values()), default=None)
            self._due[job.owner] = (due, job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="idempotency-renewal", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread to be had: started by the next one
                    self._thread = None
            elif first is None or due < first:
                self._changed.notify()

    def remove(self, job: Job) -> None:
        with self._changed:
            self._due.pop(job.owner, None)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._changed.wait(IDLE)
                    if not self._due:
                        self._thread = None
                        return
                now = monotonic()
                times = {owner: self._time_of(at, job) for owner, (at, job) in self._due.items()}
                due = [self._due[owner][1] for owner, at in times.items() if at <= now]
                if not due:
                    self._changed.wait(min(min(times.values()) - now, IDLE))
                    continue
                for job in due:
                    self._due[job.owner] = (now + job.claim_ttl / 3, job)
                for storage in {job.storage for job in due}:
                    self._begin(storage, [job for job in due if job.storage == storage], now)

    def _time_of(self, due: float, job: Job) -> float:
        """When a claim can be renewed: not while a round is under way that may still come back."""
        begun = self._begun.get(job.storage)
        if not begun:
            return due
        return math.inf if len(begun) >= MOST_ROUNDS else max(due, begun[-1] + job.claim_ttl / 3)

    def _begin(self, storage: Storage, jobs: list[Job], now: float) -> None:
        name = "idempotency-renewal-round"
        try:
            threading.Thread(target=self._renew, args=(storage, jobs, now), name=name, daemon=True).start()
        except RuntimeError:
            logger.exception("There is no thread to renew claims; it is tried again.")
            return
        self._begun.setdefault(storage, []).append(now)

    def _renew(self, storage: Storage, jobs: list[Job], began: float) -> None:
        try:
            for job in jobs:
                try:
                    if not storage.renew(job.claim):
                        self.remove(job)
                except Exception:
                    logger.exception("A claim could not be renewed; it is tried again.")
            try:
                storage.close()
            except Exception:
                logger.exception("A connection could not be closed.")
        finally:
            with self._changed:
                self._begun[storage].remove(began)
                if not self._begun[storage]:
                    del self._begun[storage]
                self._changed.notify()


renewal = Renewal()
os.register_at_fork(after_in_child=lambda: renewal.__init__())  # type: ignore[misc]
