"""The recipe of a lock: what is wanted, and how long to wait for it.

Recipes may be module-level constants that many threads and tasks use at once. Which context has entered which ``with``
block is therefore not kept on them, but in :data:`open_blocks`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from django_distlock.concurrency import clock, finalizers
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.exceptions import LockNotAcquired, LockNotHeld, LockTimeout
from django_distlock.keys import MAX_NAME_LENGTH, validate_name
from django_distlock.manager import owner
from django_distlock.manager.acquire import LockRequest, acquire, acquire_flow
from django_distlock.manager.introspection import aheld_names, held_names
from django_distlock.manager.registry import registry
from django_distlock.validation import UNSET, Timeout, check_names, flag, optional_seconds

from . import decorators
from .lease import BaseLease, Lease
from .task_guard import TaskGuard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_distlock.manager.lock_table import Hold

L = TypeVar("L", bound=BaseLease)


class OpenBlocks:
    """The ``with`` blocks that are open now: for each Lock, LockSet or Semaphore the leases of its open blocks."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # the recipe is kept beside its id, so that Python does not give the id to another object
        self._open: dict[int, tuple[object, tuple[Any, ...]]] = {}

    # Each change is one assignment, so that an interrupt leaves nothing half done, and a reader needs no mutex; the
    # first block of a recipe needs none either.

    def add(self, recipe: object, lease: Any) -> None:
        number, first = id(recipe), (recipe, (lease,))
        if self._open.setdefault(number, first) is first:
            return
        with self._guard:
            found = self._open.setdefault(number, first)  # again: it may have been removed in between
            if found is not first:
                self._open[number] = (recipe, (*found[1], lease))

    def find(self, recipe: object, context: object = None) -> Any | None:
        """The lease of the latest block of ``context`` (the caller), or of the only open block (R24); None without."""
        found = self._open.get(id(recipe))
        if found is None:
            return None
        leases = found[1]
        if len(leases) == 1:
            return leases[0]
        context = context or owner.current()
        return next((lease for lease in reversed(leases) if lease.owner is context), None)

    def remove(self, recipe: object, lease: Any) -> None:
        """Remove the block of ``lease``. Does nothing if it is not open."""
        number = id(recipe)
        with self._guard:
            found = self._open.get(number)
            if found is None:
                return
            leases = tuple([each for each in found[1] if each is not lease]) if len(found[1]) > 1 else ()
            if leases:
                self._open[number] = (recipe, leases)
            elif found[1][0] is lease:
                self._open.pop(number)

    def after_fork(self) -> None:
        """In the child: replace the mutex, which another thread of the parent may have held.

        The open blocks stay, so that leaving one is harmless.
        """
        self._guard = threading.Lock()


open_blocks = OpenBlocks()
at_fork(Order.PRIMITIVES, child=open_blocks.after_fork)


class BaseLock(decorators.Recipe, Generic[L]):
    """Base class of Lock, LockSet and Semaphore. Subclasses implement ``_flow`` and the text of the "busy" error."""

    using: str
    #: The name as written in a decorator. Metrics use it as a label, because there are few different ones.
    template: str | None = None

    async def _flow(self, timeout: float | None, start: float) -> L | None:
        """Acquire within ``timeout`` seconds (None: no limit) of the monotonic time ``start``; None if busy."""
        raise NotImplementedError

    def _wait(self, timeout: float | None, start: float) -> L | None:
        """:meth:`_flow` in this thread."""
        return run(self._flow(timeout, start))

    def _described(self) -> str:
        raise NotImplementedError

    def _resolve(self, timeout: Timeout) -> float | None:
        owner.refuse_trio()
        timeout = self.timeout if timeout is UNSET else optional_seconds("timeout", timeout, none=True)
        # created before the caller's time begins: the first one may have to import a driver
        entry = registry.entry(self.using)
        return entry.config.timeout if timeout is UNSET else timeout

    def _busy(self, timeout: float | None) -> LockNotAcquired:
        if timeout == 0:
            return LockNotAcquired(f"{self._described()} is held by another caller.")
        return LockTimeout(f"{self._described()} was still held by another caller after {timeout:g} s.")

    def acquire(self, timeout: Timeout = UNSET) -> L:
        """Wait for at most ``timeout`` seconds and return the Lease.

        0 does not wait, None waits for ever; unset means the timeout given to the lock, else the alias's TIMEOUT.
        Raises LockNotAcquired (busy, timeout 0), LockTimeout, DeadlockDetected, BackendUnavailable; and
        SynchronousOnlyOperation in the thread of a running event loop, which a wait would block.
        """
        if asyncio._get_running_loop() is not None:
            owner.refuse_event_loop("await lock.aacquire()")
        if self.cancel_on_loss:
            decorators.refuse_cancel_on_loss()
        timeout = self._resolve(timeout)
        lease = self._wait(timeout, clock.now())
        if lease is None:
            raise self._busy(timeout)
        return lease

    async def aacquire(self, timeout: Timeout = UNSET) -> L:
        """:meth:`acquire` for a task. A cancelled call leaves nothing held."""
        timeout = self._resolve(timeout)
        lease = await self._flow(timeout, clock.now())
        if lease is None:
            raise self._busy(timeout)
        return lease

    def try_acquire(self, timeout: Timeout = 0) -> L | None:
        """Return the Lease, or None if the lock stays busy for ``timeout`` seconds (0: do not wait).

        Raises the other errors of :meth:`acquire`.
        """
        if asyncio._get_running_loop() is not None:
            owner.refuse_event_loop("await lock.atry_acquire()")
        if self.cancel_on_loss:
            decorators.refuse_cancel_on_loss()
        return run(self._flow(self._resolve(timeout), clock.now()))

    async def atry_acquire(self, timeout: Timeout = 0) -> L | None:
        """:meth:`try_acquire` for a task. A cancelled call leaves nothing held."""
        return await self._flow(self._resolve(timeout), clock.now())

    def _refuse_on_busy(self) -> None:
        raise TypeError("on_busy belongs to the decorator; in a with block use try_acquire() or catch LockNotAcquired.")

    def __enter__(self) -> L:
        if self.on_busy != "raise":
            self._refuse_on_busy()
        lease = self.acquire()
        try:
            open_blocks.add(self, lease)
        except BaseException:  # KeyboardInterrupt: no block would ever release it
            open_blocks.remove(self, lease)
            lease._interrupted()
            raise
        return lease

    async def __aenter__(self) -> L:
        if self.on_busy != "raise":
            self._refuse_on_busy()
        lease = await self.aacquire()
        open_blocks.add(self, lease)
        lease._aenters()
        return lease

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        lease: L | None = None
        try:
            if finalizers.here.collecting:
                finalizers.later(self._exit_for, owner.current())
                return
            lease = open_blocks.find(self)
            if lease is None:
                self._refuse_exit(kind is None)
                return
            lease._release(kind is None)
            open_blocks.remove(self, lease)
        except BaseException:  # an error of the release, or an interrupt
            lease = lease or open_blocks.find(self)
            if lease is not None:
                open_blocks.remove(self, lease)
                lease._interrupted()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if finalizers.here.collecting or not owner.on_event_loop():  # the coroutine is being closed, and cannot await
            self.__exit__(GeneratorExit, error, trace)
            return
        lease: L | None = open_blocks.find(self)
        if lease is None:
            self._refuse_exit(kind is None)
            return
        open_blocks.remove(self, lease)
        await lease._aleave(error)

    def _exit_for(self, context: object) -> None:
        """Leave the block of a generator or coroutine that the garbage collector has closed."""
        lease: L | None = open_blocks.find(self, context)
        if lease is not None:
            open_blocks.remove(self, lease)
            lease.__exit__(GeneratorExit, None, None)

    def _refuse_exit(self, raising: bool) -> None:
        if raising:
            raise LockNotHeld(f"{self._described()} was not entered by this context.")


class Lock(BaseLock[Lease]):
    """A named lock. Make it with :func:`advisory_lock`; one object may be used by any number of contexts at once."""

    def __init__(
        self,
        name: str,
        using: str = "default",
        timeout: Timeout = UNSET,
        ttl: Timeout = UNSET,
        max_hold: Timeout = UNSET,
        shared: bool = False,
        on_busy: decorators.OnBusy = "raise",
        cancel_on_loss: bool = False,
        into: str | None = None,
    ) -> None:
        # a Lock is often created at each use, so what is surely right is not validated
        self.name = name if type(name) is str and 0 < len(name) <= MAX_NAME_LENGTH else validate_name(name)
        self.using = using if type(using) is str else validate_alias(using)
        self.timeout = timeout if timeout is UNSET else optional_seconds("timeout", timeout, none=True)
        self.ttl = ttl if ttl is UNSET else optional_seconds("ttl", ttl, positive=True)
        self.max_hold = (
            max_hold if max_hold is UNSET else optional_seconds("max_hold", max_hold, none=True, positive=True)
        )
        self.shared = shared if shared is False else flag("shared", shared)
        self.on_busy = on_busy if on_busy == "raise" else decorators.validate_on_busy(on_busy)
        self.cancel_on_loss = cancel_on_loss if cancel_on_loss is False else flag("cancel_on_loss", cancel_on_loss)
        if into is not None:
            check_names(into=into)
        self.into = into

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} on {self.using!r}{' shared' if self.shared else ''}>"

    def _described(self) -> str:
        return f"The lock {self.name!r} of alias {self.using!r}"

    def templates(self) -> tuple[str, ...]:
        return (self.name,)

    def formatted(self, values: Mapping[str, str]) -> Self:
        made = type(self)(
            values.get(self.name, self.name),
            using=self.using,
            timeout=self.timeout,
            ttl=self.ttl,
            max_hold=self.max_hold,
            shared=self.shared,
            on_busy=self.on_busy,
            cancel_on_loss=self.cancel_on_loss,
            into=self.into,
        )
        made.template = self.template or self.name
        return made

    def locked(self) -> bool:
        """Does anybody hold this lock now, in either mode, this caller included? Asks the engine once, takes nothing.

        The answer is out of date when it arrives: show it, but use :meth:`try_acquire` to decide. Raises
        BackendUnavailable if the server does not answer.
        """
        owner.refuse_event_loop("await lock.alocked()")
        return bool(held_names([self.name], self.using))

    async def alocked(self) -> bool:
        """:meth:`locked` for a task."""
        return bool(await aheld_names([self.name], self.using))

    async def _flow(self, timeout: float | None, start: float) -> Lease | None:
        return await acquire_flow(LockRequest.of(self, timeout, start), guarded_lease if self.cancel_on_loss else Lease)

    def _wait(self, timeout: float | None, start: float) -> Lease | None:
        return acquire(self, timeout, start, Lease)


def guarded_lease(hold: Hold) -> Lease:
    """A Lease for ``cancel_on_loss``: its ``async with`` block is cancelled if the lock is lost."""
    lease = Lease(hold)
    lease._guard = TaskGuard(lease.ensure_held, lease.on_lost)
    return lease


def validate_alias(using: object) -> str:
    """TypeError if ``using`` is not a str."""
    if not isinstance(using, str):
        raise TypeError(f"using must be a str, the alias in DISTLOCK, not {type(using).__name__}.")
    return using


def advisory_lock(
    name: str,
    *,
    using: str = "default",
    timeout: Timeout = UNSET,
    ttl: Timeout = UNSET,
    max_hold: Timeout = UNSET,
    shared: bool = False,
    on_busy: decorators.OnBusy = "raise",
    cancel_on_loss: bool = False,
    into: str | None = None,
) -> Lock:
    """A named lock: ``with advisory_lock("x"):``, ``@advisory_lock("x")``, ``advisory_lock("x").acquire()``.

    :param name: 1 to 512 characters. In a decorator ``{fields}`` are filled from the arguments of the call.
    :param using: the alias in ``DISTLOCK``.
    :param timeout: seconds to wait; 0 does not wait, None waits for ever; unset: the alias's TIMEOUT (10 s).
    :param ttl: seconds that the lease lives without renewal, if the engine has a TTL; it is renewed while held.
    :param max_hold: seconds after the grant at which the lease ends, even if it is renewed or extended.
    :param shared: many readers may hold the lock together; a writer holds it alone.
    :param on_busy: for decorators: "raise", "skip" (return None without calling), or a callable that is called with
        the same arguments and whose result is returned.
    :param cancel_on_loss: for ``async with`` and the decorator of an ``async def``: if the lock is lost, or the engine
        cannot tell whether it still holds, the task is cancelled, and LockLost leaves the block.
    :param into: for decorators: the argument of the function that gets the lease. It is passed by its name, so that it
        must be the last argument or stand behind a ``*``; with ``**kwargs`` any name will do.

    Bad input raises ValueError or TypeError at once. A feature that the engine does not have raises
    UnsupportedOperation at the first acquire.
    """
    # not by keywords: a class is called with them by way of a dict
    return Lock(name, using, timeout, ttl, max_hold, shared, on_busy, cancel_on_loss, into)
