"""``with`` and ``release`` for whatever has been acquired."""

from __future__ import annotations

import sys
from typing import Self

from django_distlock.concurrency import finalizers
from django_distlock.concurrency.flow import Flow, adrive, drive
from django_distlock.manager import owner


class Releasable:
    """``with lease:`` and ``async with lease:`` for whatever can be released."""

    __slots__ = ()

    def _release_flow(self, raising: bool) -> Flow[None]:
        raise NotImplementedError

    def _release(self, raising: bool) -> None:
        drive(self._release_flow(raising))

    def _aenters(self) -> None:
        """An ``async with`` block begins in this task."""

    async def _aleave(self, error: BaseException | None) -> None:
        """The block has ended, with that exception."""
        await adrive(self._release_flow(error is None))

    def release(self) -> None:
        """Give it back. Releasing twice is harmless.

        Raises LockLost if it was lost before, unless another exception is on its way already. Inside a transaction
        the engine keeps the lock until that has ended.
        """
        if finalizers.collecting():
            finalizers.later(self._release, False)
        else:
            self._release(sys.exc_info()[0] is None)

    async def arelease(self) -> None:
        """:meth:`release` for a task."""
        if finalizers.collecting():
            finalizers.later(self._release, False)
        elif not owner.on_event_loop():  # the coroutine is being closed: nothing can be awaited
            self._release(False)
        else:
            await adrive(self._release_flow(sys.exc_info()[0] is None))

    def __enter__(self) -> Self:
        owner.refuse_event_loop("async with")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if finalizers.collecting():
            finalizers.later(self._release, False)
        else:
            self._release(kind is None)

    async def __aenter__(self) -> Self:
        self._aenters()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if finalizers.collecting():
            finalizers.later(self._release, False)
        elif not owner.on_event_loop():
            self._release(False)
        else:
            await self._aleave(error)
