"""Calls that their caller may abandon: each runs in a daemon thread, and the caller waits for it until a deadline.

No driver keeps a deadline while it looks up a name or connects. To make several calls at the same time,
:meth:`Background.start` each, then take the :meth:`Background.result` of each.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import clock
from .outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# Abandoned calls to one server that may be under way. A name server that hangs keeps each of them for half a minute.
MAX_ABANDONED = 32


class CallTimeout(Exception):
    """The call did not return by the deadline of its caller. It has been abandoned."""


class NotStarted(Exception):
    """The call was not made: too many abandoned ones are under way, or there is no thread for it."""


class Background:
    """The calls to one server. ``limit``: how many abandoned ones may be under way (MAX_ABANDONED).

    There is no mutex, which a fork could leave locked: one abandoned call more than the limit does no harm.
    """

    def __init__(self, thread_name: str, limit: int | None = None) -> None:
        self.thread_name = thread_name
        self._limit = limit
        self._abandoned: set[Outcome[Any]] = set()

    async def call(
        self, until: float, function: Callable[..., T], *args: Any, dispose: Callable[[T], object] | None = None
    ) -> T:
        """The result of ``function(*args)``, or its exception. CallTimeout at the monotonic time ``until``; NotStarted.

        ``dispose`` gets a result that the caller does not: after an error, a cancellation or KeyboardInterrupt in its
        wait, too. Exceptions of ``dispose`` are dropped.
        """
        return await self.result(self.start(function, *args, dispose=dispose), until, dispose)

    def start(self, function: Callable[..., T], *args: Any, dispose: Callable[[T], object] | None = None) -> Outcome[T]:
        """Begin a call, whose :meth:`result` the caller takes later. NotStarted."""
        if len(self._abandoned) >= (MAX_ABANDONED if self._limit is None else self._limit):
            raise NotStarted(f"No new attempt is made: {len(self._abandoned)} are still under way.")
        outcome: Outcome[T] = Outcome()
        try:
            threading.Thread(target=_run, args=(outcome, function, args), name=self.thread_name, daemon=True).start()
        except RuntimeError as error:  # a limit of the system, or the end of the interpreter
            raise NotStarted(f"No new attempt is made: {error}.") from error
        except BaseException:  # of a signal: the thread may be running
            outcome.add_done_callback(lambda ended: self._ended(ended, dispose))
            raise
        return outcome

    async def result(self, outcome: Outcome[T], until: float, dispose: Callable[[T], object] | None = None) -> T:
        """Wait for the result of a call that :meth:`start` began, as :meth:`call` does."""
        try:
            if not await outcome.wait(until - clock.now()):
                raise CallTimeout("There was no answer in time.")
            return outcome.result()
        except BaseException:
            self._abandoned.add(outcome)
            outcome.add_done_callback(lambda ended: self._ended(ended, dispose))
            raise
        finally:
            del outcome  # it refers to the error, whose traceback refers to this frame

    def _ended(self, outcome: Outcome[T], dispose: Callable[[T], object] | None) -> None:
        self._abandoned.discard(outcome)
        if dispose is not None and outcome.exception() is None:
            with contextlib.suppress(Exception):
                dispose(outcome.result())


class SharedCall(Generic[T]):
    """A call to open what several callers share. They all wait for the one that is under way, each until its own
    deadline: a server that hangs has one thread, and callers do not connect to it in turn.

    ``function`` runs in one thread at a time. It keeps what it has opened, which nobody may be waiting for any more,
    and returns it at once if it is asked again.
    """

    def __init__(self, thread_name: str, function: Callable[[], T]) -> None:
        self._background = Background(thread_name)
        self._function = function
        self._mutex = threading.Lock()
        self._outcome: Outcome[T] | None = None

    async def result(self, until: float) -> T:
        """The result, or the exception of the call. CallTimeout at the monotonic time ``until``; NotStarted."""
        with self._mutex:
            outcome = self._outcome
            if outcome is None or outcome.done():
                outcome = self._outcome = self._background.start(self._function)
        return await self._background.result(outcome, until)


def _run(outcome: Outcome[T], function: Callable[..., T], args: tuple[Any, ...]) -> None:
    try:
        outcome.set_result(function(*args))
    except BaseException as error:
        outcome.set_exception(error)
    finally:
        del outcome, function, args  # the traceback of an error refers to this frame, and the outcome to the error
