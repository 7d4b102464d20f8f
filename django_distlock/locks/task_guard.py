"""Cancel a task whose lock was lost, as ``asyncio.timeout`` cancels one whose time is up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from django_distlock.exceptions import LockLost, LockNotHeld

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

# Seconds between two checks of the lease, which cost no round trip.
CHECK_EVERY = 0.1


class TaskGuard:
    """Watches over one ``async with`` block of the current task, which is that of a timeout: a loss is its end."""

    __slots__ = ("_ensure_held", "_timeout", "_timer")

    def __init__(self, ensure_held: Callable[[], object]) -> None:
        """``ensure_held`` is that of the lease."""
        self._ensure_held = ensure_held
        self._timeout: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def arm(self) -> None:
        """Start watching: the block begins in the current task."""
        self._timeout = await asyncio.timeout(None).__aenter__()
        self._check()

    def _check(self) -> None:
        try:
            self._ensure_held()
        except LockLost:
            if self._timeout is not None:
                self._timeout.reschedule(0)
        except LockNotHeld:
            pass  # the block has released it
        else:
            self._timer = asyncio.get_running_loop().call_later(CHECK_EVERY, self._check)

    async def disarm(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop watching. True if ``error``, which ended the block, is this guard's cancellation and no other."""
        timeout, self._timeout = self._timeout, None
        if self._timer is not None:
            self._timer.cancel()
        try:
            if timeout is not None:
                await timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            return True
        return False
