"""Operations written once, as ``async def``, for threads and for tasks.

In a task they are awaited. In a thread :func:`run` steps through them: there the few functions that wait (for a socket,
a place in a queue, a pause, a call in another thread) ask :func:`in_task` and block instead of suspending, so the
coroutine runs to its end at once. ``edgedb-python`` does the same for its blocking client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Coroutine
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any, TypeVar

from .text import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

logger = logging.getLogger("django_distlock.locks")

T = TypeVar("T")

# The threads whose event loop is blocked by run(), which DJANGO_ALLOW_ASYNC_UNSAFE permits.
_blocked: set[int] = set()


def in_task() -> bool:
    """Must a wait suspend the caller? False in a thread, and inside :func:`run`."""
    return asyncio._get_running_loop() is not None and not (_blocked and threading.get_ident() in _blocked)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` to its end in this thread, which its waits block."""
    if asyncio._get_running_loop() is not None and in_task():
        return _run_on_loop(coroutine)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except BaseException:
        coroutine.close()  # an interrupt may have kept it from beginning
        raise
    coroutine.close()
    raise RuntimeError("A call that must not suspend has done so.")


def _run_on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """:func:`run` in the thread of an event loop, which stands still meanwhile."""
    ident = threading.get_ident()
    try:
        _blocked.add(ident)
        return run(coroutine)
    finally:
        _blocked.discard(ident)


class _Begins(Coroutine[Any, Any, T]):
    """A coroutine for a task of its own, which a cancellation before the first step does not keep from beginning.

    asyncio throws that into the coroutine, which ends without having run. It comes when ``asyncio.run()`` ends at the
    moment of a cancellation: it cancels all tasks, and so the one that has just been made to clean up.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        if getcoroutinestate(self._coroutine) == CORO_CREATED:
            return self._coroutine.send(None)
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()


def _task(awaitable: Awaitable[T]) -> asyncio.Future[T]:
    """The task of a coroutine; a future as it is."""
    return asyncio.ensure_future(_Begins(awaitable) if isinstance(awaitable, Coroutine) else awaitable)


async def uninterrupted(awaitable: Awaitable[T]) -> T:
    """Wait for ``awaitable`` to its end; a cancellation of this task is ignored.

    Use it only to clean up while another exception is handled that will be raised again. In a thread it is ``await``.
    """
    if not in_task():
        return await awaitable
    task = _task(awaitable)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                break
        except BaseException:
            if not task.done():  # GeneratorExit: the event loop is closed, and the task never goes on
                raise
    return task.result()


async def finished(awaitable: Awaitable[T]) -> T:
    """Wait for ``awaitable`` to its end; a cancellation of this task is raised after that."""
    if not in_task():
        return await awaitable
    task = _task(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await uninterrupted(task)
        raise


async def clean_up(awaitable: Awaitable[object]) -> None:
    """Wait for ``awaitable`` to its end, in an ``except`` block that raises its exception again.

    Behind a cancellation, KeyboardInterrupt or the like an error of the clean-up is only logged, and a further
    cancellation ignored. Behind an ordinary error both are raised.
    """
    interrupted = not isinstance(sys.exc_info()[1], Exception)
    try:
        await (uninterrupted(awaitable) if interrupted else finished(awaitable))
    except Exception as error:
        if not interrupted:
            raise
        logger.warning("An interrupted call could not clean up: %s", one_line(error))
