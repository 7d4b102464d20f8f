"""Lease and LeaseSet: what an acquire returns, and how it is released."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.flow import in_task, run
from django_distlock.exceptions import DistlockError, LockLost, LockNotHeld
from django_distlock.manager import owner
from django_distlock.manager.keepalive import RENEWALS_PER_TTL, keepalive, renew
from django_distlock.manager.lock_table import FORKED, Hold, State, lock_table
from django_distlock.manager.release import finish_release, give_back, notice_loss
from django_distlock.manager.transactions import defer
from django_distlock.validation import seconds

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Iterator

    from django_distlock.records import Grant

    from .task_guard import TaskGuard


class BaseLease:
    """Base class of Lease and LeaseSet: ``with lease:``, ``async with lease:`` and ``release()``.

    What the exception of a signal (KeyboardInterrupt, a task's soft time limit) cuts off is done in another thread, and
    so is a release inside a generator or coroutine that is being closed: it may not wait, and if the garbage collector
    closes it, this thread may have any mutex.
    """

    __slots__ = ()

    @property
    def owner(self) -> object:
        """The context that acquired it."""
        return self._leases[0]._hold.owner

    @property
    def _leases(self) -> tuple[Lease, ...]:
        raise NotImplementedError

    async def _arelease(self, raising: bool, wait: bool = True) -> None:
        """Release in reverse order. ``raising``: raise the first error, do not log it.

        ``wait`` is false on the thread of an event loop: another task of it may be in the middle of a statement, which
        ends only if the loop keeps running. There another thread asks the engine, and errors of that are only logged.
        """
        errors: list[BaseException] = []
        for lease in reversed(self._leases):
            try:
                if lease._leave_hold():
                    if wait:
                        await give_back(lease._hold)
                    else:
                        leftovers.leave(partial(run, give_back(lease._hold)))
            except (DistlockError, asyncio.CancelledError) as error:
                errors.append(error)
        if errors:
            _report(errors, raising)

    def _finish_release(self) -> None:
        """Do what is left of the release, in a thread that may wait. Does nothing if nothing is left."""
        for lease in reversed(self._leases):
            lease._finish_release()

    def _close(self, kind: type[BaseException] | None) -> None:
        """Release in this thread. ``kind``: the exception that is being raised."""
        if kind is GeneratorExit:
            leftovers.leave(self._finish_release)
        else:
            run(self._arelease(kind is None, wait=not in_task()))

    async def _aclose(self, kind: type[BaseException] | None) -> None:
        try:
            if kind is GeneratorExit:
                leftovers.leave(self._finish_release)
            else:
                await self._arelease(kind is None)
        except BaseException as error:
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        """The release has failed: an error of ours has ended it, any other exception has cut it off."""
        if not isinstance(error, DistlockError):
            leftovers.leave(self._finish_release)

    def release(self) -> None:
        """Release the lock. A second release does nothing.

        Raises LockLost if the lock was lost before, unless another exception is being handled. Inside a transaction
        the engine keeps the lock until the transaction has ended.
        """
        try:
            self._close(sys.exc_info()[0])
        except BaseException as error:
            self._failed(error)
            raise

    async def arelease(self) -> None:
        """:meth:`release` for a task."""
        await self._aclose(sys.exc_info()[0])

    def __enter__(self) -> Self:
        owner.refuse_event_loop("async with")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._close(kind)
        except BaseException as failure:
            self._failed(failure)
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await self._aclose(kind)


logger = logging.getLogger("django_distlock.locks")


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Lease(BaseLease):
    """One acquire's handle on a lock that is held; released once, by any thread or task.

    A Lease that is dropped without a release keeps the lock.
    """

    _hold: Hold
    # cancels the task of an ``async with`` block if the lock is lost
    _guard: TaskGuard | None = None
    # What its hold counts. It is kept here, because the hold discards the same object: the garbage collector may clear
    # it before it closes the block of the lease, and a new reference would not equal it.
    _reference: weakref.ref[Lease] | None = None
    # True once its release has begun
    _released: bool = False
    # True if its release is the one that the engine executes, or has found the lock lost
    _last: bool = False

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held" if self.held else "released"
        return f"<Lease {self.name!r} on {self.using!r}: {state}>"

    @property
    def name(self) -> str:
        """The name as the code spells it."""
        return self._hold.key.name

    @property
    def using(self) -> str:
        """The alias."""
        return self._hold.backend.alias

    @property
    def shared(self) -> bool:
        """Is it held together with other readers?"""
        return self._hold.shared

    @property
    def _grant(self) -> Grant:
        grant = self._hold.grant
        assert grant is not None  # noqa: S101 - a Lease is handed out only once there is a grant
        return grant

    @property
    def fence(self) -> int:
        """The fencing token: an integer that is higher than that of every earlier holder of this name.

        Raises UnsupportedOperation if the engine has none.
        Source: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
        """
        fence = self._grant.fence
        if fence is None:
            raise self._hold.backend.unsupported("give a fencing token")
        return fence

    @property
    def valid_until(self) -> float | None:
        """The end of the lease on the clock of ``django_distlock.concurrency.clock.now()``.

        None if the lock has no TTL. Each renewal extends it. Unlike ``time.monotonic()`` that clock keeps counting
        while the host is suspended. Use :meth:`held_for` to check whether enough time is left.
        """
        return self._grant.valid_until

    @property
    def lost(self) -> bool:
        """Was the lock lost, as far as this process can know without asking the engine?"""
        # after its release a loss is that of other leases of its context, or of its transaction
        return (self._last or not self._released) and notice_loss(self._hold)

    @property
    def held(self) -> bool:
        """Is the lock held: not released, not lost, not in doubt and not ended with its transaction?"""
        return not (self._released or self._hold.state is State.ENDED or self.lost or self._hold.in_doubt)

    def held_for(self, duration: float) -> bool:
        """Is the lock certain to be held for another ``duration`` seconds, even if it is never renewed again?

        The same as :attr:`held` if the lock has no TTL.
        """
        until = self.valid_until
        return self.held and (until is None or clock.now() + duration < until)

    def ensure_held(self) -> None:
        """Raise LockLost if the lock was lost or is in doubt, LockNotHeld if it was released or has ended with its
        transaction."""
        if self.lost or self._hold.in_doubt:
            raise LockLost(self._lost_message())
        if self._released or self._hold.state is State.ENDED:
            raise LockNotHeld(f"The lease of {self.name!r} has been released.")

    def on_lost(self, callback: Callable[[Lease], object]) -> None:
        """Call ``callback(lease)`` once if the lock is lost; at once if it is lost already.

        The callback runs in the thread that notices the loss, usually the keepalive thread. Its exceptions are logged.
        """
        pending = [callback]

        def call() -> None:
            try:
                taken = pending.pop()
            except IndexError:
                return
            if not self._released or self._last:
                taken(self)

        # registered before the check: another thread may notice the loss in between
        self._hold.callbacks.append(call)
        if self.lost:
            call()

    def extend(self, ttl: float) -> None:
        """Set the rest of the lease to ``ttl`` seconds from now, and use this TTL for its renewals.

        It ends with ``max_hold`` all the same.
        Raises LockLost if the lock was lost, UnsupportedOperation if the engine has no TTL.
        """
        owner.refuse_event_loop("await lease.aextend()")
        run(self.aextend(ttl))

    async def aextend(self, ttl: float) -> None:
        """:meth:`extend` for a task."""
        ttl = seconds("ttl", ttl, positive=True) or 0.0
        hold = self._hold
        if not hold.backend.supports_ttl:
            raise hold.backend.unsupported("extend a lease: its locks have no TTL")
        ttl = hold.bounded(ttl)
        self.ensure_held()
        if await renew(hold, ttl, lasting=True):
            keepalive.wake_at(clock.now() + ttl / RENEWALS_PER_TTL)
            return
        self.ensure_held()
        raise LockLost(self._lost_message())

    def _lost_message(self) -> str:
        return f"The lock {self.name!r} of alias {self.using!r} was lost ({self._hold.reason})."

    async def __aenter__(self) -> Self:
        if self._guard is not None:
            await self._guard.arm()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._guard is None or not await self._guard.disarm(kind, error, trace):
            await self._aclose(kind)
            return
        with contextlib.suppress(DistlockError):
            await self._aclose(None)
        raise LockLost(self._lost_message()) from error

    @property
    def _leases(self) -> tuple[Lease, ...]:
        return (self,)

    def _finish_release(self) -> None:
        hold, self._released = self._hold, True
        first = lock_table.leave(hold, self)
        cut_off = not first and self._last and hold.state is State.RELEASING
        if (first or cut_off) and not defer(hold):
            finish_release(hold, again=cut_off)

    def _leave_hold(self) -> bool:
        """Stop using the hold. True if the caller must ask the engine now to release it. LockLost if it was lost."""
        hold = self._hold
        if self._released or hold.lost == FORKED:
            return False
        self._released = True
        if hold.lost is not None:
            self._last = True
            raise LockLost(self._lost_message())
        if not lock_table.leave(hold, self):
            return False
        self._last = not defer(hold)
        return self._last


def _report(errors: list[BaseException], raising: bool) -> None:
    """Raise a cancellation, or else the first error if ``raising``; log it otherwise."""
    first = next((error for error in errors if isinstance(error, asyncio.CancelledError)), errors[0])
    if raising or isinstance(first, asyncio.CancelledError):
        raise first
    logger.warning("%s This error is only logged, because another exception is being raised.", first)


class LeaseSet(BaseLease):
    """The Leases of one :func:`lock_all`, in the order in which they were acquired."""

    __slots__ = ("leases",)

    def __init__(self, leases: list[Lease]) -> None:
        self.leases = tuple(leases)

    def __repr__(self) -> str:
        return f"<LeaseSet {[lease.name for lease in self.leases]!r}>"

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.leases)

    def __len__(self) -> int:
        return len(self.leases)

    def __getitem__(self, key: str | tuple[str, str]) -> Lease:
        """The lease of one name, or of an alias and a name: ``leases["redis", "report"]``.

        Raises KeyError if there is none, ValueError for a name that is held on several aliases.
        """
        found = [lease for lease in self.leases if key in (lease.name, (lease.using, lease.name))]
        if not found:
            raise KeyError(key)
        if len(found) > 1:
            ways = " or ".join(f"leases[{lease.using!r}, {lease.name!r}]" for lease in found)
            raise ValueError(f"The name {key!r} is held on several aliases: say {ways}.")
        return found[0]

    @property
    def lost(self) -> bool:
        """Was any of them lost?"""
        return any(lease.lost for lease in self.leases)

    def ensure_held(self) -> None:
        """Raise LockLost if one of the locks was lost, LockNotHeld if one was released."""
        for lease in self.leases:
            lease.ensure_held()

    @property
    def _leases(self) -> tuple[Lease, ...]:
        return self.leases
