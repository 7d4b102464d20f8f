"""The private thread of a backend whose driver has no asyncio.

asgiref's thread-sensitive thread is not used, because a lock that waits there would stop every other request of the
process. Only short statements run in the private thread, so that a release never queues behind a wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from .flow import in_task, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

T = TypeVar("T")


class Threads:
    """One thread, started at its first use."""

    def __init__(self, alias: str) -> None:
        self._name = f"distlock-{alias}-short"
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._latest: Future[Any] | None = None

    async def short(self, function: Callable[..., T], *args: Any, undo: Callable[[T], Any] | None = None) -> T:
        """Run a short statement; in a thread at once.

        If the task is cancelled, it still runs to its end, and ``undo`` gets its result.
        """
        if not in_task():
            return function(*args)
        loop = asyncio.get_running_loop()
        # of our own: those of asyncio.wrap_future() cost as much as the hop to the thread
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def call() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = function(*args), None
            except BaseException as error:
                outcome = None, error
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
                loop.call_soon_threadsafe(done.set_result, outcome)

        self._submit(call)
        try:
            result, error = await asyncio.shield(done)
        except asyncio.CancelledError:
            result, error = await uninterrupted(done)
            if undo is not None and result is not None:
                await uninterrupted(self.short(undo, result))
            raise
        if error is None:
            return result  # type: ignore[no-any-return]
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def _submit(self, call: Callable[[], None]) -> None:
        with self._guard:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
            try:
                self._latest = self._pool.submit(call)
            except BaseException:  # no thread could be started: the statement must not stay queued for the next one
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
                raise

    def idle(self) -> bool:
        """Is there no statement on its way? The latest one ends last."""
        return self._latest is None or self._latest.done()

    def stop_if_idle(self) -> None:
        """End the thread if it is idle; it starts again when needed."""
        if self.idle():
            self.stop(wait=False)

    def stop(self, wait: bool = True) -> None:
        """End the thread, and wait for its end."""
        with self._guard:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait)
