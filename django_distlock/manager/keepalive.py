"""One thread per process that renews leases, looks after lock sessions and notices losses.

It starts with the first lock and ends when there is nothing left to look after.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import TYPE_CHECKING

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.text import one_line

from . import closed_loops, owner
from .lock_table import lock_table
from .name_log import namebook
from .release import lose, lose_dead
from .stack import whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_distlock.backends.base import Backend
    from django_distlock.records import Grant

    from .hold import Hold

logger = logging.getLogger("django_distlock.locks")

# Longest sleep while anything is looked after: a session that was killed is noticed within this time.
TICK = 0.5
# A lease is renewed when a third of its TTL is over: two more attempts fit before it ends.
RENEWALS_PER_TTL = 3


class Keepalive:
    """The thread. ``backends`` is asked anew at each tick."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._next = math.inf
        self._warned: set[Hold] = set()
        self.backends: Iterable[Backend] = ()

    @property
    def running(self) -> bool:
        """Is the thread there?"""
        return self._thread is not None

    def ensure(self) -> None:
        """Start the thread if it is not there."""
        if self._thread is None:
            self.wake_at(monotonic())

    def wake_at(self, when: float) -> None:
        """Have the next tick at the monotonic time ``when`` at the latest; starts the thread if it is not there.

        RuntimeError if there is no thread to be had, each time: nobody would renew what is acquired.
        """
        if self._thread is None or when < self._next:
            with self._condition:
                self._next = min(self._next, when)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="distlock-keepalive", daemon=True)
                    try:
                        self._thread.start()
                    except RuntimeError:
                        self._thread = None
                        raise
                self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._next = math.inf  # whoever asks while the tick runs may have come too late for it
            try:
                due = self._tick(monotonic())
            except Exception:
                logger.exception("The keepalive thread met an error and goes on.")
                due = monotonic() + TICK
            with self._condition:
                self._next = min(self._next, math.inf if due is None else due)
                if self._next == math.inf:
                    self._thread = None
                    return
                while (left := self._next - monotonic()) > 0:
                    self._condition.wait(left)

    def _tick(self, now: float) -> float | None:
        """Do what is due; the time of the next tick, None if there is nothing to look after."""
        due: list[float] = []
        for backend in list(self.backends):
            try:
                wanted = backend.tick(now)
            except Exception:
                logger.exception("The backend %r could not be looked after.", backend)
                wanted = now + TICK
            if wanted is not None:
                due.append(wanted)
        held = lock_table.held()
        closed_loops.look([*lock_table.unfinished(), *held])
        self._warned.intersection_update(held)
        for hold in held:
            due.append(self._look_after(hold, now))
        namebook.look(now, held)
        return min(min(due), now + TICK) if due else None

    def _look_after(self, hold: Hold, now: float) -> float:
        """Renew it if that is due, notice if it is lost; when to look again."""
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
        if self._may_renew(hold, now):
            self._renew(hold, grant, hold.ttl)
        return min(now + max(hold.ttl / 20, 0.01), grant.valid_until)

    @staticmethod
    def _may_renew(hold: Hold, now: float) -> bool:
        if hold.max_hold is not None and now >= hold.claimed_at + hold.max_hold:
            return False
        hold.owner = owner.unless_ended(hold.owner)
        if isinstance(hold.owner, owner.Ended):
            return hold.in_use()
        return owner.alive(hold.owner)

    @staticmethod
    def _renew(hold: Hold, grant: Grant, ttl: float) -> None:
        if hold.max_hold is not None:
            ttl = min(ttl, hold.claimed_at + hold.max_hold - monotonic())
            if ttl <= 0:
                return
        lock_table.shorten(hold, ttl)
        try:
            renewed = hold.backend.extend(grant, ttl)
        except Exception as error:  # unreachable is not lost: valid_until decides
            logger.warning("The lock %r could not be renewed: %s", hold.key.name, one_line(error))
            return
        if renewed is None:
            lose_dead(hold, grant, "stolen")
        elif not lock_table.renew(hold, renewed) and hold.lost is not None:
            # it ended while the engine was asked: what the engine has prolonged now belongs to nobody
            try:
                hold.backend.release(renewed)
            except Exception as error:
                logger.warning("The lock %r could not be given back: %s", hold.key.name, one_line(error))

    def _warn_of_long_hold(self, hold: Hold, now: float) -> None:
        limit = hold.backend.warn_hold_seconds
        held = now - (hold.held_at or hold.claimed_at)
        if limit is None or held < limit or hold in self._warned:
            return
        self._warned.add(hold)
        stack = whereabouts(hold.owner)
        at = f" Its holder is at {stack}" if stack else ""
        logger.warning(
            "The lock %r of alias %r has been held for %.1f s.%s", hold.key.name, hold.backend.alias, held, at
        )


keepalive = Keepalive()
os.register_at_fork(after_in_child=keepalive.__init__)  # type: ignore[misc]
