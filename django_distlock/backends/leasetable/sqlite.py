"""The lease table on SQLite, in a file beside the database.

SQLite has one writer per file. A lease in the database itself could not be taken once the caller's own transaction has
written, and would be rolled back with it. So leases are in ``<NAME>-distlock``; for an in-memory database they are in
memory, shared by all threads of the process.

All processes run on one host, whose clock counts: microseconds since 1970.
"""

from __future__ import annotations

import random
import sqlite3
import time
from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from django.db import connections

from django_distlock.backends.text import printable, short
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.deadline import PAUSE
from django_distlock.concurrency.flow import Flow, Step

from .records import (
    DEAD,
    GRACE,
    KEPT,
    NOWHERE,
    LiveLease,
    Look,
    Statements,
    Store,
    StoreError,
    StoreOverloaded,
    Ticket,
    microseconds,
    rows_of,
)
from .sqlite_file import LeaseFile, open_lease_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.concurrency.executor import Threads
    from django_distlock.records import Claim

P = ParamSpec("P")

_GRACE, _DEAD, _KEPT = microseconds(GRACE), microseconds(DEAD), microseconds(KEPT)
# The pause before a statement is repeated because another process writes; seconds.
SHORTEST, LONGEST = 0.00005, 0.001
# Seconds for which a lease that was found taken is expected to be taken.
HOT = 0.05

# The fence is the clock, which is nearly always above the last fence, so that it need not be read back. RETURNING would
# cost more than the write itself, and SQLite has it only since 3.35. Reading the table that is written costs as much.
TAKE = """
INSERT INTO lease (digest, alias, name, token, fence, acquired_at, expires_at, holder)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
WHERE NOT EXISTS (SELECT 1 FROM ticket WHERE digest = ?1 AND place < ?9 AND seen > ?10)
ON CONFLICT (digest) DO UPDATE SET
    token = excluded.token, fence = excluded.fence, acquired_at = excluded.acquired_at,
    expires_at = excluded.expires_at, holder = excluded.holder, alias = excluded.alias
WHERE (token = '-' OR token = excluded.token OR expires_at <= ?6) AND fence < excluded.fence
"""
LAST = "SELECT fence, token FROM lease WHERE digest = ?1 AND (token = '-' OR token = ?3 OR expires_at <= ?2)"
GIVE = "UPDATE lease SET token = '-', expires_at = ?3 WHERE digest = ?1 AND token = ?2 AND expires_at > ?3"
BREAK = "UPDATE lease SET token = '-', expires_at = ?3 WHERE digest = ?1 AND fence = ?2 AND expires_at > ?3"
EXTEND = "UPDATE lease SET expires_at = ?3 WHERE digest = ?1 AND token = ?2 AND expires_at > ?4"
HOLDS = "SELECT 1 FROM lease WHERE digest = ?1 AND token = ?2 AND expires_at > ?3"
LAST_PLACE = "SELECT coalesce(max(place), 0), count(*) FROM ticket WHERE digest = ?1"
JOIN = "INSERT INTO ticket (digest, place, token, seen, holder) VALUES (?1, ?2, ?3, ?4, ?5)"
LOOK = """
SELECT lease.token, lease.fence,
       (SELECT count(*) FROM ticket WHERE digest = ?1 AND place < ?3 AND seen > ?4),
       (SELECT place FROM ticket WHERE digest = ?1 AND place = ?3 AND token = ?5)
FROM (SELECT 1) LEFT JOIN lease ON lease.digest = ?1 AND lease.expires_at > ?2 AND lease.token <> '-'
"""
REFRESH = "UPDATE ticket SET seen = ?4 WHERE digest = ?1 AND place = ?2 AND token = ?3"
LEAVE = "DELETE FROM ticket WHERE digest = ?1 AND (token = ?2 OR seen < ?3)"
ROWS = """
SELECT lower(hex(l.digest)), l.name, l.token, l.fence, l.acquired_at, l.expires_at, l.holder, t.token, t.holder
FROM lease l LEFT JOIN ticket t ON t.digest = l.digest AND t.seen > ?2
WHERE l.alias = ?1 AND l.expires_at > ?3 AND l.token <> '-' ORDER BY l.acquired_at, l.digest, t.place
"""
LAST_OF_BATCH = "SELECT max(digest) FROM (SELECT digest FROM lease WHERE digest > ?1 ORDER BY digest LIMIT ?2)"
# A fence in the future, after the clock was set back, must be kept: the next one has to be higher.
PRUNE = "DELETE FROM lease WHERE digest > ?1 AND digest <= ?2 AND expires_at < ?3 AND fence < ?4"
PRUNE_TICKETS = "DELETE FROM ticket WHERE seen < ?1"


def clock() -> int:
    return time.time_ns() // 1000


class SqliteStatements(Statements[LeaseFile]):
    """Each raises sqlite3.OperationalError while another process writes."""

    def __init__(self, alias: str) -> None:
        self._alias = short(alias)
        # when a lease was last found taken, by digest
        self._taken: dict[bytes, float] = {}

    def _take(self, cursor: sqlite3.Cursor, claim: Claim, holder: str, place: int) -> int | None:
        """Take the lease if it is free, expired or ours, and no live waiter is before ``place``; the fence, or None."""
        key, token, now = claim.key, claim.token, clock()
        row = (
            key.digest,
            self._alias,
            printable(key.name),
            token,
            now,
            now,
            now + microseconds(claim.ttl or 0.0),
            holder,
            place,
            now - _GRACE,
        )
        if cursor.execute(TAKE, row).rowcount == 1:
            return now
        last = cursor.execute(LAST, (key.digest, now, token)).fetchone()
        if last is None:
            return None
        if last[1] == token:
            place = 0  # it was granted to this claim before: waiters that came since are behind
        elif last[0] < now:
            return None
        fence: int = max(last[0] + 1, now)  # the clock was set back, or two grants fell into one microsecond
        again = (*row[:4], fence, *row[5:8], place, row[9])
        return fence if cursor.execute(TAKE, again).rowcount == 1 else None

    def enter(self, file: LeaseFile, claim: Claim, holder: str, queue: bool) -> tuple[int | None, Ticket | None]:
        # A lease that was taken a moment ago is expected to be taken: then both are one transaction, with one commit.
        digest = claim.key.digest
        if not queue or file.used_at - self._taken.get(digest, 0.0) > HOT:
            with file.mutex:
                fence = self._take(file.cursor or file.open(), claim, holder, NOWHERE)
            if fence is not None or not queue:
                return fence, None
            if len(self._taken) >= 1000:
                self._taken.clear()
        self._taken[digest] = file.used_at

        def take_or_join(cursor: sqlite3.Cursor) -> tuple[int | None, Ticket | None]:
            fence = self._take(cursor, claim, holder, NOWHERE)
            return fence, self._join(cursor, claim, holder) if fence is None else None

        return file.atomically(take_or_join)

    @staticmethod
    def _join(cursor: sqlite3.Cursor, claim: Claim, holder: str) -> Ticket:
        digest = claim.key.digest
        last, count = cursor.execute(LAST_PLACE, (digest,)).fetchone()
        cursor.execute(JOIN, (digest, last + 1, claim.token, clock(), holder))
        return Ticket(last + 1, count)

    def take_turn(self, file: LeaseFile, claim: Claim, holder: str, place: int) -> int | None:
        def take_and_leave(cursor: sqlite3.Cursor) -> int | None:
            fence = self._take(cursor, claim, holder, place)
            if fence is not None:
                cursor.execute(LEAVE, (claim.key.digest, claim.token, clock() - _DEAD))
            return fence

        return file.atomically(take_and_leave)

    def give(self, file: LeaseFile, claim: Claim) -> bool:
        return file.change(GIVE, (claim.key.digest, claim.token, clock())) == 1

    def extend(self, file: LeaseFile, claim: Claim, ttl: float) -> bool:
        now = clock()
        return file.change(EXTEND, (claim.key.digest, claim.token, now + microseconds(ttl), now)) == 1

    def holds(self, file: LeaseFile, claim: Claim) -> bool:
        return bool(file.ask(HOLDS, (claim.key.digest, claim.token, clock())))

    def join(self, file: LeaseFile, claim: Claim, holder: str) -> Ticket:
        return file.atomically(lambda cursor: self._join(cursor, claim, holder))

    def look(self, file: LeaseFile, claim: Claim, place: int) -> Look:
        now = clock()
        return Look(*file.ask(LOOK, (claim.key.digest, now, place, now - _GRACE, claim.token))[0])

    def refresh(self, file: LeaseFile, claim: Claim, place: int) -> None:
        file.change(REFRESH, (claim.key.digest, place, claim.token, clock()))

    def leave(self, file: LeaseFile, claim: Claim) -> None:
        file.change(LEAVE, (claim.key.digest, claim.token, clock() - _DEAD))

    def rows(self, file: LeaseFile) -> list[LiveLease]:
        now = clock()
        return rows_of(file.ask(ROWS, (self._alias, now - _GRACE, now)))

    def break_lease(self, file: LeaseFile, digest: str, fence: int) -> bool:
        return file.change(BREAK, (bytes.fromhex(digest), fence, clock())) == 1

    def prune(self, file: LeaseFile, after: bytes | None, limit: int) -> tuple[int, bytes | None]:
        after = after or b""
        last: bytes | None = file.ask(LAST_OF_BATCH, (after, limit))[0][0]
        if last is None:
            file.change(PRUNE_TICKETS, (clock() - _DEAD,))
            return 0, None
        now = clock()
        return file.change(PRUNE, (after, last, now - _KEPT, now)), last


class SqliteStore(Store[LeaseFile]):
    """The file of one alias, which does not hang. A statement is repeated while another process writes."""

    def __init__(self, alias: str, database: str, threads: Callable[[], Threads]) -> None:
        self._threads = threads
        self.statements = SqliteStatements(alias)
        self._settings = connections.settings[database]
        self._name: object = None
        self._file: LeaseFile | None = None

    def run(
        self, until: float, operation: Callable[Concatenate[LeaseFile, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> Flow[Any]:
        retries = 0
        while True:
            begin_by = None if retries else until
            if _get_running_loop() is None:  # a thread needs no step: the file answers at once
                error, value = self.attempt(operation, args, begin_by)
            else:
                error, value = yield Step(self.attempt, self.aattempt, (operation, args, begin_by))
            if error is None:
                return value
            yield Step(PAUSE.sleep, PAUSE.asleep, (self._pause(error, until, retries),))
            retries += 1

    def attempt(
        self, operation: Callable[..., Any], args: tuple[Any, ...], begin_by: float | None
    ) -> tuple[Exception | None, Any]:
        """The error or None, and the result. An error is not raised, since after that a task ignores cancellation."""
        if begin_by is not None and monotonic() > begin_by:
            return StoreOverloaded(f"{self._name} is overloaded: the statement could not be executed in time."), None
        try:
            return None, operation(self.file(), *args)
        except (sqlite3.Error, StoreError) as error:
            return error, None

    async def aattempt(
        self, operation: Callable[..., Any], args: tuple[Any, ...], begin_by: float | None
    ) -> tuple[Exception | None, Any]:
        """:meth:`attempt` for a task: in a thread, since a checkpoint waits for the disk."""
        return await self._threads().short(self.attempt, operation, args, begin_by)

    def _pause(self, error: Exception, until: float, retries: int) -> float:
        """The pause before the statement is repeated; StoreError if it is not."""
        if isinstance(error, StoreError):
            raise error
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if busy and monotonic() < until:
            longest = min(SHORTEST * 2**retries, LONGEST) if retries < 10 else LONGEST
            return random.uniform(SHORTEST, longest)  # noqa: S311 - spreads retries
        if not busy:
            self.close()  # the file may have been deleted or replaced: the next statement opens it again
        where = self._file.path if self._file is not None else self._name
        raise StoreError(f"{where}: {error}") from error

    def file(self) -> LeaseFile:
        """The file of the database that the alias has now: test runners change its NAME."""
        name = self._settings["NAME"]
        file = self._file
        if file is None or (name is not self._name and name != self._name):
            if file is not None:
                file.close()
            file = self._file = open_lease_file(name)
            self._name = name
        file.used_at = monotonic()
        return file

    @property
    def is_open(self) -> bool:
        return self._file is not None and self._file.cursor is not None and not self._file.in_memory

    @property
    def used_at(self) -> float:
        return self._file.used_at if self._file is not None else 0.0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def abandon(self) -> None:
        self._file = None  # it was closed before the fork; what was in memory is the parent's
