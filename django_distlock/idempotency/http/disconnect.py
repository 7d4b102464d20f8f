"""Tasks whose client may go: what has begun with a key is worked to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
# Tasks whose client has gone; somebody has to hold them.
_going_on: set[asyncio.Task[Any]] = set()


async def to_the_end(answering: Coroutine[Any, Any, T], begun: Callable[[], bool]) -> T:
    """The client may go at any moment, and then Django cancels this task. If it has ``begun`` with a key it goes on, so
    that what it does and what is remembered of it are the same."""
    task = asyncio.current_task()
    work: asyncio.Task[T] = asyncio.create_task(answering)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if task is not None and task.cancelling() and not work.done():
            if begun():
                _go_on(work)
            else:
                work.cancel()
        raise


def _go_on(work: asyncio.Task[Any]) -> None:
    """Let a task end by itself; then close what its thread has opened, which nobody else will."""

    async def ending() -> None:
        try:
            await work
        finally:
            await sync_to_async(connections.close_all)()

    task = asyncio.create_task(ending())
    _going_on.add(task)
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[Any]) -> None:
    _going_on.discard(task)
    if not task.cancelled():
        task.exception()  # it was the request's, and Django has logged it
