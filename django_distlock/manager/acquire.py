"""Acquire one lock for one context: re-entry, the queue of this process, then the engine."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django_distlock import signals
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.deadline import PAUSE, Deadline
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.tokens import new_token
from django_distlock.records import Claim
from django_distlock.validation import UNSET

from . import events
from .isolation import warn_of_stale_snapshot
from .keepalive import RENEWALS_PER_TTL, keepalive
from .lock_table import Hold, State, lock_table
from .open_transactions import listen_for_begin, open_transactions
from .owner import current
from .registry import registry
from .release import lose, notice_loss
from .site_key import site_key
from .transactions import bind, choose_scope, on_own_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.dispatch import Signal

    from django_distlock.records import Grant
    from django_distlock.validation import Timeout

    from .registry import Entry

H = TypeVar("H")


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
    #: May the calling thread be blocked by one statement, as the engine's fast path does?
    blocking: bool = False
    #: When the wait began, for an attempt that is one of several; those do not announce by themselves that it is busy.
    since: float | None = None


def acquire_flow(request: LockRequest, lease_of: Callable[[Hold], H]) -> Flow[H | None]:
    """Acquire; None if the lock stays busy until the deadline. A failure is announced by a signal.

    ``lease_of`` makes the caller's handle of a hold. The hold counts its handles and gives the lock back with the last.
    """
    entry = registry.entry(request.using)
    try:
        if request.shared or request.ttl is not UNSET or request.max_hold is not UNSET:
            _refuse_unsupported(request, entry)
        if not entry.ready:
            yield Step(site_key.load, site_key.aload)
        key, owner = entry.key(*request.parts), current()
        while True:
            hold = Hold(entry.backend, key, owner, request.shared, request.limit)
            hold.template = request.template
            lease = lease_of(hold)
            # registered before it runs: if an interrupt ends it, the keepalive thread cleans up
            attempt = hold.calls[lease] = _attempt(request, entry, hold, lease, lease_of)
            granted = yield from attempt
            if granted is not hold:
                break
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
        wait = monotonic() - (request.since or request.start)
        backend = registry.entry(request.using).backend
        events.send(signal, backend, request.parts[0], request.template, wait=wait, **facts)


def _refuse_unsupported(request: LockRequest, entry: Entry) -> None:
    backend = entry.backend
    if request.shared and not backend.supports_shared:
        raise backend.unsupported("share a lock")
    if not backend.supports_ttl:
        for argument in ("ttl", "max_hold"):
            if getattr(request, argument) is not UNSET:
                raise backend.unsupported(f"give a lock a {argument}: it is held for as long as its session lives")


def _attempt(
    request: LockRequest, entry: Entry, hold: Hold, lease: H, lease_of: Callable[[Hold], H]
) -> Flow[H | Hold | None]:
    """Acquire with ``hold``, or enter a hold again that its context has. Returns the handle; None: busy; ``hold``: the
    other hold has ended meanwhile, so that the caller begins again."""
    try:
        mine = lock_table.arrive(
            hold, may_wait=request.timeout != 0, reenter=request.reenter, limit=entry.config.max_held
        )
        if keepalive.thread is None:
            keepalive.ensure()
        if mine is not hold:
            return None if mine is None else (yield from _enter_again(mine, hold, lease_of(mine)))
        deadline: Deadline | None = None
        if hold.parker is not None:
            deadline = Deadline(request.timeout, monotonic, request.start)
            if not (yield Step(hold.parker.park, hold.parker.apark, (deadline.left(),))):
                lock_table.end(hold)
                return None
        opened = open_transactions()
        if entry.fast and request.blocking and deadline is None and _may_take_fast_path(hold, opened):
            _take_fast_path(request, entry, hold, opened)
        if hold.grant is None:
            deadline = deadline or Deadline(request.timeout, monotonic, request.start)
            hold.claim = claim = _claim(request, entry, hold, opened, deadline.answer_by)
            yield from ask_engine(hold, claim, deadline, monotonic)
        if hold.grant is None:
            lock_table.end(hold)
            return None
        _establish(request, hold, hold.grant, lease, opened)
        hold.acquired = True
        del hold.calls[lease]
        return lease
    except GeneratorExit:
        if hold.grant is None:  # what the engine is being asked for is cleaned up where the question was cut off
            lock_table.end(hold)
        raise
    except (Exception, asyncio.CancelledError):
        yield from _undo(hold)
        raise


def _establish(request: LockRequest, hold: Hold, grant: Grant, lease: Any, opened: list[BaseDatabaseWrapper]) -> None:
    """The engine has granted it: the hold counts from now on."""
    lock_table.establish(hold, grant, lease)
    listen_for_begin(hold)
    if hold.ttl is not None:
        renewal = grant.acquired_at + hold.ttl / RENEWALS_PER_TTL
        if renewal < keepalive.next_tick:
            keepalive.wake_at(renewal)
    if opened:
        bind(hold, opened)
        isolation = getattr(grant.session, "isolation", None)
        warn_of_stale_snapshot(hold.key.name, grant.claim.scope, isolation, opened)
    if signals.lock_acquired.receivers:
        events.send_held(signals.lock_acquired, hold, wait=monotonic() - (request.since or request.start))


def _undo(hold: Hold) -> Flow[None]:
    """The attempt has failed: nothing stays behind."""
    try:
        if hold.grant is not None:
            yield Step(hold.backend.release, hold.backend.arelease, (hold.grant,))
    finally:
        lock_table.end(hold)


def _enter_again(mine: Hold, new: Hold, lease: H) -> Flow[H | Hold]:
    """Re-entry. Of a lock that is only kept for a transaction the engine is asked again (R11)."""
    mine.calls[lease] = next(iter(new.calls.values()))
    if mine.state is State.DEFERRED and not (yield Step(mine.backend.verify, mine.backend.averify, (mine.grant,))):
        lose(mine, "stolen")
    entered = not notice_loss(mine) and lock_table.enter_again(mine, lease)
    del mine.calls[lease]
    return lease if entered else new


def _take_fast_path(request: LockRequest, entry: Entry, hold: Hold, opened: list[BaseDatabaseWrapper]) -> None:
    """Ask the engine once, in this thread. A grant that comes after its own validity is given back."""
    backend = hold.backend
    hold.claim = claim = _claim(request, entry, hold, opened, 0.0)
    hold.grant = grant = backend.acquire_fast(claim, math.inf if request.timeout is None else request.timeout)
    if grant is not None and grant.valid_until is not None and grant.valid_until <= monotonic():
        backend.release(grant)
        hold.grant = None


def _may_take_fast_path(hold: Hold, opened: list[BaseDatabaseWrapper]) -> bool:
    return not opened or on_own_connection(hold.backend, opened)


def _claim(
    request: LockRequest, entry: Entry, hold: Hold, opened: list[BaseDatabaseWrapper], answer_by: float
) -> Claim:
    if not entry.backend.supports_ttl:
        scope = choose_scope(entry.backend, opened) if opened else "session"
        if not answer_by and scope == "session" and not request.shared and not request.limit:
            return entry.claim(hold.key)
        return Claim(key=hold.key, shared=request.shared, scope=scope, answer_by=answer_by, limit=request.limit)
    config = entry.config
    hold.ttl = config.ttl if request.ttl is UNSET else request.ttl
    hold.max_hold = config.max_hold if request.max_hold is UNSET else request.max_hold
    if hold.max_hold is not None and hold.ttl is not None:
        hold.ttl = min(hold.ttl, hold.max_hold)
    return Claim(
        key=hold.key,
        shared=request.shared,
        ttl=hold.ttl,
        token=new_token(),
        answer_by=answer_by,
        limit=request.limit,
    )


def ask_engine(hold: Hold, claim: Claim, deadline: Deadline, clock: Callable[[], float]) -> Flow[None]:
    """Ask the engine until ``hold`` has a grant or the deadline passes.

    A grant that arrives after its own validity is given back. Unless it was granted, the engine learns that this waiter
    has left its queue.
    """
    if deadline.over():
        return
    backend, attempt = hold.backend, 0
    try:
        while True:
            grant: Grant | None = yield Step(hold.ask, hold.aask, (claim, deadline.left()))
            if grant is not None:
                if grant.valid_until is None or grant.valid_until > clock():
                    return
                hold.grant = None
                yield Step(backend.release, backend.arelease, (grant,))
            left = deadline.left()
            if left <= 0:
                break
            yield Step(PAUSE.sleep, PAUSE.asleep, (min(backend.pause(claim, attempt), left),))
            attempt += 1
    except GeneratorExit:
        raise
    except BaseException:
        if backend.queues_waiters:
            yield Step(backend.withdraw, backend.awithdraw, (claim,))
        raise
    if backend.queues_waiters:
        yield Step(backend.withdraw, backend.awithdraw, (claim,))
