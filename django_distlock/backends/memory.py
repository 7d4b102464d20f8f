"""Locks inside one process, for tests and for programs of one process."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency import clock, origin
from django_distlock.records import Claim, Grant, LockInfo, drift

from .base import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from django_distlock.keys import LockKey


@dataclass(slots=True)
class MemoryLease:
    key: LockKey
    token: str
    shared: bool
    fence: int
    since: float
    expires: float
    # the thread or the task that asked, and what it was serving
    asked_by: weakref.ref[Any]
    serving: str


class MemoryBackend(Backend):
    """A dictionary under a mutex, with TTL and fencing tokens. It has no options."""

    supports_shared = True
    supports_ttl = True
    supports_fencing = True
    supports_semaphore = True
    supports_break = True
    needs_site_key = False

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._mutex = threading.Lock()
        self._entries: dict[bytes, list[MemoryLease]] = {}
        # The highest fence of all names: so that nothing has to be kept of names that are free.
        self._fence = 0

    def _live(self, digest: bytes, now: float) -> list[MemoryLease]:
        live = [entry for entry in self._entries.get(digest, ()) if entry.expires > now]
        if live:
            self._entries[digest] = live
        else:
            self._entries.pop(digest, None)
        return live

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        try:
            with self._mutex:
                return self._taken(claim, clock.now())
        except BaseException:  # KeyboardInterrupt after the grant
            with self._mutex:
                self._end_all(lambda entry: entry.token == claim.token)
            raise

    def _end_all(self, ends: Callable[[MemoryLease], bool]) -> bool:
        """A loop stands in a function of its own, and not in the block of the mutex: see manager/lock_table.py."""
        found = [entry for entries in self._entries.values() for entry in entries if ends(entry)]
        for entry in found:
            self._end(entry)
        return bool(found)

    def _end(self, entry: MemoryLease) -> None:
        entry.expires = 0.0
        self._live(entry.key.digest, clock.now())

    def _taken(self, claim: Claim, now: float) -> Grant | None:
        ttl = claim.ttl or 0.0
        digest = claim.key.digest
        others = [entry for entry in self._live(digest, now) if entry.token != claim.token]
        if claim.limit:
            busy = len(others) >= claim.limit
        else:
            busy = any(not (entry.shared and claim.shared) for entry in others)
        if busy:
            return None
        fence = self._fence = max(self._fence + 1, time.time_ns() // 1000)
        task = None if asyncio._get_running_loop() is None else asyncio.current_task()
        asked_by = weakref.ref(task or threading.current_thread())
        entry = MemoryLease(
            claim.key, claim.token, claim.shared, fence, time.time(), now + ttl, asked_by, origin.address()
        )
        self._entries[digest] = [*others, entry]
        return Grant(claim=claim, fence=fence, acquired_at=now, valid_until=now + ttl - drift(ttl))

    def _find(self, grant: Grant, now: float) -> MemoryLease | None:
        for entry in self._live(grant.claim.key.digest, now):
            if entry.token == grant.claim.token:
                return entry
        return None

    def release(self, grant: Grant) -> bool:
        with self._mutex:
            entry = self._find(grant, clock.now())
            if entry is not None:
                self._end(entry)
            return entry is not None

    def verify(self, grant: Grant) -> bool:
        with self._mutex:
            return self._find(grant, clock.now()) is not None

    def alive(self, grant: Grant) -> bool:
        return self.verify(grant)

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        now = clock.now()
        with self._mutex:
            entry = self._find(grant, now)
            if entry is None:
                return None
            entry.expires = now + ttl
        return grant._replace(valid_until=now + ttl - drift(ttl))

    def break_lock(self, info: LockInfo) -> bool:
        with self._mutex:
            return self._end_all(lambda entry: (entry.key.path, entry.fence) == (info.key, info.fence))

    def inspect(self) -> Iterable[LockInfo]:
        now, wall = clock.now(), time.time()
        with self._mutex:
            return [
                LockInfo(
                    backend=self.alias,
                    key=digest.hex(),
                    name=entry.key.full_name,
                    shared=entry.shared,
                    holder=f"pid {os.getpid()}, {origin.of(entry.asked_by(), entry.serving)}",
                    acquired_at=datetime.fromtimestamp(entry.since, UTC),
                    expires_at=datetime.fromtimestamp(wall + entry.expires - now, UTC),
                    fence=entry.fence,
                    waiters=0,  # they all queue in this process
                )
                for digest in list(self._entries)
                for entry in self._live(digest, now)
            ]

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return self.try_acquire(claim)

    async def arelease(self, grant: Grant) -> bool:
        return self.release(grant)

    async def averify(self, grant: Grant) -> bool:
        return self.verify(grant)

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        return self.extend(grant, ttl)

    def close(self) -> None:
        super().close()
        with self._mutex:
            self._entries.clear()

    def after_fork(self) -> None:
        super().after_fork()
        self._mutex = threading.Lock()
        self._entries = {}
