"""The recipe of a lock: what is wanted, and how long to wait for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from django_distlock import signals
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.deadline import Deadline
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.tokens import new_token
from django_distlock.keys import validate_name
from django_distlock.manager import events
from django_distlock.manager import owner as context
from django_distlock.manager.acquire import acquire_flow
from django_distlock.manager.hold import Hold, State
from django_distlock.manager.isolation import warn_of_stale_snapshot
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.open_transactions import listen_for_begin, open_transactions
from django_distlock.manager.registry import Entry, registry
from django_distlock.manager.release import lose
from django_distlock.manager.site_key import site_key
from django_distlock.manager.transactions import bind, choose_scope, on_own_connection
from django_distlock.records import Claim, Grant
from django_distlock.validation import UNSET, Timeout, flag, optional_seconds

from . import decorators
from .base import BaseLock
from .lease import Lease
from .task_guard import TaskGuard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_distlock.records import Scope


class Lock(BaseLock[Lease]):
    """A named lock. Make it with :func:`advisory_lock`; one object may be used by any number of contexts at once."""

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
    ) -> None:
        self.name = validate_name(name)
        self.using = validate_alias(using)
        # locks are often made where they are used: what was not given is not validated
        self.timeout = timeout if timeout is UNSET else optional_seconds("timeout", timeout, none=True)
        self.ttl = ttl if ttl is UNSET else optional_seconds("ttl", ttl, positive=True)
        self.max_hold = (
            max_hold if max_hold is UNSET else optional_seconds("max_hold", max_hold, none=True, positive=True)
        )
        self.shared = flag("shared", shared)
        self.on_busy = on_busy if on_busy == "raise" else decorators.validate_on_busy(on_busy)
        self.cancel_on_loss = flag("cancel_on_loss", cancel_on_loss)
        self._special = shared or cancel_on_loss or self.ttl is not UNSET or self.max_hold is not UNSET

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
        )
        made.template = self.template or self.name
        return made

    def _at_once(self, timeout: float | None) -> Lease | None:
        if self._special or timeout == 0:
            return None
        entry = registry.entry(self.using)
        if not (entry.supports_now and entry.ready):
            return None
        backend = entry.backend
        opened = open_transactions()
        if opened and not on_own_connection(backend, opened):
            return None
        keepalive.ensure()
        # made before it is asked for, and ended whatever happens: KeyboardInterrupt comes between any two lines
        hold = Hold(backend, entry.key(self.name), context.current(), False)
        hold.template = self.template
        grant: Grant | None = None
        try:
            if not lock_table.claim(hold, entry.config.max_held):
                return None
            lease = Lease(hold)
            claim = Claim(key=hold.key, scope="transaction") if opened else entry.claim(hold.key)
            grant = backend.acquire_fast(claim, math.inf if timeout is None else timeout)
            if grant is None:
                lock_table.end(hold)
                return None
            lock_table.establish(hold, grant, lease)
            listen_for_begin(hold)
            if opened:
                bind(hold, opened)
                warn_of_stale_snapshot(self.name, "transaction", getattr(grant.session, "isolation", None), opened)
            if signals.lock_acquired.receivers:
                events.send_held(signals.lock_acquired, hold, wait=monotonic() - grant.acquired_at)
            return lease
        except BaseException as error:
            if grant is not None:
                backend.release(grant)
            lock_table.end(hold)
            wait = monotonic() - hold.claimed_at
            events.send(signals.lock_failed, backend, self.name, self.template, wait=wait, error=error)
            raise

    def _flow(self, timeout: float | None, start: float) -> Flow[Lease | None]:
        flow = lock_flow(self, (self.name,), timeout, start)
        return events.told(flow, registry.entry(self.using).backend, self, start)


def validate_alias(using: object) -> str:
    """TypeError if ``using`` is not a str."""
    if not isinstance(using, str):
        raise TypeError(f"using must be a str, the alias in DISTLOCK, not {type(using).__name__}.")
    return using


def lock_flow(
    lock: Lock,
    parts: tuple[str, ...],
    timeout: float | None,
    start: float,
    *,
    reenter: bool = True,
    semaphore: int = 0,
    since: float | None = None,
) -> Flow[Lease | None]:
    """Acquire one lock for the calling context: re-entry, the queue of this process, then the engine.

    ``semaphore``: as many holders may have it at once; 0: it is a lock. ``since``: when its wait began, if not now.
    """
    deadline = Deadline(timeout, monotonic, start)
    entry = registry.entry(lock.using)
    backend = entry.backend
    if lock._special:
        _refuse_unsupported(lock, entry)
    if not entry.ready:
        yield Step(site_key.load, site_key.aload)
    key = entry.key(*parts)
    owner = context.current()
    while True:
        # made before it is asked for, and ended whatever happens: KeyboardInterrupt comes between any two lines
        hold = Hold(backend, key, owner, lock.shared, semaphore)
        lease = Lease(hold)
        try:
            mine = lock_table.arrive(hold, may_wait=timeout != 0, reenter=reenter, limit=entry.config.max_held)
            if mine is None:
                return None
            if mine is not hold:
                lease = Lease(mine)
            if lock.cancel_on_loss:
                lease._guard = TaskGuard(lease.ensure_held, lease.on_lost)
            if mine is hold:
                if not (yield from _claimed(lock, entry, hold, lease, deadline)):
                    return None
                events.send_held(signals.lock_acquired, hold, wait=monotonic() - (since or start))
                return lease
            if (yield from _entered_again(mine, lease)):
                return lease
        except GeneratorExit:
            lock_table.end(hold)
            raise
        except BaseException:
            yield from _undone(hold, lease)
            raise


def _undone(hold: Hold, lease: Lease) -> Flow[None]:
    """Whatever was interrupted: nothing stays behind."""
    if lease._hold is not hold:
        yield from lease._release_flow(False)
    try:
        if hold.grant is not None:
            yield Step(hold.backend.release, hold.backend.arelease, (hold.grant,))
    finally:
        lock_table.end(hold)


def _refuse_unsupported(lock: Lock, entry: Entry) -> None:
    backend = entry.backend
    if lock.shared and not backend.supports_shared:
        raise backend.unsupported("share a lock")
    if not backend.supports_ttl:
        for argument in ("ttl", "max_hold"):
            if getattr(lock, argument) is not UNSET:
                raise backend.unsupported(f"give a lock a {argument}: it is held for as long as its session lives")


def _entered_again(hold: Hold, lease: Lease) -> Flow[bool]:
    """Re-entry. Of a lock that is only kept for a transaction the engine is asked again (R11)."""
    if hold.state is State.DEFERRED:
        if not (yield Step(hold.backend.verify, hold.backend.averify, (hold.grant,))):
            lose(hold, "stolen")
            return False
    elif lease.lost:
        return False
    return lock_table.enter_again(hold, lease)


def _claimed(lock: Lock, entry: Entry, hold: Hold, lease: Lease, deadline: Deadline) -> Flow[bool]:
    """Wait for the turn in this process, then ask the engine."""
    backend = entry.backend
    hold.template = lock.template
    if hold.parker is not None and not (yield Step(hold.park, hold.apark, (deadline.left(),))):
        lock_table.end(hold)
        return False
    keepalive.ensure()
    opened = open_transactions()
    claim = _claim(lock, entry, hold, choose_scope(backend, opened) if opened else "session", deadline)
    grant = hold.grant = yield from acquire_flow(backend, claim, deadline, monotonic)
    if grant is None:
        lock_table.end(hold)
        return False
    lock_table.establish(hold, grant, lease)
    listen_for_begin(hold)
    if hold.ttl is not None:
        keepalive.wake_at(grant.acquired_at + hold.ttl / 3)
    if opened:
        bind(hold, opened)
        warn_of_stale_snapshot(lock.name, grant.claim.scope, getattr(grant.session, "isolation", None), opened)
    return True


def _claim(lock: Lock, entry: Entry, hold: Hold, scope: Scope, deadline: Deadline) -> Claim:
    until = deadline.answer_by
    if not entry.backend.supports_ttl:
        limit = hold.semaphore
        return Claim(key=hold.key, shared=lock.shared, scope=scope, answer_by=until, limit=limit)
    config = entry.config
    hold.ttl = config.ttl if lock.ttl is UNSET else lock.ttl
    hold.max_hold = config.max_hold if lock.max_hold is UNSET else lock.max_hold
    if hold.max_hold is not None and hold.ttl is not None:
        hold.ttl = min(hold.ttl, hold.max_hold)
    return Claim(
        key=hold.key,
        shared=lock.shared,
        ttl=hold.ttl,
        token=new_token(),
        answer_by=until,
        limit=hold.semaphore,
    )


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
) -> Lock:
    """A named lock: ``with advisory_lock("x"):``, ``@advisory_lock("x")``, ``advisory_lock("x").acquire()``.

    :param name: 1 to 512 characters. In a decorator ``{fields}`` are filled from the arguments of the call.
    :param using: the alias in ``DISTLOCK``.
    :param timeout: seconds to wait; 0 does not wait, None waits for ever; unset: the alias's TIMEOUT (10 s).
    :param ttl: seconds that the lease lives without renewal, where the engine has a TTL; it is renewed while held.
    :param max_hold: seconds after which renewal ends.
    :param shared: readers together, writers alone.
    :param on_busy: for decorators: "raise", "skip" (return None without calling), or a callable that is called with
        the same arguments and whose result is returned.
    :param cancel_on_loss: for ``async with`` and the decorator of an ``async def``: if the lock is lost, or the engine
        cannot tell whether it still holds, the task is cancelled, and LockLost leaves the block.

    Bad input raises ValueError or TypeError at once; what the engine cannot do raises UnsupportedOperation at the
    first acquire.
    """
    return Lock(
        name,
        using=using,
        timeout=timeout,
        ttl=ttl,
        max_hold=max_hold,
        shared=shared,
        on_busy=on_busy,
        cancel_on_loss=cancel_on_loss,
    )
