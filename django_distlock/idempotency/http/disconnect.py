"""Finish a request with a key even if its client disconnects."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from django_distlock.concurrency.flow import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


async def finish_despite_disconnect(
    answering: Coroutine[Any, Any, T], has_a_key: Callable[[], bool] = lambda: True
) -> T:
    """Await ``answering``. If Django cancels this task, since the client has disconnected, it ends all the same before
    the cancellation goes on, so that what the view did and what is stored agree; without a key it is cancelled. The
    caller sees the ContextVars that it has set, as if it had awaited it directly."""
    context = contextvars.copy_context()
    work: asyncio.Task[T] = asyncio.create_task(answering, context=context)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not has_a_key():
            work.cancel()
        with suppress(Exception, asyncio.CancelledError):  # Django has logged it
            await uninterrupted(work)
        raise
    finally:
        _set_variables(context)


def _set_variables(context: contextvars.Context) -> None:
    """Give the ContextVars of this task the values that they have in ``context``."""
    missing = object()
    for variable, value in context.items():
        if variable.get(missing) is not value:
            variable.set(value)
