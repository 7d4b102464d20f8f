"""What a lock, a set of locks and a semaphore have in common: acquire, with, and the decorator, sync and async.

The objects are recipes: they say what is wanted and how long to wait, and may be module-level constants that many
threads and tasks use at once. Which context entered which ``with`` is therefore kept here and not on them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

from django_distlock.concurrency import finalizers
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, arun, run
from django_distlock.exceptions import LockNotAcquired, LockNotHeld, LockTimeout
from django_distlock.manager import owner as context
from django_distlock.manager import schedulers
from django_distlock.manager.registry import registry
from django_distlock.validation import UNSET, Timeout, optional_seconds

from . import decorators
from .lease import BaseLease

L = TypeVar("L", bound=BaseLease)
F = TypeVar("F", bound=Callable[..., Any])


class OpenBlocks:
    """The ``with`` blocks that are open now: for each recipe the contexts that entered it, and their leases."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # the recipe itself is kept beside its id, so that the id is not given to another object meanwhile
        self._open: dict[int, tuple[object, list[Any]]] = {}

    def push(self, recipe: object, lease: Any) -> None:
        with self._guard:
            found = self._open.get(id(recipe))
            if found is None:
                self._open[id(recipe)] = (recipe, [lease])
            else:
                found[1].append(lease)

    def pop(self, recipe: object, owner: object = None) -> Any | None:
        """The latest entry of ``owner`` (the caller), or the only open one (R24); None if there is neither."""
        with self._guard:
            found = self._open.get(id(recipe))
            if found is None:
                return None
            entries: list[Any] = found[1]
            if len(entries) == 1:
                del self._open[id(recipe)]
                return entries[0]
            owner = owner or context.current()
            for index in range(len(entries) - 1, -1, -1):
                if entries[index].owner is owner:
                    return entries.pop(index)
            return None

    def remove(self, recipe: object, lease: Any) -> None:
        """Take back a :meth:`push` that was interrupted, if it was done."""
        with self._guard:
            found = self._open.get(id(recipe))
            if found is not None and lease in found[1]:
                found[1].remove(lease)
                if not found[1]:
                    del self._open[id(recipe)]

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have had the mutex. The open blocks stay, so that leaving one
        is harmless."""
        self._guard = threading.Lock()


entries = OpenBlocks()
os.register_at_fork(after_in_child=entries.after_fork)


class BaseLock(Generic[L]):
    """The faces of a recipe. Subclasses say how it is acquired (``_flow``) and what is said when it is busy."""

    using: str
    timeout: Timeout
    on_busy: decorators.OnBusy = "raise"
    cancel_on_loss = False
    #: The name as it is written in a decorator, for the labels of metrics: there are few of these.
    template: str | None = None

    def _flow(self, timeout: float | None, start: float) -> Flow[L | None]:
        """Acquire within ``timeout`` seconds (None: no end) of the monotonic time ``start``; None if busy."""
        raise NotImplementedError

    def _at_once(self, timeout: float | None) -> L | None:
        """Acquire what is free, in this thread and without a flow; None: the flow sees to it."""
        return None

    def _described(self) -> str:
        raise NotImplementedError

    def templates(self) -> tuple[str, ...]:
        """The names that may hold ``{fields}`` when this is used as a decorator."""
        raise NotImplementedError

    def formatted(self, values: Mapping[str, str]) -> Self:
        """The same recipe with each name in ``values`` (template -> name) replaced."""
        raise NotImplementedError

    def _resolve(self, timeout: Timeout) -> float | None:
        schedulers.refuse_trio()
        timeout = self.timeout if timeout is UNSET else optional_seconds("timeout", timeout, none=True)
        # made before the caller's time begins: the first one may have to import a driver
        entry = registry.entry(self.using)
        return entry.config.timeout if timeout is UNSET else timeout

    def _acquire_flow(self, timeout: float | None, start: float) -> Flow[L]:
        lease = yield from self._flow(timeout, start)
        if lease is None:
            raise self._busy(timeout)
        return lease

    def _busy(self, timeout: float | None) -> LockNotAcquired:
        if timeout == 0:
            return LockNotAcquired(f"{self._described()} is held by somebody else.")
        return LockTimeout(f"{self._described()} was still held by somebody else after {timeout:g} s.")

    def acquire(self, timeout: Timeout = UNSET) -> L:
        """Wait for at most ``timeout`` seconds and return the Lease.

        0 does not wait, None waits for ever; unset means the timeout given to the lock, else the alias's TIMEOUT.
        Raises LockNotAcquired (busy, timeout 0), LockTimeout, DeadlockDetected, BackendUnavailable; and
        SynchronousOnlyOperation on the thread of an event loop, which it would block.
        """
        context.refuse_event_loop("await lock.aacquire()")
        return self._acquire(timeout)

    def _acquire(self, timeout: Timeout = UNSET) -> L:
        if self.cancel_on_loss:
            decorators.refuse_cancel_on_loss()
        timeout = self._resolve(timeout)
        start = monotonic()
        lease = self._at_once(timeout)
        if lease is not None:
            return lease
        return run(self._acquire_flow(timeout, start))

    async def aacquire(self, timeout: Timeout = UNSET) -> L:
        """:meth:`acquire` for a task. Cancelled, it leaves nothing held."""
        return await arun(self._acquire_flow(self._resolve(timeout), monotonic()))

    def try_acquire(self, timeout: Timeout = 0) -> L | None:
        """The Lease, or None if it is busy for ``timeout`` seconds (0: do not wait). Other errors are raised."""
        context.refuse_event_loop("await lock.atry_acquire()")
        return self._try_acquire(timeout)

    def _try_acquire(self, timeout: Timeout) -> L | None:
        if self.cancel_on_loss:
            decorators.refuse_cancel_on_loss()
        return run(self._flow(self._resolve(timeout), monotonic()))

    async def atry_acquire(self, timeout: Timeout = 0) -> L | None:
        """:meth:`try_acquire` for a task. Cancelled, it leaves nothing held."""
        return await arun(self._flow(self._resolve(timeout), monotonic()))

    def _refuse_on_busy(self) -> None:
        raise TypeError("on_busy belongs to the decorator; in a with block use try_acquire() or catch LockNotAcquired.")

    def __enter__(self) -> L:
        if self.on_busy != "raise":
            self._refuse_on_busy()
        lease = self.acquire()
        try:
            entries.push(self, lease)
        except BaseException:  # Ctrl-C: nobody would ever release it
            entries.remove(self, lease)
            lease._release(False)
            raise
        return lease

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if finalizers.collecting():
            finalizers.later(self._exit, kind, context.current())
        else:
            self._exit(kind)

    def _exit(self, kind: type[BaseException] | None, owner: object = None) -> None:
        lease = self._entered(kind, owner)
        if lease is not None:
            lease._release(kind is None)

    async def __aenter__(self) -> L:
        if self.on_busy != "raise":
            self._refuse_on_busy()
        lease = await self.aacquire()
        entries.push(self, lease)
        lease._aenters()
        return lease

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if finalizers.collecting():
            finalizers.later(self._exit, kind, context.current())
            return
        if not context.on_event_loop():  # the coroutine is being closed: nothing can be awaited
            self._exit(kind)
            return
        lease = self._entered(kind)
        if lease is not None:
            await lease._aleave(error)

    def _entered(self, kind: type[BaseException] | None, owner: object = None) -> L | None:
        lease: L | None = entries.pop(self, owner)
        if lease is None and kind is None:
            raise LockNotHeld(f"{self._described()} was not entered by this context.")
        return lease

    def __call__(self, function: F) -> F:
        """Decorate a function, a method, an ``async def`` or a view: each call holds the lock while it runs."""
        return decorators.decorate(self, function, self.on_busy)
