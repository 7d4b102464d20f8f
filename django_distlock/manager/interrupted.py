"""Give back what belongs to a caller that is gone.

* An acquire or a release that an interrupt (KeyboardInterrupt, a task's soft time limit) has ended half way: it is in
  :data:`interrupted_calls`.
* A task whose event loop was closed while it held a lock: it never goes on to its release.

The keepalive thread looks for both at each tick. The work is done in threads, because engines may take their time.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any

from django_distlock import signals
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.text import one_line

from . import events, owner
from .lock_table import State, interrupted_calls, lock_table
from .release import take_back
from .transactions import defer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .lock_table import Hold


logger = logging.getLogger("django_distlock.locks")

# What a task of a closed event loop may want to await on its way out.
_AWAITS = 100

# The wait for a generator's next item. Before Python 3.13 its close() does not reach the generator.
_STEPS = frozenset({"async_generator_asend", "async_generator_athrow"})

# The tasks that were ended, each once. A loop that is closed never runs again.
_ended: weakref.WeakSet[Any] = weakref.WeakSet()


def look() -> None:
    """Clean up after callers that are gone."""
    lock_table.settle()
    for lease in list(interrupted_calls):
        hold = interrupted_calls.pop(lease, None)  # before it begins, so that nothing begins it a second time
        if hold is not None and hold.state is not State.ENDED and not in_thread(_give_up, hold, lease):
            interrupted_calls[lease] = hold
    _look_for_closed_loops(lock_table.all())


def in_thread(function: Callable[..., object], *args: Any) -> bool:
    """Run ``function`` in a thread. False if there is no thread to be had: then the next look tries again."""
    thread = threading.Thread(target=function, args=args, name="distlock-release", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _give_up(hold: Hold, lease: Any) -> None:
    """Give back what an interrupted acquire, release or end of a transaction has left."""
    if hold.state in (State.WAITING, State.CLAIMING):
        run(_give_back(hold))
        return
    last = lock_table.start_release(hold) if lease is hold else lock_table.leave(hold, lease)
    if not last:  # the interrupt may have come right behind that
        last = hold.state is State.RELEASING and hold.released_by is lease
    if last and (hold.giving or not defer(hold)):
        run(_give_back(hold))


async def _give_back(hold: Hold) -> None:
    """Give the engine back what it has granted, if it has. Its answer says nothing: the interrupted call may have done
    that."""
    backend = hold.backend
    try:
        if not hold.giving:
            await take_back(hold)
        elif hold.grant is not None and not hold.given:
            backend.release_again(hold.grant, lock_table.is_alone(hold))
        if hold.held_at:
            events.send_held(signals.lock_released, hold)
        elif hold.grant is None and hold.claim is not None and backend.queues_waiters:
            backend.withdraw(hold.claim)
    except Exception as error:
        logger.warning("The lock %r of an interrupted call could not be given back: %s", hold.key.name, one_line(error))
    finally:
        lock_table.end(hold)


def _look_for_closed_loops(found: Iterable[Hold]) -> None:
    """End the owners of these holds whose event loop is closed."""
    for task in {hold.owner for hold in found if owner.abandoned(hold.owner)} - set(_ended):
        if in_thread(_end, task):
            _ended.add(task)


def _end(task: object) -> None:
    """Have the task clean up where it was stopped, then release what it leaves."""
    held = [hold for hold in lock_table.held() if hold.owner is task]
    unfinished = [hold for hold in lock_table.all() if hold.owner is task and hold not in held]
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
        except Exception as error:  # the task's own, or it wanted to await something: then it goes on from there
            _warn(error)
    _close_unused(generators)


def _end_awaited(coroutine: Any) -> list[AsyncGeneratorType[Any, Any]]:
    """End the generators that the coroutine waits for, the innermost first. Return all generators it refers to."""
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
    unreferenced = [object()]
    while generators:
        own, *references = [sys.getrefcount(one) for one in [*unreferenced, *generators]]
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
