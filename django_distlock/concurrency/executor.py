"""The private thread of a backend whose driver has no asyncio.

asgiref's thread-sensitive thread is not used, because a lock that waits there would stop every other request of the
process. Only short statements run in the private thread, so that a release never queues behind a wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import finalizers
from .flow import in_task, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class _Call(Generic[T]):
    """A statement in the private thread, and the task that waits for it.

    ``asyncio.wrap_future`` and ``asyncio.shield`` do the same with three futures more, which cost as much as a hop.
    """

    __slots__ = ("_args", "_error", "_function", "_loop", "_result", "_waiter")

    def __init__(self, function: Callable[..., T], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self._loop = asyncio.get_running_loop()
        # replaced if the wait is cancelled; None once the statement has ended
        self._waiter: asyncio.Future[None] | None = self._loop.create_future()
        self._error: BaseException | None = None
        self._result: Any = None

    def run(self) -> None:
        """In the thread: execute the statement."""
        try:
            self._result = self._function(*self._args)
        except BaseException as error:
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits any more
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the end of the statement, which a cancellation does not end. May be called again after that."""
        if self._waiter is not None:
            if self._waiter.done():
                self._waiter = self._loop.create_future()
            await self._waiter

    def outcome(self) -> T:
        """The result, or the error raised."""
        error, self._error = self._error, None
        if error is None:
            return self._result  # type: ignore[no-any-return]
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


class Threads:
    """One thread, started at its first use."""

    def __init__(self, alias: str) -> None:
        self._name = f"distlock-{alias}-short"
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._running = 0

    async def short(self, function: Callable[..., T], *args: Any, undo: Callable[[T], Any] | None = None) -> T:
        """Run a short statement; in a thread at once.

        If the task is cancelled, it still runs to its end, and ``undo`` gets its result.
        """
        if not in_task():
            return function(*args)
        call = _Call(function, args)
        with self._guard:
            self._submit(call.run)
            self._running += 1
        try:
            await call.wait()
            return call.outcome()
        except asyncio.CancelledError:
            await self._finish(call, undo)
            raise
        finally:
            finalizers.now_or_later(self._count_out)

    def _submit(self, function: Callable[[], None]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        try:
            self._pool.submit(function)
        except BaseException:  # no thread could be started: the statement must not stay queued for the next one
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
            raise

    def _count_out(self) -> None:
        with self._guard:
            self._running -= 1

    async def _finish(self, call: _Call[T], undo: Callable[[T], Any] | None) -> None:
        await uninterrupted(call.wait())
        try:
            result = call.outcome()
        except (Exception, asyncio.CancelledError):
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
