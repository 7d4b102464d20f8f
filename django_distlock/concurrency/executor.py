"""The private threads of a backend whose driver has no asyncio.

asgiref's thread-sensitive thread is not used: a lock that waits there stops every other request of the process. Waits
and short statements have separate threads, so that waits for busy keys cannot delay a release.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from django_distlock.concurrency import finalizers

from .flow import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

WAIT_THREADS = 2


class Threads:
    """At most one thread for short statements and two for waits, started when first used."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._guard = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._waiting = 0
        self._running = 0

    def _pool(self, kind: str, size: int) -> ThreadPoolExecutor:
        pool = self._pools.get(kind)
        if pool is None:
            pool = ThreadPoolExecutor(size, thread_name_prefix=f"distlock-{self._alias}-{kind}")
            self._pools[kind] = pool
        return pool

    async def short(self, function: Callable[..., T], *args: Any, undo: Callable[[T], Any] | None = None) -> T:
        """Run a short statement. If the task is cancelled, it still runs to its end, and ``undo`` gets its result."""
        return await self._run("short", 1, function, args, undo, None)

    async def wait(
        self, function: Callable[..., T], *args: Any, undo: Callable[[T], Any], interrupt: Callable[[], Any]
    ) -> T | None:
        """Run a call that waits; None at once if both threads for waiting are in use.

        If the task is cancelled, ``interrupt`` is called to end the wait, and ``undo`` gets the result, if any.
        """
        with self._guard:
            if self._waiting >= WAIT_THREADS:
                return None
            self._waiting += 1
        try:
            return await self._run("wait", WAIT_THREADS, function, args, undo, interrupt)
        finally:
            finalizers.now_or_later(self._count_out, 1, 0)

    async def _run(
        self,
        kind: str,
        size: int,
        function: Callable[..., T],
        args: tuple[Any, ...],
        undo: Callable[[T], Any] | None,
        interrupt: Callable[[], Any] | None,
    ) -> T:
        with self._guard:
            self._running += 1
            future = asyncio.wrap_future(self._pool(kind, size).submit(function, *args))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await self._clean_up(future, undo, interrupt)
            raise
        finally:
            finalizers.now_or_later(self._count_out, 0, 1)

    def _count_out(self, waiting: int, running: int) -> None:
        with self._guard:
            self._waiting -= waiting
            self._running -= running

    async def _clean_up(
        self,
        future: asyncio.Future[T],
        undo: Callable[[T], Any] | None,
        interrupt: Callable[[], Any] | None,
    ) -> None:
        while interrupt is not None and not future.done():
            await uninterrupted(self.short(interrupt))
            # repeated: a wait that has not begun cannot be interrupted yet
            await uninterrupted(asyncio.wait([future], timeout=0.01))
        try:
            result = await uninterrupted(future)
        except Exception:
            return
        if undo is not None and result is not None:
            await uninterrupted(self.short(undo, result))

    def stop_if_idle(self) -> None:
        """End the threads if they are idle; they start again when needed."""
        with self._guard:
            if self._running:
                return
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.shutdown(wait=False)

    def stop(self) -> None:
        """End the threads and wait for them."""
        with self._guard:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.shutdown(wait=True)
