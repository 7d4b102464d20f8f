"""Flows: generators that hold the decisions of an operation, run by a thread or by a task.

A flow never blocks. It yields a :class:`Step` for each call that may block and is sent the result. :func:`run` performs
the step's sync method, :func:`arun` awaits its async method. Each decision is written once for threads and for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from . import finalizers
from .text import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

logger = logging.getLogger("django_distlock.locks")

P = ParamSpec("P")
T = TypeVar("T")


class Step(NamedTuple):
    """One call that may block, as a sync and an async method with the same arguments.

    An interrupt (KeyboardInterrupt) on the way back can lose the result. What must not be lost, like a grant, the
    method stores by itself.
    """

    method: Callable[..., Any]
    amethod: Callable[..., Awaitable[Any]]
    args: tuple[Any, ...] = ()


Flow = Generator[Step, Any, T]

# The flows that arun runs now. Without this reference the garbage collector could close one.
_flows: set[Flow[Any]] = set()


def run(flow: Flow[T], step: Step | None = None) -> T:
    """Run ``flow`` to its end in this thread. ``step``: the step at which a flow that has begun continues.

    An exception of a step is raised in the flow. If the clean-up after a KeyboardInterrupt fails, KeyboardInterrupt is
    raised. The flow has always ended when this function returns or raises.
    """
    interruption: BaseException | None = None
    error: BaseException | None = None
    result: Any = None
    try:
        while True:
            try:
                while True:  # in the try: Python looks for signals at each jump back
                    if step is None:
                        step = flow.send(result) if error is None else flow.throw(error)
                        error = None
                    try:
                        result = step.method(*step.args)
                    except Exception as failure:
                        error = failure
                    step = None
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            except BaseException as failure:
                if getattr(flow, "gi_frame", None) is not None:  # it was raised here, and the flow has not ended
                    step, error, interruption = None, failure, _first(interruption, failure)
                    continue
                if interruption is None or not isinstance(failure, Exception):
                    raise
                _log(failure)
                raise interruption from None
    except BaseException:
        flow.close()  # an interrupt may have come outside of the flow
        raise


async def arun(flow: Flow[T]) -> T:
    """Run ``flow`` to its end in this task.

    After a cancellation the steps that clean up run to their end and cannot be cancelled; each of them has its own time
    limit. If one of them fails, the cancellation is raised and not its error. After an error the steps can be
    cancelled: a flow that handles the error may wait for as long as before.
    """
    interruption: BaseException | None = None
    _flows.add(flow)
    try:
        step = flow.send(None)
        while True:
            try:
                call = step.amethod(*step.args)
                result = await (call if interruption is None else uninterrupted(call))
            except BaseException as error:
                if isinstance(error, GeneratorExit) and finalizers.here.collecting:
                    raise  # the flow is closed in another thread
                interruption = _first(interruption, error)
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    except Exception as error:
        if interruption is None:
            raise
        _log(error)
    finally:
        if finalizers.here.collecting:
            finalizers.later(_abandon, flow)
        else:
            flow.close()
            _flows.discard(flow)
    raise interruption


def both(flow: Callable[P, Flow[T]]) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """The method for threads and the one for tasks, of a method that returns a flow::

    release, arelease = both(_release)
    """

    def method(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(flow(*args, **kwargs))

    async def amethod(*args: P.args, **kwargs: P.kwargs) -> T:
        return await arun(flow(*args, **kwargs))

    return method, amethod


def _abandon(flow: Flow[Any]) -> None:
    flow.close()
    _flows.discard(flow)


def _first(interruption: BaseException | None, error: BaseException) -> BaseException | None:
    """The exception to raise in the end: the first cancellation, KeyboardInterrupt or the like, if there was one."""
    return error if interruption is None and not isinstance(error, Exception) else interruption


def _log(error: Exception) -> None:
    logger.warning("An interrupted call could not clean up: %s", one_line(error))


async def uninterrupted(awaitable: Any) -> Any:
    """Wait for ``awaitable`` to its end; a cancellation of this task is ignored.

    Use it only to clean up while another exception is handled that will be raised again.
    """
    task = asyncio.ensure_future(awaitable)
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                break
        except BaseException:
            break
    return task.result()


async def finished(awaitable: Any) -> Any:
    """Wait for ``awaitable`` to its end; a cancellation of this task is raised after that."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await uninterrupted(task)
        raise
