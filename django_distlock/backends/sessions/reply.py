"""The reply to a statement that was sent by itself: whoever uses the session next reads it."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress

from django_distlock.concurrency import clock
from django_distlock.concurrency.parking import Parker


class Reply:
    """One reply. A task waits for it; for the reply to a heartbeat nobody does. OSError: no ``descriptor`` to watch."""

    __slots__ = ("_answer", "_error", "_parker", "_watched", "read", "sent_at")

    def __init__(self, descriptor: int | None = None) -> None:
        self._parker = Parker()
        # the event loop watches a duplicate: another file may get the number that the session closes
        self._watched = -1 if descriptor is None else os.dup(descriptor)
        self._answer: bool | None = None
        self._error: Exception | None = None
        self.sent_at = clock.now()
        #: Was it read from the session, or did that end before?
        self.read = False

    async def arrives(self) -> None:
        """Suspend the task until it can be read, or another thread has read it."""
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(self._watched, self._parker.wake)
            await self._parker.park(threading.TIMEOUT_MAX)  # the watchdog of the session ends it
        finally:
            with suppress(RuntimeError):  # the event loop is closed
                loop.remove_reader(self._watched)
            self.forget()

    def forget(self) -> None:
        """Close what an event loop watches: the wait is over, or this is the child of a fork."""
        watched, self._watched = self._watched, -1
        if watched >= 0:
            os.close(watched)

    def finish(self, answer: bool | None, error: Exception | None) -> None:
        """Note what was read, and wake the task."""
        self._answer, self._error, self.read = answer, error, True
        self._parker.wake()

    def result(self) -> bool | None:
        """The answer, or the error."""
        error, self._error = self._error, None
        if error is None:
            return self._answer
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
