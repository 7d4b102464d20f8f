"""Claims are renewed while their views run: one thread of the process for all of them, and none where none is held."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job import Job

logger = logging.getLogger("django_distlock.idempotency")
IDLE = 5.0  # seconds that the thread stays without anything to renew


class Renewal:
    """The claims of this process, each renewed after every third of its lease."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, tuple[float, Job]] = {}
        self._thread: threading.Thread | None = None

    def add(self, job: Job) -> None:
        with self._changed:
            due = time.monotonic() + job.claim_ttl / 3
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
                now = time.monotonic()
                due = [job for at, job in self._due.values() if at <= now]
                if not due:
                    self._changed.wait(min(at for at, _job in self._due.values()) - now)
                    continue
                for job in due:
                    self._due[job.owner] = (now + job.claim_ttl / 3, job)
            self._renew(due)

    def _renew(self, jobs: list[Job]) -> None:
        for job in jobs:
            try:
                if not job.storage.renew(job.claim):
                    self.remove(job)
            except Exception:
                logger.exception("A claim could not be renewed; it is tried again.")
        for storage in {type(job.storage): job.storage for job in jobs}.values():
            try:
                storage.close()
            except Exception:
                logger.exception("A connection could not be closed.")


renewal = Renewal()
os.register_at_fork(after_in_child=lambda: renewal.__init__())  # type: ignore[misc]
