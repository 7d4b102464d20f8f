"""The private thread of a backend whose driver has no asyncio.

asgiref's thread-sensitive thread is not used, because a lock that waits there would stop every other request of the
process. Only short statements run in the private thread, so that a release never queues behind a wait.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from . import finalizers
from .flow import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Threads:
    """One thread, started at its first use."""

    def __init__(self, alias: str) -> None:
        self._name = f"distlock-{alias}-short"
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._running = 0

    async def short(self, function: Callable[..., T], *args: Any, undo: Callable[[T], Any] | None = None) -> T:
        """Run a short statement. If the task is cancelled, it still runs to its end, and ``undo`` gets its result."""
        with self._guard:
            future = asyncio.wrap_future(self._submit(function, args))
            self._running += 1
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await self._finish(future, undo)
            raise
        finally:
            finalizers.now_or_later(self._count_out)

    def _submit(self, function: Callable[..., T], args: tuple[Any, ...]) -> Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        try:
            return self._pool.submit(function, *args)
        except BaseException:  # no thread could be started: the statement must not stay queued for the next one
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
            raise

    def _count_out(self) -> None:
        with self._guard:
            self._running -= 1

    async def _finish(self, future: asyncio.Future[T], undo: Callable[[T], Any] | None) -> None:
        try:
            result = await uninterrupted(future)
        except Exception:
            return
        if undo is not None and result is not None:
            await uninterrupted(self.short(undo, result))

    def stop_if_idle(self) -> None:
        """End the thread if it is idle; it starts again when needed."""
        with self._guard:
            if self._running:
                return
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def stop(self) -> None:
        """End the thread and wait for its end."""
        with self._guard:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
