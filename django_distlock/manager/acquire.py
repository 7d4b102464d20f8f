"""Acquire one lock for one context: re-entry, the queue of this process, then the engine."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from django_distlock import signals
from django_distlock.backends.side_connection import PATIENCE
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import Deadline
from django_distlock.concurrency.flow import clean_up, in_task, run
from django_distlock.records import Claim, new_token
from django_distlock.validation import UNSET

from . import events
from .isolation import warn_of_stale_snapshot
from .keepalive import RENEWALS_PER_TTL, keepalive
from .lock_table import Hold, State, interrupted_calls, leave_behind, lock_table
from .open_transactions import open_transactions
from .owner import current
from .registry import registry
from .release import lose, notice_loss, take_back
from .site_key import site_key
from .transactions import bind, choose_scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.dispatch import Signal

    from django_distlock.backends.base import Backend
    from django_distlock.records import Grant
    from django_distlock.validation import Timeout

    from .registry import Entry, KnownName

H = TypeVar("H")
# The least time that the first lock of a process has to read the site key, in seconds: to connect takes its time (R5).
LEAST_COLD = 1.0


class LockOptions(Protocol):
    """What a Lock says about itself."""

    using: str
    name: str
    shared: bool
    ttl: Timeout
    max_hold: Timeout
    template: str | None


class LockRequest(NamedTuple):
    """One lock, as the calling context asks for it."""

    #: The alias in ``DISTLOCK``.
    using: str
    #: The name; further parts tell the slots of a semaphore apart.
    parts: tuple[str, ...]
    #: Seconds to wait from the monotonic time ``start``; None: no end.
    timeout: float | None
    start: float
    shared: bool = False
    ttl: Timeout = UNSET
    max_hold: Timeout = UNSET
    #: How many may hold the key at once; 0: it is a lock.
    limit: int = 0
    #: May a context that holds it have it again?
    reenter: bool = True
    #: The name as a decorator spells it.
    template: str | None = None
    #: When the wait began, for an attempt that is one of several; those do not announce by themselves that it is busy.
    since: float | None = None

    @classmethod
    def of(cls, lock: LockOptions, timeout: float | None, start: float) -> LockRequest:
        """The request for ``lock``."""
        return cls(
            lock.using, (lock.name,), timeout, start, lock.shared, lock.ttl, lock.max_hold, template=lock.template
        )


class Arrival(NamedTuple, Generic[H]):
    """An attempt: a new hold, the handle of its caller, and what the lock table says, if it was asked already."""

    hold: Hold
    lease: H
    mine: Any = UNSET


def acquire(lock: LockOptions, timeout: float | None, start: float, lease_of: Callable[[Hold], H]) -> H | None:
    """:func:`acquire_flow` in this thread: at once by the engine's fast path, if that is possible."""
    entry = registry.entry(lock.using)
    known = entry.names.get(lock.name) or entry.learn(lock.name)
    if known is None or not entry.fast:
        return run(acquire_flow(LockRequest.of(lock, timeout, start), lease_of))
    hold = Hold(entry.backend, known.key, current(), lock.shared)
    hold.template = lock.template
    lease = lease_of(hold)
    try:
        try:
            if not entry.plain or lock.shared or lock.ttl is not UNSET or lock.max_hold is not UNSET:
                _refuse_unsupported(lock, entry)
                known = None
            mine = lock_table.arrive(hold, timeout != 0, True, entry.max_held)
            keepalive.used = True
            if keepalive.thread is None:
                keepalive.ensure()
            at_once = mine is hold and hold.parker is None
            if at_once and _take_fast_path(lock, timeout, start, entry, known, hold, lease):
                return lease
        except Exception as error:
            run(_undo(hold))
            announce(signals.lock_failed, LockRequest.of(lock, timeout, start), error=error)
            raise
        return run(acquire_flow(LockRequest.of(lock, timeout, start), lease_of, Arrival(hold, lease, mine)))
    except BaseException:
        leave_behind(hold, lease)
        raise


async def acquire_flow(
    request: LockRequest, lease_of: Callable[[Hold], H], arrival: Arrival[H] | None = None
) -> H | None:
    """Acquire; None if the lock stays busy until the deadline. A failure is announced by a signal.

    ``lease_of`` makes the caller's handle of a hold. The hold counts its handles and gives the lock back with the last.
    ``arrival``: the first attempt, if it has begun.
    """
    entry = registry.entry(request.using)
    try:
        _refuse_unsupported(request, entry)
        if not entry.ready:
            patience = Deadline(request.timeout, request.start).answer_by - clock.now()
            await site_key.aload(min(max(patience, LEAST_COLD), PATIENCE))
        key, owner = entry.key(*request.parts), current()
        while True:
            if arrival is None:
                hold = Hold(entry.backend, key, owner, request.shared, request.limit)
                hold.template = request.template
                arrival = Arrival(hold, lease_of(hold))
            hold, lease, _ = arrival
            try:
                granted = await _attempt(request, entry, arrival, lease_of)
            except BaseException:
                leave_behind(hold, lease)
                raise
            if granted is not hold:
                break
            arrival = None
    except GeneratorExit:
        raise
    except BaseException as error:
        announce(signals.lock_failed, request, error=error)
        raise
    if granted is None and request.since is None:
        announce(signals.lock_timed_out, request)
    return granted  # type: ignore[return-value]


def announce(signal: Signal, request: LockRequest, **facts: Any) -> None:
    """Send ``signal`` about a request that has failed."""
    if signal.receivers:
        wait = clock.now() - (request.since or request.start)
        backend = registry.entry(request.using).backend
        events.send(signal, backend, request.parts[0], request.template, wait=wait, **facts)


def _refuse_unsupported(wanted: LockOptions | LockRequest, entry: Entry) -> None:
    if not wanted.shared and wanted.ttl is UNSET and wanted.max_hold is UNSET:
        return
    backend = entry.backend
    if wanted.shared and not backend.supports_shared:
        raise backend.unsupported("share a lock")
    if not backend.supports_ttl:
        for argument in ("ttl", "max_hold"):
            if getattr(wanted, argument) is not UNSET:
                raise backend.unsupported(f"give a lock a {argument}: it is held for as long as its session lives")


def _arrive(hold: Hold, entry: Entry, may_wait: bool, reenter: bool = True) -> Hold | None:
    """Ask for a place in the lock table."""
    mine = lock_table.arrive(hold, may_wait, reenter, entry.max_held)
    keepalive.used = True
    if keepalive.thread is None:
        keepalive.ensure()
    return mine


async def _attempt(
    request: LockRequest, entry: Entry, arrival: Arrival[H], lease_of: Callable[[Hold], H]
) -> H | Hold | None:
    """Acquire with ``hold``, or enter a hold again that its context has. Returns the handle; None: busy; ``hold``: the
    other hold has ended meanwhile, so that the caller begins again."""
    hold, lease, mine = arrival
    try:
        if mine is UNSET:
            mine = _arrive(hold, entry, request.timeout != 0, request.reenter)
        if mine is not hold:
            return None if mine is None else (await _enter_again(mine, hold, lease_of(mine)))
        deadline = Deadline(request.timeout, request.start)
        if hold.parker is not None and not await hold.parker.park(deadline.left()):
            lock_table.end(hold)
            return None
        hold.state = State.CLAIMING
        opened, asked = open_transactions(), hold.claim is not None
        hold.claim = claim = _claim(request, entry, hold, opened, deadline.answer_by)
        # who has waited on the fast path, or for another caller, has its answer when the time is over
        if not (deadline.over() and (asked or hold.parker is not None)):
            await ask_engine(hold, claim, deadline)
        if hold.grant is None:
            lock_table.end(hold)
            return None
        _establish(request.since or request.start, hold, hold.grant, lease, opened)
        hold.acquired = True
        return lease
    except GeneratorExit:
        if hold.grant is None:  # what the engine is being asked for is cleaned up where the question was cut off
            lock_table.end(hold)
        raise
    except (Exception, asyncio.CancelledError):
        await clean_up(_undo(hold))
        raise


def _establish(began: float, hold: Hold, grant: Grant, lease: Any, opened: list[BaseDatabaseWrapper]) -> None:
    """The engine has granted it: the hold counts from now on."""
    lock_table.establish(hold, lease)
    if hold.ttl is not None:
        renewal = grant.acquired_at + hold.ttl / RENEWALS_PER_TTL
        if renewal < keepalive.next_tick:
            keepalive.wake_at(renewal)
    if opened:
        bind(hold, opened)
        warn_of_stale_snapshot(hold.key.name, opened, getattr(grant.session, "isolation", None))
    if signals.lock_acquired.receivers:
        events.send_held(signals.lock_acquired, hold, wait=clock.now() - began)


async def _undo(hold: Hold) -> None:
    """The attempt has failed: nothing stays behind."""
    try:
        await take_back(hold)
    finally:
        lock_table.end(hold)


async def _enter_again(mine: Hold, new: Hold, lease: H) -> H | Hold:
    """Re-entry. Of a lock that is only kept for a transaction the engine is asked again (R11)."""
    try:
        if mine.state is State.DEFERRED and not await _verify(mine):
            lose(mine, "stolen")
        entered = not notice_loss(mine) and lock_table.enter_again(mine, lease)
    except BaseException:
        interrupted_calls[lease] = mine
        raise
    return lease if entered else new


async def _verify(hold: Hold) -> bool:
    grant: Any = hold.grant
    return await hold.backend.averify(grant) if in_task() else hold.backend.verify(grant)


def _take_fast_path(
    lock: LockOptions,
    timeout: float | None,
    start: float,
    entry: Entry,
    known: KnownName | None,
    hold: Hold,
    lease: Any,
) -> bool:
    """Ask the engine once, in this thread. A grant that comes after its own validity is given back.

    ``known``: for an exclusive lock without TTL, whose claims are always the same.
    """
    backend, wait, opened = entry.backend, math.inf if timeout is None else timeout, open_transactions()
    if known is None:
        claim = _claim(lock, entry, hold, opened, 0.0)
    elif opened and choose_scope(backend, opened) == "transaction":
        claim = known.transaction_claim
    else:
        claim = known.session_claim
    hold.claim = claim
    if claim.scope == "session":  # also inside transactions, to which _establish() binds it
        hold.grant = grant = backend.acquire_fast(claim, wait)
    elif claim.scope == "transaction" and asyncio._get_running_loop() is None:  # it is a connection of this thread
        hold.grant = grant = backend.acquire_inside(opened[0], claim, wait)  # type: ignore[attr-defined]
    else:
        return False
    if grant is None:
        return False
    if grant.valid_until is not None and grant.valid_until <= clock.now():
        backend.release(grant)
        hold.grant = None
        return False
    _establish(start, hold, grant, lease, opened)
    hold.acquired = True
    return True


def _claim(
    request: LockOptions | LockRequest, entry: Entry, hold: Hold, opened: list[BaseDatabaseWrapper], answer_by: float
) -> Claim:
    if not entry.backend.supports_ttl:
        scope = choose_scope(entry.backend, opened) if opened else "session"
        return Claim(key=hold.key, shared=hold.shared, scope=scope, answer_by=answer_by, limit=hold.limit)
    config = entry.config
    hold.ttl = config.ttl if request.ttl is UNSET else request.ttl
    hold.max_hold = config.max_hold if request.max_hold is UNSET else request.max_hold
    if hold.max_hold is not None and hold.ttl is not None:
        hold.ttl = min(hold.ttl, hold.max_hold)
    return Claim(
        key=hold.key,
        shared=hold.shared,
        ttl=hold.ttl,
        token=new_token(),
        answer_by=answer_by,
        limit=hold.limit,
    )


async def ask_engine(hold: Hold, claim: Claim, deadline: Deadline) -> None:
    """Ask the engine until ``hold`` has a grant or the deadline passes.

    A grant that arrives after its own validity is given back. Unless it was granted, the engine learns that this waiter
    has left its queue.
    """
    backend, attempt = hold.backend, 0
    try:
        while True:
            grant = await hold.ask(claim, deadline.left())
            if grant is not None:
                if grant.valid_until is None or grant.valid_until > clock.now():
                    return
                hold.grant = None
                if in_task():
                    await backend.arelease(grant)
                else:
                    backend.release(grant)
            left = deadline.left()
            if left <= 0:
                break
            if in_task():
                await backend.await_(claim, attempt, left)
            else:
                backend.wait(claim, attempt, left)
            attempt += 1
    except GeneratorExit:
        raise
    except BaseException:
        if backend.queues_waiters:
            await clean_up(_withdraw(backend, claim))
        raise
    if backend.queues_waiters:
        await _withdraw(backend, claim)


async def _withdraw(backend: Backend, claim: Claim) -> None:
    if in_task():
        await backend.awithdraw(claim)
    else:
        backend.withdraw(claim)
