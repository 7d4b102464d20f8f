"""One flow, two drivers.

A *flow* is a generator that decides and never waits itself: it yields :class:`Call` objects and is sent their results.
:func:`drive` performs a call as ``target.method(*args)``, :func:`adrive` as ``await target.amethod(*args)``. So each
decision is written once for threads and for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Generator
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import finalizers
from .text import one_line

if TYPE_CHECKING:
    from django_distlock.records import Claim, Grant

logger = logging.getLogger("django_distlock.waiting")

T = TypeVar("T")

# Seconds that an engine has for its answer at least, counted from the beginning of the call: if the caller does not
# wait, and if it does. The call ends at most 50 ms after its timeout.
LEAST_PATIENCE, LEAST_ANSWER = 0.5, 0.03


class Call(NamedTuple):
    """One step that may block: a method that exists as ``method`` and, for asyncio, as ``"a" + method``.

    Its result is also put into ``results``, if given, so that it is not lost to a KeyboardInterrupt on the way back.
    """

    target: Any
    method: str
    args: tuple[Any, ...] = ()
    results: list[Any] | None = None


Flow = Generator[Call, Any, T]

# What adrive runs now: a flow that only its task refers to would itself be closed by the garbage collector.
_flows: set[Flow[Any]] = set()


def drive(flow: Flow[T]) -> T:
    """Run ``flow`` to its end in this thread. An exception of a step is raised in the flow.

    KeyboardInterrupt wins over what goes wrong while the flow cleans up after it.
    """
    interruption: BaseException | None = None
    error: BaseException | None = None
    result: Any = None
    while True:
        try:
            while True:  # in the try: Python looks for signals at each jump back
                step = flow.send(result) if error is None else flow.throw(error)
                error = None
                try:
                    method = getattr(step.target, step.method)
                    if step.results is None:
                        result = method(*step.args)
                    else:  # all in one call in C: nothing comes between the return of the method and the list
                        step.results.extend(starmap(method, (step.args,)))
                        result = step.results[-1]
                except Exception as failure:
                    error = failure
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except BaseException as failure:
            if getattr(flow, "gi_frame", None) is not None:  # it came here, and not in the flow, which goes on
                error, interruption = failure, _first(interruption, failure)
                continue
            if interruption is None or not isinstance(failure, Exception):
                raise
            _log(failure)
            raise interruption from None


async def adrive(flow: Flow[T]) -> T:
    """Run ``flow`` to its end in this task.

    Once a step was cancelled, the steps that clean up after it are not: they run to their end. Each of them is bounded
    in time by its own target. The cancellation wins over what goes wrong in them.
    """
    interruption: BaseException | None = None
    failed = False
    _flows.add(flow)
    try:
        step = flow.send(None)
        while True:
            try:
                call = getattr(step.target, "a" + step.method)(*step.args)
                result = await (uninterrupted(call) if failed else call)
                if step.results is not None:
                    step.results.append(result)
            except BaseException as error:
                if isinstance(error, GeneratorExit) and finalizers.collecting():
                    raise  # and the flow is closed elsewhere
                failed = True
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
        finalizers.now_or_later(_abandon, flow)
    raise interruption


def _abandon(flow: Flow[Any]) -> None:
    flow.close()
    _flows.discard(flow)


def _first(interruption: BaseException | None, error: BaseException) -> BaseException | None:
    """What the caller gets in the end: the first cancellation, KeyboardInterrupt or the like, if there was one."""
    return error if interruption is None and not isinstance(error, Exception) else interruption


def _log(error: Exception) -> None:
    logger.warning("An interrupted call could not clean up: %s", one_line(error))


async def uninterrupted(awaitable: Any) -> Any:
    """Wait for ``awaitable`` whatever happens to this task; a cancellation meanwhile is dropped.

    Only for cleaning up under an exception that is raised again anyway.
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
    """Wait for ``awaitable`` to its end; a cancellation meanwhile is raised after it."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await uninterrupted(task)
        raise


class Deadline:
    """A point on the monotonic clock: ``timeout`` seconds after ``start`` (now); None never ends.

    ``answer_by`` is when an engine must have answered. That is the deadline; but a caller that does not wait still
    gives it LEAST_PATIENCE to connect and to say whether the lock is busy.
    """

    __slots__ = ("_clock", "_waits", "answer_by", "at")

    def __init__(self, timeout: float | None, clock: Callable[[], float], start: float | None = None) -> None:
        start = clock() if start is None else start
        self._clock = clock
        self._waits = timeout != 0
        self.at = math.inf if timeout is None else start + timeout
        self.answer_by = max(self.at, start + (LEAST_ANSWER if self._waits else LEAST_PATIENCE))

    def over(self) -> bool:
        """Has the time of a caller who waits run out, so that nobody need be asked any more?"""
        return self._waits and self._clock() >= self.at

    def left(self) -> float:
        """Seconds left, never below zero; ``math.inf`` if there is no end."""
        left = self.at - self._clock()
        return left if left > 0 else 0.0


class Pause:
    """The waiting itself, as a target for :class:`Call`."""

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(seconds)

    @staticmethod
    async def asleep(seconds: float) -> None:
        await asyncio.sleep(seconds)


PAUSE = Pause()


def backoff(attempt: int, *, first: float = 0.001, longest: float = 0.05) -> float:
    """Seconds to sleep before attempt ``attempt + 1``: doubled each time, at most ``longest``, with full jitter.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    ceiling = min(longest, first * float(2 ** min(attempt, 16)))
    return ceiling * (0.5 + random.random() / 2)  # noqa: S311 - spreads retries, guards no secret


def acquire_flow(backend: Any, claim: Claim, deadline: Deadline, clock: Callable[[], float]) -> Flow[Grant | None]:
    """Ask ``backend`` until it grants ``claim`` or the deadline passes; None if it was busy to the end.

    A grant that arrives after its own validity is given back. Whatever ends the flow, the backend is told that this
    waiter has left.
    """
    attempt = 0
    if deadline.over():
        return None
    got: list[Grant | None] = []
    try:
        while True:
            grant: Grant | None = yield Call(backend, "try_acquire", (claim, deadline.left()), got)
            if grant is not None:
                if grant.valid_until is None or grant.valid_until > clock():
                    return grant
                yield Call(backend, "release", (grant,))
            got.clear()
            left = deadline.left()
            if left <= 0:
                break
            yield Call(PAUSE, "sleep", (min(backend.pause(claim, attempt), left),))
            attempt += 1
        if backend.queues_waiters:  # and again below, if that is interrupted
            yield Call(backend, "withdraw", (claim,))
        return None
    except GeneratorExit:
        raise
    except BaseException:
        if got and got[0] is not None:
            yield Call(backend, "release", (got[0],))
        if backend.queues_waiters:
            yield Call(backend, "withdraw", (claim,))
        raise
