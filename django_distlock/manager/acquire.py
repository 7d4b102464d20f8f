"""Acquire one lock for one context: re-entry, the queue of this process, then the engine."""

from __future__ import annotations

import asyncio
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.connection import ConnectionDoesNotExist

from django_distlock import signals
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import PATIENCE, SILENCE, Deadline, pause
from django_distlock.concurrency.flow import in_task
from django_distlock.exceptions import DistlockError
from django_distlock.records import claim_of, new_token
from django_distlock.validation import UNSET

from . import events
from .isolation import warn_of_stale_snapshot
from .keepalive import RENEWALS_PER_TTL, keepalive
from .lock_table import Hold, State, lock_table
from .open_transactions import open_transactions
from .owner import current
from .registry import registry
from .release import ask_to_release, leave_behind, lose, notice_loss
from .site_key import site_key
from .transactions import bind, choose_scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.dispatch import Signal

    from django_distlock.backends.base import Backend
    from django_distlock.records import Claim, Scope
    from django_distlock.validation import Timeout

    from .registry import Entry

H = TypeVar("H")
# Errors after which an engine has granted nothing. Others may be those of a signal, such as a soft time limit.
NOTHING_GRANTED = (DistlockError, ImproperlyConfigured, ConnectionDoesNotExist, asyncio.CancelledError)


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
    #: The name as a decorator spells it.
    template: str | None = None
    #: When the wait began, for an attempt at one slot of a semaphore: a context that holds the slot does not get it
    #: again before its block is left, and that it is busy is not announced.
    since: float | None = None


async def acquire(request: LockRequest, lease_of: Callable[[Hold], H]) -> H | None:
    """Acquire; None if the lock stays busy until the deadline. A failure is announced by a signal.

    ``lease_of`` makes the caller's handle of a hold. The hold counts its handles and gives the lock back with the last.
    """
    entry = registry.entry(request.using)
    hold: Hold | None = None
    lease: H = None  # type: ignore[assignment]  # of no use without a hold
    try:
        if request.shared or request.ttl is not UNSET or request.max_hold is not UNSET:
            _refuse_unsupported(request, entry.backend)
        owner, key = current(), entry.keys.get(request.parts)
        if key is None:
            if not entry.ready:
                patience = Deadline(request.timeout, request.start).answer_by - clock.now()
                await site_key.aload(min(max(patience, SILENCE), PATIENCE))
            key = entry.key(*request.parts)
        while True:
            new = hold = Hold(entry.backend, key, owner, request.shared, request.limit, request.template)
            lease = lease_of(hold)
            hold = lock_table.arrive(hold, request.timeout != 0, request.since is None, entry.config.max_held)
            keepalive.used = True
            if keepalive.thread is None:
                keepalive.ensure()
            if hold is None:
                break
            if hold is new:
                if await _claim(request, entry, hold, lease):
                    return lease
                if hold.passed_on:
                    continue
                break
            lease = lease_of(hold)  # of the hold that its context has already; the one above is dropped
            if await _enter_again(hold, lease):
                return lease
            # the hold of this context has ended meanwhile: begin again
    except BaseException as error:
        if hold is not None:
            try:
                _undo(hold, lease, error)
            except BaseException:  # an interrupt of the clean-up
                leave_behind(hold, lease)
                raise
        if not isinstance(error, GeneratorExit):
            announce(signals.lock_failed, request, error=error)
        raise
    if request.since is None:
        announce(signals.lock_timed_out, request)
    return None


def announce(signal: Signal, request: LockRequest, **facts: Any) -> None:
    """Send ``signal`` about a request that has failed."""
    if signal.receivers:
        wait = clock.now() - (request.since or request.start)
        entry, namespace = registry.entry(request.using), ""
        with suppress(Exception):  # what has failed may be the function that tells it
            namespace = entry.namespace()
        events.send(signal, entry.backend, request.parts[0], request.template, namespace, wait=wait, **facts)


def _refuse_unsupported(request: LockRequest, backend: Backend) -> None:
    if request.shared and not backend.supports_shared:
        raise backend.unsupported("share a lock")
    if not backend.supports_ttl:
        for argument in ("ttl", "max_hold"):
            if getattr(request, argument) is not UNSET:
                raise backend.unsupported(f"give a lock a {argument}: it is held for as long as its session lives")


async def _claim(request: LockRequest, entry: Entry, hold: Hold, lease: Any) -> bool:
    """Wait in the line of this process, and ask the engine. False: busy, or its context has another hold by now."""
    deadline = Deadline(request.timeout, request.start)
    if hold.parker is not None:
        if opened := open_transactions():
            lock_table.wait_inside(hold, opened)
        if not await hold.parker.park(deadline.left()) or not deadline.left() or hold.passed_on:
            lock_table.end(hold)
            return False
        hold.state = State.CLAIMING
    opened = open_transactions()
    backend, config, token = hold.backend, entry.config, ""
    scope: Scope = "session"
    if backend.supports_ttl:
        token = new_token()
        hold.ttl = config.ttl if request.ttl is UNSET else request.ttl
        hold.max_hold = config.max_hold if request.max_hold is UNSET else request.max_hold
        if hold.max_hold is not None and hold.ttl is not None:
            hold.ttl = min(hold.ttl, hold.max_hold)
    elif opened:
        scope = choose_scope(backend, opened)
    hold.claim = claim_of((hold.key, hold.shared, hold.ttl, token, scope, deadline.answer_by, hold.limit))
    await ask_engine(hold, hold.claim, deadline)
    grant = hold.grant
    if grant is None:
        lock_table.end(hold)
        return False
    hold.held_at = clock.now()
    lease._reference = weakref.ref(lease)
    hold.leases.add(lease._reference)
    hold.state = State.HELD  # needs no mutex: only the claimant leaves the state CLAIMING, and does so last
    if hold.ttl is not None:
        keepalive.wake_at(grant.acquired_at + hold.ttl / RENEWALS_PER_TTL)
    if opened:
        bind(hold, opened)
        warn_of_stale_snapshot(hold.key.name, opened, getattr(grant.session, "isolation", None))
    if signals.lock_acquired.receivers:
        events.send_held(signals.lock_acquired, hold, wait=clock.now() - (request.since or request.start))
    return True


async def ask_engine(hold: Hold, claim: Claim, deadline: Deadline) -> None:
    """Ask the engine until ``hold`` has a grant or the deadline passes.

    A grant that arrives after its own validity is given back.
    """
    backend, attempt = hold.backend, 0
    while True:
        left = deadline.left()
        # The grant is stored where the engine's method returns: Python looks for signals neither when a Python function
        # returns to one nor at an assignment, so no interrupt can lose it.
        hold.grant = await backend.atry_acquire(claim, left) if in_task() else backend.try_acquire(claim, left)
        grant = hold.grant
        if grant is not None:
            if grant.valid_until is None or grant.valid_until > clock.now():
                return
            hold.grant = None
            await ask_to_release(backend, grant)
        left = deadline.left()
        if left <= 0:
            return
        seconds = min(backend.pause(claim, attempt), left)
        if in_task():
            await pause(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - in a thread
        attempt += 1


async def _enter_again(hold: Hold, lease: Any) -> bool:
    """Re-entry. Of a lock that is only kept for a transaction the engine is asked again (R11)."""
    if hold.state is State.DEFERRED:
        backend, grant = hold.backend, hold.grant
        assert grant is not None  # noqa: S101 - it was held
        if not (await backend.averify(grant) if in_task() else backend.verify(grant)):
            lose(hold, "stolen")
    return not notice_loss(hold) and lock_table.enter_again(hold, lease)


def _undo(hold: Hold, lease: Any, error: BaseException) -> None:
    """The acquire has failed: nothing stays behind (R7). Where the engine must be asked, another thread does that."""
    if not isinstance(error, NOTHING_GRANTED):
        leave_behind(hold, lease)
    elif hold.state in (State.WAITING, State.CLAIMING):
        lock_table.end(hold)
