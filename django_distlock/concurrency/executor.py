"""The threads of a backend, in which the calls of tasks run: engines are blocking code.

Short statements of all tasks share one thread, so that they do not contend for the session. A wait has a thread of its
own: a release never queues behind it. asgiref's thread-sensitive thread is not used, because a lock that waits there
would stop every other request of the process.

A task may stop waiting at any time: it is cancelled, its event loop is closed, or it has no time left. Its call runs to
its end all the same, and what it got is undone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from . import leftovers
from .background import CallTimeout, NotStarted
from .flow import in_task, uninterrupted
from .origin import acting_for
from .parking import Parker
from .text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

logger = logging.getLogger("django_distlock.locks")


class _Call:
    """A call in a thread, for a task that waits for its end."""

    __slots__ = ("_call", "_undo", "abandoned", "ended", "outcome", "parker")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], undo: Callable[[Any], Any] | None) -> None:
        context = copy_context()  # what the engine shows of its caller
        context.run(acting_for.set, asyncio.current_task())
        self._call: Any = partial(context.run, function, *args)
        self._undo = undo
        self.parker = Parker()
        # The result and the error. The task takes them out, or whoever undoes the call: one of the two.
        self.outcome: list[tuple[Any, BaseException | None]] = []
        # the task has stopped waiting
        self.abandoned = False
        # the thread has ended the call
        self.ended = False

    def run(self) -> None:
        """Make the call, in a thread. One that would be undone is not begun."""
        if not self.abandoned or self._undo is None:
            try:
                self.outcome.append((self._call(), None))
            except BaseException as error:
                self.outcome.append((None, error))
        self._call, self.ended = None, True
        if self.abandoned:
            self.dispose()
        if not self.parker.wake():  # the event loop is closed
            self.dispose()

    def dispose(self) -> None:
        """Undo the call, unless that is done or the task has its result. In a thread that may wait."""
        try:
            result, _ = self.outcome.pop()
        except IndexError:
            return
        if self._undo is not None and result is not None:
            try:
                self._undo(result)
            except Exception as error:
                logger.warning("What an abandoned call got could not be given back: %s", one_line(error))

    async def wait_on(self) -> None:
        """Wait once more, after a wait that was cancelled."""
        self.parker = Parker()
        if not self.ended:
            await self.parker.park(threading.TIMEOUT_MAX)

    def result(self) -> Any:
        """The result, or its exception; CallTimeout if the call has not ended."""
        try:
            result, error = self.outcome.pop()
        except IndexError:
            self.abandoned = True
            if self.ended:
                leftovers.leave(self.dispose)
            raise CallTimeout("There was no answer in time.") from None
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


class Threads:
    """The threads of one backend, each started when it is needed."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._mutex = threading.Lock()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._latest: _Call | None = None

    async def short(
        self,
        function: Callable[..., T],
        *args: Any,
        undo: Callable[[T], Any] | None = None,
        patience: float | None = None,
    ) -> T:
        """The result of a short statement, for a task in the thread of those; in a thread it is called at once.

        CallTimeout after ``patience`` seconds; NotStarted. ``undo`` gets a result other than None that the task does
        not get, in a thread. Without ``undo`` the call is made even if nobody waits for it any more: it is a release.
        """
        if not in_task():
            return function(*args)
        call = _Call(function, args, undo)
        with self._mutex:
            if self._thread is None:
                self._thread = self._start("short", self._work, self._calls)
            self._latest = call
            self._calls.put(call)
        return await self._result(call, None, patience)  # type: ignore[no-any-return]

    async def long(
        self,
        function: Callable[..., T],
        *args: Any,
        stop: Callable[[], object],
        undo: Callable[[T], Any] | None = None,
    ) -> T:
        """:meth:`short` for a call that waits, in a thread of its own. ``stop`` lets the call end soon, and must not
        wait itself."""
        if not in_task():
            return function(*args)
        call = _Call(function, args, undo)
        self._start("wait", call.run)
        return await self._result(call, stop, None)  # type: ignore[no-any-return]

    async def _result(self, call: _Call, stop: Callable[[], object] | None, patience: float | None) -> Any:
        try:
            await call.parker.park(threading.TIMEOUT_MAX if patience is None else patience)
        except BaseException as error:
            call.abandoned = True
            try:
                if stop is not None:
                    stop()
                if isinstance(error, asyncio.CancelledError):
                    await uninterrupted(call.wait_on())
                    if call.outcome:
                        with suppress(NotStarted):  # then it is left, below
                            await uninterrupted(self.short(call.dispose))
            finally:
                if call.outcome:  # the event loop is closed, and this frame perhaps by the garbage collector
                    leftovers.leave(call.dispose)
            raise
        return call.result()

    def _start(self, kind: str, function: Callable[..., object], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=function, args=args, name=f"distlock-{self._alias}-{kind}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of the system, or the end of the interpreter
            raise NotStarted(f"No thread can be started: {error}.") from error
        return thread

    @staticmethod
    def _work(calls: SimpleQueue[_Call | None]) -> None:
        while True:
            call = calls.get()
            if call is None:
                return
            call.run()
            del call

    def idle(self) -> bool:
        """Is no short statement under way? The latest one ends last."""
        return self._latest is None or self._latest.ended

    def stop_if_idle(self) -> None:
        """End the thread of short statements if it is idle; it starts again when needed."""
        if self.idle():
            self.stop(wait=False)

    def stop(self, wait: bool = True) -> None:
        """End the thread of short statements, and wait for its end."""
        with self._mutex:
            thread, self._thread = self._thread, None
            calls, self._calls = self._calls, SimpleQueue()
        if thread is not None:
            calls.put(None)
            if wait:
                thread.join()
