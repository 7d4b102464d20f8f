"""Calls that their caller may abandon: each runs in a daemon thread, and the caller waits for it until a deadline.

No driver keeps a deadline while it looks up a name or connects. A call to one of them is made like this::

    self._connecting = Background(f"distlock-{alias}-connect")  # one per server
    ...
    try:
        link = await self._connecting.call(until, connect, host, port, dispose=Link.close)
    except CallTimeout: ...   # the call still runs in its thread; its result will be closed
    except NotStarted as error: ...   # too many abandoned calls, or no thread: str(error) says which
    except OSError: ...   # raised by connect()

An error, a cancellation or KeyboardInterrupt ends the wait and abandons the call. To make several calls at the same
time, :meth:`Background.start` each, then take the result of each, and :meth:`Call.abandon` those that are no longer
needed.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import clock
from .parking import Parker

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
        self._abandoned: list[Call[Any]] = []

    async def call(
        self, until: float, function: Callable[..., T], *args: Any, dispose: Callable[[T], object] | None = None
    ) -> T:
        """The result of ``function(*args)``, or its exception. CallTimeout at the monotonic time ``until``; NotStarted.

        ``dispose`` gets a result that comes after the caller has left. Its exceptions are dropped.
        """
        return await Call(self, function, args, dispose).result(until)

    def start(self, function: Callable[..., T], *args: Any, dispose: Callable[[T], object] | None = None) -> Call[T]:
        """Begin a call, whose :meth:`Call.result` the caller takes later, or which it abandons. NotStarted."""
        call = Call(self, function, args, dispose)
        call.start()
        return call

    def check(self) -> None:
        """NotStarted if too many abandoned calls are under way."""
        self._abandoned = [call for call in self._abandoned if not call.ended]
        if len(self._abandoned) >= (MAX_ABANDONED if self._limit is None else self._limit):
            raise NotStarted(f"No new attempt is made: {len(self._abandoned)} are still under way.")

    def count(self, call: Call[Any]) -> None:
        """Count an abandoned call, until it ends."""
        if call not in self._abandoned:
            self._abandoned.append(call)


class Call(Generic[T]):
    """One call. Its result belongs to the caller that takes it, or else to ``dispose``."""

    __slots__ = ("_args", "_background", "_dispose", "_error", "_function", "_parker", "_thread", "_value")

    _value: T

    def __init__(
        self,
        background: Background,
        function: Callable[..., T],
        args: tuple[Any, ...],
        dispose: Callable[[T], object] | None,
    ) -> None:
        self._background = background
        self._function = function
        self._args = args
        self._dispose = dispose
        self._error: BaseException | None = None
        self._parker = Parker()  # once woken the outcome is the caller's, once left it is the thread's
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread. NotStarted."""
        self._background.check()
        self._thread = threading.Thread(target=self._run, name=self._background.thread_name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit of the system, or the end of the interpreter
            raise NotStarted(f"No new attempt is made: {error}.") from error
        except BaseException:  # the thread may be running
            self.abandon()
            raise

    @property
    def ended(self) -> bool:
        """Has the thread come to its end?"""
        return self._thread is None or not self._thread.is_alive()

    @property
    def done(self) -> bool:
        """Is the outcome there for the caller to take?"""
        return self._parker.woken

    def _run(self) -> None:
        try:
            self._value = self._function(*self._args)
        except BaseException as error:
            self._error = error
        if not self._parker.wake():
            self._throw_away()

    async def result(self, until: float) -> T:
        """Wait, and take the result or raise the exception of the function. CallTimeout at the monotonic time
        ``until``. To be used once; starts the call if it has not begun."""
        taken = False
        try:
            if self._thread is None:
                self.start()
            if not await self._parker.park(until - clock.now()):
                raise CallTimeout("There was no answer in time.")
            if self._error is not None:
                raise self._error
            self._dispose = None
            # From here to the assignment in the caller Python does not look for signals.
            taken = True
            return self._value
        finally:
            if not taken:
                self.abandon()

    def join(self, seconds: float) -> bool:
        """Wait for at most ``seconds`` without abandoning the call; :attr:`done`."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))
        return self.done

    def abandon(self) -> None:
        """Leave the call to itself. ``dispose`` gets its result: at once if it is there, else when it comes."""
        if self._parker.leave():
            self._throw_away()
        elif not self.ended:
            self._background.count(self)

    def _throw_away(self) -> None:
        dispose, self._dispose = self._dispose, None
        failed, self._error = self._error is not None, None  # it refers to this call, through its traceback
        if not failed and dispose is not None:
            with contextlib.suppress(Exception):
                dispose(self._value)
