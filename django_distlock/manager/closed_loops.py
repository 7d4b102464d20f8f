"""What a task holds whose event loop was closed in the midst of it: the task never goes on to its release."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import weakref
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.text import one_line

from . import owner
from .lock_table import lock_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .hold import Hold

logger = logging.getLogger("django_distlock.locks")

# What a task of a closed event loop may want to await on its way out.
_AWAITS = 100

# The wait for a generator's next item. Before Python 3.13 its close() does not reach the generator.
_STEPS = frozenset({"async_generator_asend", "async_generator_athrow"})

# The tasks that were ended, each once. A loop that is closed never runs again.
_ended: weakref.WeakSet[Any] = weakref.WeakSet()


def look(found: Iterable[Hold]) -> None:
    """End the owners of these holdings whose event loop is closed, each in a thread of its own: what they clean up may
    take any time."""
    for task in {hold.owner for hold in found if owner.abandoned(hold.owner)} - set(_ended):
        thread = threading.Thread(target=_end, args=(task,), name="distlock-release", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread to be had: at the next look
            thread.start()
            _ended.add(task)


def _end(task: object) -> None:
    """Have the task clean up where it was stopped, then release what it leaves."""
    held = [hold for hold in lock_table.held() if hold.owner is task]
    unfinished = [hold for hold in lock_table.unfinished() if hold.owner is task]
    for hold in held:  # so that the task's own blocks, which are left here, are seen to be the holder's
        hold.owner = threading.current_thread()
    _unwind(task)
    for hold in unfinished:
        lock_table.end(hold)
    for hold in held:
        if hold.in_use():  # handed on, or in use by a thread that the task waited for
            hold.owner = task
            continue
        for lease in tuple(hold.leases):
            try:
                lease._release(False)
            except Exception as error:
                logger.warning("The lock %r of a closed event loop: %s", hold.key.name, one_line(error))


def _unwind(task: object) -> None:
    """Have the task clean up where it was stopped, as the garbage collector would some day.

    To close its coroutine is not enough. A generator that it reads is only dropped by that, and asyncio, which closes
    dropped generators, does nothing once the event loop is closed.
    """
    coroutine: Any = task.get_coro() if isinstance(task, asyncio.Task) else None
    if coroutine is None:
        return
    generators = _end_awaited(coroutine)
    for _ in range(_AWAITS):
        try:
            coroutine.close()
            break
        except Exception as error:  # of its own, or it wanted to await something: then it goes on from there
            _warn(error)
    _close_unused(generators)


def _end_awaited(coroutine: Any) -> list[AsyncGeneratorType[Any, Any]]:
    """End the generators that the coroutine waits for, the innermost first; all generators that it refers to."""
    generators: list[AsyncGeneratorType[Any, Any]] = []
    steps = []
    link = coroutine
    while link is not None:
        if type(link).__name__ in _STEPS:
            steps.append(link)
        _collect(link, generators)
        link = owner.awaited_by(link)
    for step in reversed(steps):
        _stop(step)
    return generators


def _collect(link: Any, generators: list[AsyncGeneratorType[Any, Any]]) -> None:
    """Add the generators that ``link`` has in a variable or reads, and theirs."""
    for found in gc.get_referents(link):
        # not isinstance(): it asks the object for its class, and a lazy one, like request.user, asks the database
        if type(found) is AsyncGeneratorType and not any(found is known for known in generators):
            generators.append(found)
            _collect(found, generators)


def _close_unused(generators: list[AsyncGeneratorType[Any, Any]]) -> None:
    """Close those that only this list still refers to. Other code that refers to one may go on with it."""
    nobodys = [object()]
    while generators:
        own, *references = [sys.getrefcount(one) for one in [*nobodys, *generators]]
        if own not in references:
            return
        _stop(generators.pop(references.index(own)).aclose())


def _stop(step: Any) -> None:
    """Raise GeneratorExit in the generator, and again wherever it wants to await something."""
    for _ in range(_AWAITS):
        try:
            step.throw(GeneratorExit)
        except (GeneratorExit, StopIteration, StopAsyncIteration):
            return
        except Exception as error:
            _warn(error)
            return


def _warn(error: Exception) -> None:
    logger.warning("A task of a closed event loop could not clean up: %s", one_line(error))
