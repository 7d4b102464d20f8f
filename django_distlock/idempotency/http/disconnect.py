"""Finish a request that has claimed a key even if its client disconnects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
# Tasks whose client has disconnected; asyncio itself keeps only weak references.
_orphans: set[asyncio.Task[Any]] = set()


async def finish_despite_disconnect(answering: Coroutine[Any, Any, T], begun: Callable[[], bool]) -> T:
    """Await ``answering``. If Django cancels this task after ``begun``, because the client has disconnected, the work
    still ends in a task that nothing awaits, so that what the view did and what is stored agree."""
    task = asyncio.current_task()
    work: asyncio.Task[T] = asyncio.create_task(answering)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if task is not None and task.cancelling() and not work.done():
            if begun():
                _finish(work)
            else:
                work.cancel()
        raise


def _finish(work: asyncio.Task[Any]) -> None:
    """Let the task end, then close the connections of its thread: Django does so only at the end of a request."""

    async def ending() -> None:
        try:
            await work
        finally:
            await sync_to_async(connections.close_all)()

    task = asyncio.create_task(ending())
    _orphans.add(task)
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[Any]) -> None:
    _orphans.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not log it: Django has
