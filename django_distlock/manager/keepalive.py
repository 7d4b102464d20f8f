"""One thread per process that renews leases, keeps lock sessions open, notices losses, and runs the jobs that callers
could not finish: see concurrency/leftovers.py.

It starts with the first lock and ends when no lock and no session is left and IDLE seconds have passed without a lock,
so that a process that locks now and then does not start a thread each time. The leases of an alias are renewed in a
thread of its own, one after the other: a server that is silent costs the leases of other aliases nothing.
"""

from __future__ import annotations

import logging
import math
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from django_distlock.backends.base import IDLE, TICK
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.flow import in_task, run
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.text import one_line

from . import owner
from .lock_table import IN_USE, State, lock_table
from .name_log import name_log
from .release import ask_to_release, finish_release, lose, lose_dead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_distlock.backends.base import Backend

    from .lock_table import Hold

logger = logging.getLogger("django_distlock.locks")

# A lease is renewed when a third of its TTL is over: two more attempts fit before it ends.
RENEWALS_PER_TTL = 3


class Keepalive:
    """The keepalive thread. ``backends`` is read at each tick.

    ``thread`` is None while it does not run, and an acquire reads it. ``next_tick`` is a monotonic time.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.thread: threading.Thread | None = None
        self.next_tick = math.inf
        # an acquire sets it, and a tick clears it: the thread stays for IDLE seconds after that tick
        self.used = False
        self._stays_until = -math.inf
        self._warned: set[Hold] = set()
        # the backends whose leases are being renewed
        self._renewing: set[Backend] = set()
        self.backends: Iterable[Backend] = ()

    def ensure(self) -> None:
        """Start the thread if it does not run.

        Raises RuntimeError if no thread can be started: the lock could not be renewed.
        """
        if self.thread is None:
            with self._mutex:
                if self.thread is None:
                    self.thread = threading.Thread(target=self._run, name="distlock-keepalive", daemon=True)
                    try:
                        self.thread.start()
                    except BaseException:  # no thread to be had, or KeyboardInterrupt
                        self.thread = None
                        raise

    def wake_at(self, when: float) -> None:
        """Schedule the next tick for the monotonic time ``when`` at the latest; start the thread if it does not run."""
        if self.thread is None:
            self.ensure()  # it begins with a tick
        elif when < self.next_tick:
            with self._mutex:
                self.next_tick = min(self.next_tick, when)
            leftovers.leave(None)

    def rest(self) -> None:
        """Let the thread end as soon as no lock and no session is left."""
        self.used, self._stays_until = False, -math.inf

    def _run(self) -> None:
        with self._mutex:
            if self.thread is not threading.current_thread():  # its start was interrupted: the next acquire starts one
                return
        while True:
            self.next_tick = math.inf  # a request that comes during the tick may be too late for it
            try:
                due = self.tick(clock.now())
            except Exception:
                logger.exception("The keepalive thread met an error and goes on.")
                due = clock.now() + TICK
            if due is None and self._may_end():
                return
            with self._mutex:
                self.next_tick = min(self.next_tick, clock.now() + TICK if due is None else due)
            while (left := self.next_tick - clock.now()) > 0:
                job = leftovers.take(left)
                if job is not None:
                    _in_thread("distlock-release", job)

    def _may_end(self) -> bool:
        """End the thread, unless a caller that saw it running has found work for it in between."""
        with self._mutex:
            thread, self.thread = self.thread, None
            if self.next_tick == math.inf and lock_table.empty and leftovers.empty():
                return True
            self.thread = thread
            return False

    def tick(self, now: float) -> float | None:
        """Do what is due. Returns the time of the next tick, or None if no lock and no session is left."""
        due: list[float] = []
        for backend in list(self.backends):
            try:
                wanted = backend.tick(now)
            except Exception:
                logger.exception("The backend %r could not be looked after.", backend)
                wanted = now + TICK
            if wanted is not None:
                due.append(wanted)
        lock_table.settle()
        held = lock_table.held()
        self._end_closed_loops()
        self._end_orphans()
        self._warned.intersection_update(held)
        renewals: dict[Backend, list[Hold]] = {}
        for hold in held:
            due.append(self._look_after(hold, now, renewals))
        for backend, holds in renewals.items():
            self._renewing.add(backend)
            _in_thread(f"distlock-{backend.alias}-renew", partial(self._renew_all, backend, holds))
        name_log.check(now, held)
        if self.used:
            self.used, self._stays_until = False, now + IDLE
        needed = due or not lock_table.empty or now < self._stays_until
        return min([*due, now + TICK]) if needed else None

    def _look_after(self, hold: Hold, now: float, renewals: dict[Backend, list[Hold]]) -> float:
        """Notice the loss of the lease, or add it to ``renewals`` if one is due. Returns the time of the next check."""
        grant = hold.grant
        if grant is None:
            return now + TICK
        if not hold.backend.alive(grant):
            lose_dead(hold, grant, "session")
            return now + TICK
        self._warn_of_long_hold(hold, now)
        if grant.valid_until is None or hold.ttl is None:
            return now + TICK
        if now >= grant.valid_until:
            lose(hold, "expired")
            return now + TICK
        # the grant counts from when it was asked for: acquired_at is renewed with it
        renewal = grant.valid_until - hold.ttl + hold.ttl / RENEWALS_PER_TTL
        if now < renewal:
            return min(renewal, grant.valid_until)
        if hold.backend not in self._renewing and self._may_renew(hold, now):
            renewals.setdefault(hold.backend, []).append(hold)
        return min(now + max(hold.ttl / 20, 0.01), grant.valid_until)

    @staticmethod
    def _may_renew(hold: Hold, now: float) -> bool:
        if hold.bounded(1) <= 0:
            return False
        if owner.alive(hold.owner):
            return True
        if not owner.finished(hold.owner):
            return False
        hold.owner = object()  # a task refers to its result, which may be the Lease
        return hold.in_use()

    def _renew_all(self, backend: Backend, holds: list[Hold]) -> None:
        try:
            for hold in holds:
                ttl = hold.bounded(hold.ttl or 0.0)
                if hold.state in IN_USE and ttl > 0:
                    try:
                        run(renew(hold, ttl))
                    except Exception as error:  # unreachable is not lost: valid_until decides
                        logger.warning("The lock %r could not be renewed: %s", hold.key.full_name, one_line(error))
        finally:
            self._renewing.discard(backend)

    def _end_closed_loops(self) -> None:
        """Give back what tasks hold whose event loop was closed: they never go on to their release."""
        left: dict[object, list[Hold]] = {}
        for hold in lock_table.all():
            if owner.abandoned(hold.owner):
                left.setdefault(hold.owner, []).append(hold)
        for task, holds in left.items():
            _in_thread("distlock-release", partial(_end_task, task, holds))

    @staticmethod
    def _end_orphans() -> None:
        """End the transactions that keep a lock and whose thread has ended without commit or rollback."""
        for watch in {watch for hold in lock_table.all() for watch in list(hold.transactions) if watch.orphaned}:
            _in_thread("distlock-release", watch.end_orphan)

    def _warn_of_long_hold(self, hold: Hold, now: float) -> None:
        limit = hold.backend.warn_hold_seconds
        held = now - hold.held_at
        if limit is None or held < limit or hold in self._warned:
            return
        self._warned.add(hold)
        stack = owner.stack(hold.owner)
        at = f" Its holder is at {stack}" if stack else ""
        logger.warning(
            "The lock %r of alias %r has been held for %.1f s.%s", hold.key.full_name, hold.backend.alias, held, at
        )


async def renew(hold: Hold, ttl: float, *, lasting: bool = False) -> bool:
    """Have the engine set the rest of the lease to ``ttl`` seconds. ``lasting``: also at each renewal that follows, as
    its holder asks; else this is such a renewal.

    False if the lock was lost or released meanwhile.
    """
    grant: Any = hold.grant
    backend = hold.backend
    lock_table.shorten(hold, ttl)
    if lasting:
        renewed = await backend.aextend(grant, ttl) if in_task() else backend.extend(grant, ttl)
    else:
        renewed = backend.renew(grant, ttl)
    if renewed is None:
        lose_dead(hold, grant, "stolen")
        return False
    if lasting:
        hold.ttl = ttl
    if lock_table.renew(hold, renewed):
        return True
    if hold.lost is not None:  # while the engine extended it
        await ask_to_release(backend, renewed)
    return False


def _in_thread(name: str, work: Callable[[], object]) -> None:
    """Have ``work`` done without waiting for it: engines may take their time."""

    def guarded() -> None:
        try:
            work()
        except Exception:
            logger.exception("The thread %r met an error.", name)

    try:
        threading.Thread(target=guarded, name=name, daemon=True).start()
    except RuntimeError:  # no thread to be had
        guarded()


def _end_task(task: Any, holds: list[Hold]) -> None:
    """Let a task that never goes on run its ``finally`` blocks, then release what it leaves."""
    for hold in holds:  # so that the task's own blocks, which are left here, are seen to be the holder's
        hold.owner = threading.current_thread()
    try:
        task.get_coro().close()
    except BaseException as error:  # its own, or it wanted to await something
        logger.warning("A task of a closed event loop could not clean up: %s", one_line(error))
    for hold in holds:
        if hold.state in (State.WAITING, State.CLAIMING) or lock_table.start_release(hold):
            finish_release(hold, again=False)


keepalive = Keepalive()
at_fork(Order.THREADS, child=keepalive.__init__)  # type: ignore[misc]
