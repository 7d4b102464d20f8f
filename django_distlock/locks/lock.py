"""The recipe of a lock: what is wanted, and how long to wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.flow import run
from django_distlock.exceptions import LockNotAcquired, LockNotHeld, LockTimeout
from django_distlock.keys import MAX_NAME_LENGTH, validate_name
from django_distlock.manager import owner
from django_distlock.manager.acquire import LockRequest, acquire
from django_distlock.manager.introspection import held_names
from django_distlock.manager.registry import registry
from django_distlock.validation import UNSET, Timeout, check_names, flag, optional_seconds

from . import decorators
from .lease import BaseLease, Lease
from .task_guard import TaskGuard

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from django_distlock.manager.lock_table import Hold

logger = logging.getLogger("django_distlock.locks")

L = TypeVar("L", bound=BaseLease)
N = TypeVar("N", bound="str | Lock")


class BaseLock(decorators.Recipe, Generic[L]):
    """Base class of Lock, lock_all and semaphore. Subclasses implement ``_flow`` and the text of the "busy" error.

    A recipe may be a module-level constant that many threads and tasks use at once.
    """

    name: str
    #: The name as written in a decorator. Metrics use it as a label, because there are few different ones.
    template: str | None = None

    def __init__(self, using: str, timeout: Timeout, into: str | None) -> None:
        # a recipe is often created at each use, so what is surely right is not validated
        self.using = using if type(using) is str else validate_alias(using)
        self.timeout = timeout if timeout is UNSET else optional_seconds("timeout", timeout, none=True)
        if into is not None:
            check_names(into=into)
        self.into = into
        # the leases of the open ``with`` blocks of all contexts; each use is one operation of a list, without a mutex
        self._open: list[L] = []

    def __getstate__(self) -> dict[str, object]:
        """The open blocks are those of one object, and not of its copies."""
        return {**vars(self), "_open": []}

    def _with(self, **changes: object) -> Self:
        """The same recipe with other attributes."""
        made = object.__new__(type(self))
        vars(made).update(self.__getstate__(), **changes)
        return made

    def templates(self) -> tuple[str, ...]:
        """The names that may hold ``{fields}`` when this is used as a decorator."""
        return (self.name,)

    def formatted(self, values: Mapping[str, str]) -> Self:
        """The same recipe with each name in ``values`` (template -> name) replaced."""
        name = validate_name(values.get(self.name, self.name))
        return self._with(name=name, template=self.template or self.name)

    async def _flow(self, timeout: float | None, start: float) -> L | None:
        """Acquire within ``timeout`` seconds (None: no limit) of the monotonic time ``start``; None if busy."""
        raise NotImplementedError

    def _described(self) -> str:
        raise NotImplementedError

    def _resolve(self, timeout: Timeout) -> float | None:
        """The seconds to wait: those of the call, else of the recipe, else of the alias."""
        owner.refuse_trio()
        timeout = self.timeout if timeout is UNSET else optional_seconds("timeout", timeout, none=True)
        # asked for before the caller's time begins: the first use of an alias imports its engine, perhaps a driver
        entry = registry.entry(self.using)
        return entry.config.timeout if timeout is UNSET else timeout

    def _refuse_task(self, instead: str) -> None:
        owner.refuse_event_loop(instead)
        if self.cancel_on_loss:
            decorators.refuse_cancel_on_loss()

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
        if asyncio._get_running_loop() is not None or self.cancel_on_loss:
            self._refuse_task("await lock.aacquire()")
        return run(self.aacquire(timeout))

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
        if asyncio._get_running_loop() is not None or self.cancel_on_loss:
            self._refuse_task("await lock.atry_acquire()")
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
            self._open.append(lease)
        except BaseException:  # KeyboardInterrupt: no block would ever release it
            self._close_block(lease)
            leftovers.leave(lease._finish_release)
            raise
        return lease

    async def __aenter__(self) -> L:
        if self.on_busy != "raise":
            self._refuse_on_busy()
        lease = await self.aacquire()
        self._open.append(lease)
        return await lease.__aenter__()

    def _block(self) -> L | None:
        """The lease of the latest block of the caller, or of the only open block (R24); None without."""
        entries = self._open[::-1]  # a copy: other threads enter and leave their blocks meanwhile
        me = owner.current() if len(entries) > 1 else None
        for lease in entries:
            if me is None or lease.owner is me:
                return lease
        return None

    def _close_block(self, lease: L) -> None:
        try:  # noqa: SIM105 - contextlib takes a microsecond more
            self._open.remove(lease)
        except ValueError:  # another context has closed it just now
            pass

    def _not_entered(self, kind: type[BaseException] | None) -> None:
        """A block ends in a context that has not entered it, as a generator's does that another thread closes."""
        if kind is None:
            raise LockNotHeld(f"{self._described()} was not entered by this context.")
        if self._open:
            logger.warning(
                "%s stays held: one of its %d blocks was left with %s by a context that had not entered it, and it is "
                "not known which one. Use a lock object of its own there: `with advisory_lock(...):`.",
                self._described(),
                len(self._open),
                kind.__name__,
            )

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        lease: L | None = None
        try:
            lease = self._block()
            if lease is not None:
                lease._close(kind)
                self._close_block(lease)
            else:
                self._not_entered(kind)
        except BaseException as failure:
            lease = lease or self._block()
            if lease is not None:
                self._close_block(lease)
                lease._failed(failure)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        lease = self._block()
        if lease is not None:
            self._close_block(lease)
            await lease.__aexit__(kind, error, trace)
        else:
            self._not_entered(kind)


class Lock(BaseLock[Lease]):
    """A named lock: ``with advisory_lock("x"):``, ``@advisory_lock("x")``, ``advisory_lock("x").acquire()``.

    One object may be used by any number of contexts at once.

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

    def __init__(
        self,
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
    ) -> None:
        super().__init__(using, timeout, into)
        self.name = name if type(name) is str and 0 < len(name) <= MAX_NAME_LENGTH else validate_name(name)
        self.ttl = ttl if ttl is UNSET else optional_seconds("ttl", ttl, positive=True)
        self.max_hold = (
            max_hold if max_hold is UNSET else optional_seconds("max_hold", max_hold, none=True, positive=True)
        )
        self.shared = shared if shared is False else flag("shared", shared)
        self.on_busy = on_busy if on_busy == "raise" else decorators.validate_on_busy(on_busy)
        self.cancel_on_loss = cancel_on_loss if cancel_on_loss is False else flag("cancel_on_loss", cancel_on_loss)

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} on {self.using!r}{' shared' if self.shared else ''}>"

    def _described(self) -> str:
        return f"The lock {self.name!r} of alias {self.using!r}"

    def locked(self) -> bool:
        """Does anybody hold this lock now, in either mode, this caller included? Asks the engine once, takes nothing.

        The answer is out of date when it arrives: show it, but use :meth:`try_acquire` to decide. Raises
        BackendUnavailable if the server does not answer.
        """
        owner.refuse_event_loop("await lock.alocked()")
        return run(self.alocked())

    async def alocked(self) -> bool:
        """:meth:`locked` for a task."""
        return bool(await held_names([self.name], self.using))

    def _flow(self, timeout: float | None, start: float) -> Coroutine[Any, Any, Lease | None]:
        request = LockRequest(
            self.using, (self.name,), timeout, start, self.shared, self.ttl, self.max_hold, 0, self.template
        )
        return acquire(request, guarded_lease if self.cancel_on_loss else Lease)


def guarded_lease(hold: Hold) -> Lease:
    """A Lease for ``cancel_on_loss``: its ``async with`` block is cancelled if the lock is lost."""
    lease = Lease(hold)
    lease._guard = TaskGuard(lease.ensure_held)
    return lease


def validate_alias(using: object) -> str:
    """TypeError if ``using`` is not a str."""
    if not isinstance(using, str):
        raise TypeError(f"using must be a str, the alias in DISTLOCK, not {type(using).__name__}.")
    return using


# The type is called Lock, and a call of it reads like those of lock_all and semaphore.
advisory_lock = Lock


def locked(names: Iterable[N], *, using: str = "default") -> set[N]:
    """Those of ``names`` whose locks anybody holds now, this caller included.

    One request for each alias; nothing is taken, and nothing waits. The answer is out of date when it arrives: show it,
    but do not decide by it whether to acquire, use :meth:`Lock.try_acquire` for that. A name may also be a
    :class:`Lock`, which keeps its own alias. Braces are literal. A lock held by readers is held, too.

    Raises BackendUnavailable if a server does not answer, TypeError and ValueError for bad input; a semaphore is bad
    input, because it may be held and have a free slot. In the thread of a running event loop it raises
    SynchronousOnlyOperation: use ``await alocked(...)``.
    """
    owner.refuse_event_loop("await alocked(...)")
    return run(alocked(names, using=using))


async def alocked(names: Iterable[N], *, using: str = "default") -> set[N]:
    """:func:`locked` for a task."""
    found: set[N] = set()
    for alias, asked in _by_alias(names, using).items():
        for name in await held_names(asked, alias):
            found.update(asked[name])
    return found


def _by_alias(names: Iterable[N], using: str) -> dict[str, dict[str, list[N]]]:
    """For each alias its names, and for each name what was given for it."""
    validate_alias(using)
    if isinstance(names, str):
        raise TypeError(
            "names must be an iterable of names, not one str; for one lock use advisory_lock(name).locked()."
        )
    asked: dict[str, dict[str, list[N]]] = defaultdict(lambda: defaultdict(list))
    for each in names:
        if isinstance(each, Lock):
            asked[each.using][each.name].append(each)
        else:
            asked[using][validate_name(each)].append(each)
    return asked
