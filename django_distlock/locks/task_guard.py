"""Cancel a task whose lock was lost, as ``asyncio.timeout`` cancels one whose time is up."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from django_distlock.exceptions import LockLost, LockNotHeld

if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds between two checks of the lease, which cost no round trip. A loss calls back at once; a lease that is in doubt
# is found only by checking.
CHECK_EVERY = 0.1


class TaskGuard:
    """Watches over one ``async with`` block of the current task."""

    __slots__ = ("_cancelling", "_ensure_held", "_on_lost", "_task", "_timer", "fired")

    def __init__(
        self, ensure_held: Callable[[], object], on_lost: Callable[[Callable[[object], object]], object]
    ) -> None:
        """``ensure_held`` and ``on_lost`` are those of the lease."""
        self._ensure_held, self._on_lost = ensure_held, on_lost
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling = 0
        self.fired = False

    def arm(self) -> None:
        """Start watching: the block begins in the current task."""
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("cancel_on_loss needs a task that can be cancelled.")
        self._cancelling = self._task.cancelling()
        self._timer = self._task.get_loop().call_later(CHECK_EVERY, self._check)
        self._on_lost(self._lost)

    def _lost(self, _lease: object) -> None:
        # most often in the keepalive thread
        task = self._task
        if task is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                task.get_loop().call_soon_threadsafe(self._fire)

    def _check(self) -> None:
        try:
            self._ensure_held()
        except LockLost:
            self._fire()
        except LockNotHeld:
            pass  # the block has released it
        else:
            self._timer = asyncio.get_running_loop().call_later(CHECK_EVERY, self._check)

    def _fire(self) -> None:
        if self._task is not None and not self.fired:
            self.fired = True
            self._task.cancel()

    def disarm(self, error: BaseException | None) -> bool:
        """Stop watching. True if ``error``, which ended the block, is this guard's cancellation and no other."""
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        if task is None or not self.fired:
            return False
        # a cancellation by other code is still counted, and must be raised
        others = task.uncancel() > self._cancelling
        return not others and isinstance(error, asyncio.CancelledError)
