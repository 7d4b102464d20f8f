"""Finish a request with a key even if its client disconnects."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
# Tasks whose client has disconnected; asyncio itself keeps only weak references.
_orphans: set[asyncio.Task[Any]] = set()


async def finish_despite_disconnect(
    answering: Coroutine[Any, Any, T], has_a_key: Callable[[], bool] = lambda: True
) -> T:
    """Await ``answering``. If Django cancels this task, because the client has disconnected, the work still ends in a
    task that nothing awaits, so that what the view did and what is stored agree; without a key it is cancelled, as
    Django does. The caller sees the ContextVars that the work has set, as if it had awaited it directly."""
    task, context = asyncio.current_task(), contextvars.copy_context()
    work: asyncio.Task[T] = asyncio.create_task(answering, context=context)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if task is not None and task.cancelling() and not work.done():
            if not has_a_key():
                work.cancel()
                await asyncio.wait({work})
                raise
            orphan = asyncio.create_task(_finish(work))
            _orphans.add(orphan)
            orphan.add_done_callback(_orphans.discard)
        raise
    finally:
        if work.done():
            _set_variables(context)


def _set_variables(context: contextvars.Context) -> None:
    """Give the ContextVars of this task the values that they have in ``context``."""
    missing = object()
    for variable, value in context.items():
        if variable.get(missing) is not value:
            variable.set(value)


async def _finish(work: asyncio.Task[Any]) -> None:
    """Let the task end, then close the connections of its thread: Django does so only at the end of a request."""
    try:
        with suppress(Exception):  # Django has logged it
            await work
    finally:
        await sync_to_async(connections.close_all)()
