"""The result of a call in another thread, for any number of callers."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .parking import Parker

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Outcome(Generic[T]):
    """A result or an error that is to come, with methods of :class:`concurrent.futures.Future`.

    That one has a mutex, which the exception of a signal (KeyboardInterrupt, a task's soft time limit) can leave locked
    for ever: between ``Condition.__enter__()`` and the block. This one has none. Its lists are used by one call in C at
    a time.
    """

    __slots__ = ("_callbacks", "_done", "_error", "_result")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Outcome[T]], object]] = []
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Has the call ended?"""
        return self._done

    def result(self) -> T:
        """The result of a call that has ended, or its exception."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the traceback of the error refers to this frame
        return self._result  # type: ignore[no-any-return]

    def exception(self) -> BaseException | None:
        """The exception of a call that has ended, if it had one."""
        return self._error

    def set_result(self, result: T) -> None:
        """The call has returned. Nothing if it had ended before."""
        if not self._done:
            self._result, self._done = result, True
        self._tell()

    def set_exception(self, error: BaseException) -> None:
        """The call has failed. Nothing if it had ended before."""
        if not self._done:
            self._error, self._done = error, True
        self._tell()

    def add_done_callback(self, callback: Callable[[Outcome[T]], object]) -> None:
        """Call ``callback(self)`` once, when the call has ended, in the thread that has ended it, or now."""
        self._callbacks.append(callback)
        if self._done:
            self._tell()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the call, at most ``timeout`` seconds. Has it ended?"""
        parker = Parker()

        def wake(outcome: Outcome[T]) -> None:
            parker.wake()

        self.add_done_callback(wake)
        try:
            await parker.park(threading.TIMEOUT_MAX if timeout is None else timeout)
        finally:
            with suppress(ValueError):
                self._callbacks.remove(wake)
        return self._done

    def _tell(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread has taken the last one
                return
            callback(self)
