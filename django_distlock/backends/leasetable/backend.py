"""Leases in a table: a name, a token, an expiry and a fencing token per lock.

One statement takes a lease if it is free or expired and has no waiters, and one frees it. A waiter draws a ticket and
reads the lease repeatedly, the more often the nearer its turn. Times are those of the database's clock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import time
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from django_distlock.backends.base import TICK, Backend
from django_distlock.backends.text import short
from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background, NotStarted
from django_distlock.concurrency.deadline import PATIENCE
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.origin import describe_caller
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Claim, Finding, Grant, LockInfo, drift

from . import doctor
from .server import STATEMENTS, LostReply, ServerStore
from .sqlite import SqliteStore
from .statements import SIGN_OF_LIFE, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from django.core.checks import CheckMessage

    from django_distlock.concurrency.outcome import Outcome
    from django_distlock.keys import LockKey

logger = logging.getLogger("django_distlock.backends")

# Seconds between two looks: 50 µs for the first waiter, and 250 µs more for each place behind it. Where a look takes
# long they are fewer, so that the server has time for other statements.
NEXT, PER_PLACE, LONGEST_PAUSE = 0.00005, 0.00025, 0.05
LOOKS_PER_TURN = 4
# The pause also grows with the time for which nothing has changed: to a twentieth of it, up to 20 ms.
SHARE_OF_HOLD, LONGEST_OF_NEXT = 0.05, 0.02
# Seconds between two prunings by one process, on average; and between two batches, for the statements of others.
PRUNE_EVERY, BREATH = 3600.0, 0.001


class Pace:
    """How often a waiter looks at the lease."""

    def __init__(self, ahead: int) -> None:
        self.seen_at = self._since = clock.now()
        self._scene: object = None
        self._took = 0.0
        self._ahead = ahead

    def looked(self, fence: int | None, ahead: int, now: float) -> None:
        """Note what a look at ``now`` has shown."""
        self._ahead = ahead
        if self._scene != (fence, ahead):
            self._scene, self._since = (fence, ahead), now

    def took(self, seconds: float) -> None:
        """Note how long a look took."""
        self._took = min(seconds, LONGEST_OF_NEXT)

    def pause(self, now: float) -> float:
        """Seconds until the next look."""
        queue = max(NEXT, self._took) + max(PER_PLACE, self._took * LOOKS_PER_TURN) * self._ahead
        steady = min((now - self._since) * SHARE_OF_HOLD, LONGEST_OF_NEXT)
        return min(max(queue, steady), LONGEST_PAUSE)


class LeaseTableBackend(Backend):
    """OPTIONS: ``database``, the alias in DATABASES (default: "default").

    On SQLite the leases are in a file beside the database, else in the tables that ``migrate`` makes.
    """

    supports_ttl = True
    supports_fencing = True
    supports_break = True
    waits_inside = True
    option_names: ClassVar[frozenset[str]] = frozenset({"database"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self.database: str = options.get("database", DEFAULT_DB_ALIAS)
        if self.database not in connections.settings:
            raise ImproperlyConfigured(
                f"DISTLOCK[{alias!r}]: OPTIONS['database'] is {self.database!r}, which is not in DATABASES."
            )
        self.store: SqliteStore | ServerStore
        connection = connections[self.database]
        if connection.vendor == "sqlite":
            self.store = SqliteStore(alias, self.database)
        elif connection.vendor in STATEMENTS:
            self.tables = ("leaserow", "leaseticket")
            self.store = ServerStore(alias, self.database, lambda: self.wake_at(clock.now() + TICK))
        else:
            raise ImproperlyConfigured(
                f"DISTLOCK[{alias!r}]: the database {self.database!r} is {connection.display_name}. Locks need "
                "PostgreSQL, MySQL, MariaDB or SQLite. Use Redis (django_distlock.backends.redis.RedisBackend) or "
                "ZooKeeper (django_distlock.backends.zookeeper.ZooKeeperBackend) with other databases."
            )
        self._sql = self.store.statements
        self._begin()

    def _begin(self) -> None:
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._prune_at = clock.now() + PRUNE_EVERY * random.uniform(0.5, 1.5)  # noqa: S311 - spreads processes
        # tokens of claims whose wait is to end
        self._stopped: set[str] = set()
        # by token: the claims of callers that have gone, and until when they are undone again
        self._undoing: dict[str, tuple[Claim, float]] = {}
        # by token: until when the leases of this process are valid. A server that takes no more connections must not
        # cost them their renewal.
        self._held: dict[str, float] = {}
        # by token: the TTL of a statement that may be executed late, and until when
        self._resent: dict[str, tuple[float, float]] = {}
        # what runs in the background, by its name
        self._jobs: dict[str, Outcome[object]] = {}
        self._closing = False

    # acquiring

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        began = asked = clock.now()
        holder = short(f"{self._process}:{describe_caller()}")
        try:
            fence = self.store.run(claim.answer_by, self._sql.take, claim, holder)
            if fence is None and wait > 0:
                asked, fence = self._queue(claim, asked + wait, holder)
        except LostReply:
            self._undo_later(claim)
            raise
        finally:
            self._stopped.discard(claim.token)
        if fence is None:
            if self.store.lost_at >= began:
                self._undo_later(claim)
            return None
        valid_until = self._held[claim.token] = self._valid_until(claim, began, asked, claim.ttl or 0.0)
        return Grant(claim=claim, fence=fence, acquired_at=asked, valid_until=valid_until)

    def _valid_until(self, claim: Claim, began: float, asked: float, ttl: float) -> float:
        """The end of a lease for which the server was asked at ``asked``, and for the first time at ``began``.

        A statement that was sent twice may be executed once more for a while, and then sets its own TTL: a longer one
        does not count before that is over. The keepalive thread renews the lease until it does.
        """
        now = clock.now()
        shortest, until = self._resent.get(claim.token, (ttl, now))
        if now < until:
            ttl = min(ttl, shortest)
        if self.store.lost_at >= began:
            self._resent[claim.token] = ttl, now + self.store.late
        return asked + ttl - drift(ttl)

    def _queue(self, claim: Claim, until: float, holder: str) -> tuple[float, int | None]:
        """Draw a ticket and wait for its turn. When the lease was asked for, and the fence; None at the deadline."""
        try:
            ticket: Ticket = self.store.run(until, self._sql.join, claim, holder)
            pace, now = Pace(ticket.ahead), clock.now()
            while now < until and claim.token not in self._stopped:
                time.sleep(min(pace.pause(now), until - now))
                asked = clock.now()
                fence, ticket = self.store.run(until, self._look, claim, ticket, holder, pace)
                if fence is not None:
                    return asked, fence
                now = clock.now()
                pace.took(now - asked)
        except BackendUnavailable:
            self._undo_later(claim)
            raise
        try:
            self.store.run(until, self._sql.leave, claim)
        except BackendUnavailable:
            self._undo_later(claim)
        return now, None

    def _look(self, session: Any, claim: Claim, ticket: Ticket, holder: str, pace: Pace) -> tuple[int | None, Ticket]:
        """Read the lease, and take it if it is this waiter's turn; the fence, or None, and the ticket."""
        now = clock.now()
        seen = self._sql.look(session, claim, ticket.place)
        if seen.token == claim.token or (seen.token is None and not seen.ahead and seen.place is not None):
            return self._sql.take_turn(session, claim, holder, ticket.place), ticket
        if seen.place is None:  # the process was suspended, and the ticket deleted
            return None, self._sql.join(session, claim, holder)
        pace.looked(seen.fence, seen.ahead, now)
        if now - pace.seen_at >= SIGN_OF_LIFE:
            self._sql.refresh(session, claim)
            pace.seen_at = now
        return None, ticket

    def stop(self, claim: Claim) -> None:
        self._stopped.add(claim.token)

    def undo(self, claim: Claim) -> None:
        self._undo_later(claim)
        self._undo_all()

    def _undo_later(self, claim: Claim) -> None:
        self._undoing[claim.token] = claim, clock.now() + (claim.ttl or 0.0) + self.store.late
        self.wake_at(clock.now())

    def _undo_all(self) -> None:
        """Undo each claim until that succeeds, and for a while longer: the server may be late with what it was sent.
        A lease that nobody renews ends by itself."""
        for token, (claim, until) in list(self._undoing.items()):
            try:
                self.store.run(0.0, self._sql.undo, claim)
            except BackendUnavailable:
                undone, ends = False, until
            else:
                undone, ends = True, min(until, clock.now() + self.store.late)
            if clock.now() >= ends:
                self._undoing.pop(token, None)
            elif undone:
                self._undoing[token] = claim, ends
            else:
                return

    def _ask(self, operation: Callable[..., Any], *args: Any) -> Any:
        return self.store.run(clock.now() + PATIENCE, operation, *args)

    # holding

    def release(self, grant: Grant) -> bool:
        _, late_until = self._resent.get(grant.claim.token, (0.0, 0.0))
        self._forget(grant.claim.token)
        try:
            given = self._ask(self._sql.give, grant.claim)
        except BackendUnavailable:
            self._undo_later(grant.claim)
            raise
        if clock.now() < late_until:
            self._undo_later(grant.claim)  # a first attempt to take it may arrive only now, and would take it again
        if given is None:  # it was repeated: the first statement freed the lease, unless that had ended
            return grant.valid_until is not None and clock.now() < grant.valid_until
        return bool(given)

    def _forget(self, token: str) -> None:
        self._held.pop(token, None)
        self._resent.pop(token, None)

    def verify(self, grant: Grant) -> bool:
        return bool(self._ask(self._sql.holds, grant.claim))

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        asked = clock.now()
        if not self._ask(self._sql.extend, grant.claim, ttl):
            return None
        valid_until = self._valid_until(grant.claim, asked, asked, ttl)
        if grant.claim.token in self._held:  # not released meanwhile
            self._held[grant.claim.token] = valid_until
        return grant._replace(valid_until=valid_until)

    # for operators

    def inspect(self) -> Iterable[LockInfo]:
        found: list[LockInfo] = self._ask(self._sql.rows)
        return found

    def held_among(self, keys: Iterable[LockKey]) -> set[LockKey]:
        listed = {self.listed_as(key): key for key in keys}
        return {listed[key] for key in self._ask(self._sql.held, listed)}

    def break_lock(self, info: LockInfo) -> bool:
        return bool(self._ask(self._sql.break_lease, info.key, info.fence or 0))

    def prune(self) -> int:
        """Delete the leases that ended more than 24 hours ago; how many. Fences follow the clock and go on rising."""
        total, last = 0, None
        while not self._closing:
            deleted, last = self._ask(self._sql.prune, last)
            total += int(deleted)
            if last is None:
                break
            time.sleep(BREATH)
        return total

    def prune_old(self, days: float) -> Mapping[str, int]:
        return {"leases": self.prune()}

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self.store, self.database)

    def check(self) -> list[CheckMessage]:
        return doctor.check(self.alias, self.database) if isinstance(self.store, SqliteStore) else []

    # the life of the backend

    def tick(self, now: float) -> float | None:
        for token, until in list(self._held.items()):
            if until <= now:
                self._forget(token)
        if self._held:
            self.store.keep()
        due = self.store.tick(now)
        if self._undoing:
            self._start("undo", self._undo_all)
        if due is None and not self._undoing:
            self.threads.stop_if_idle()
            return None
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY * random.uniform(0.5, 1.5)  # noqa: S311 - spreads processes
            self._start("prune", self.prune)
        return now + TICK if due is None else min(due, now + TICK)

    def _start(self, name: str, work: Callable[[], object]) -> None:
        """Do ``work`` in a thread, unless it is under way."""
        job = self._jobs.get(name)
        if job is None or job.done():
            with contextlib.suppress(NotStarted):  # the next tick tries again
                job = self._jobs[name] = Background(f"distlock-{self.alias}-{name}").start(work)
                job.add_done_callback(self._log_failure)

    def _log_failure(self, job: Outcome[object]) -> None:
        error = job.exception()
        if error is not None:
            logger.warning("The lease table of alias %r could not be tidied up: %s", self.alias, one_line(error))

    def close(self) -> None:
        self._undoing.clear()  # leases end by themselves
        self._closing = True
        until = clock.now() + PATIENCE
        for job in self._jobs.values():
            run(job.wait(until - clock.now()))
        self._closing = False
        self.store.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self.store.abandon()
        self._begin()
