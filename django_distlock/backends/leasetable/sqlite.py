"""The lease table on SQLite: a file of its own beside the database.

SQLite has one writer per file. A lease in the database itself could not be taken while the caller's own transaction has
written, and would be rolled back with it; so leases live in ``<NAME>-distlock``. For an in-memory database they live in
memory, shared by all threads of the process.

All processes run on one host, so the clock is that of the host: microseconds since 1970.
"""

from __future__ import annotations

import random
import sqlite3
import time
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock.backends.text import printable, short
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.deadline import PAUSE
from django_distlock.concurrency.flow import Flow, Step, run

from .records import DEAD, GRACE, KEPT, NOWHERE, Crowded, Look, Row, StoreError, Ticket, microseconds, rows_of
from .sqlite_file import LeaseFile, open_lease_file
from .sqlite_sql import (
    BREAK,
    EXTEND,
    GIVE,
    HOLDS,
    JOIN,
    LAST,
    LAST_OF_BATCH,
    LAST_PLACE,
    LEAVE,
    LOOK,
    PRUNE,
    PRUNE_TICKETS,
    REFRESH,
    ROWS,
    TAKE,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.concurrency.executor import Threads
    from django_distlock.records import Claim

_GRACE, _DEAD, _KEPT = microseconds(GRACE), microseconds(DEAD), microseconds(KEPT)
# Between attempts while another process writes; seconds.
SHORTEST, LONGEST = 0.00005, 0.001
# For so long after it was found taken, a lease is expected to be taken again; seconds.
HOT = 0.05


def clock() -> int:
    return time.time_ns() // 1000


class Direct:
    """The store for threads: its flows have no steps, what they do they do at once."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def run(self, until: float, operation: str, *args: Any) -> Flow[Any]:
        """As :meth:`SqliteStore.run`."""
        yield from ()
        retries = 0
        while True:
            error, value = self._store.attempt(operation, args)
            if error is None:
                return value
            PAUSE.sleep(self._store.pause(error, until, retries))
            retries += 1


class SqliteStore:
    """The statements. Each method is one attempt and raises sqlite3.OperationalError while another process writes;
    :meth:`run` tries again."""

    def __init__(self, alias: str, database: str, threads: Callable[[], Threads]) -> None:
        self._threads = threads
        self._alias = short(alias)
        self._settings = connections.settings[database]
        self._name: object = None
        self._file: LeaseFile | None = None
        # when a lease was last found taken, by digest
        self._taken: dict[bytes, float] = {}
        self.direct = Direct(self)
        self.used_at = 0.0

    @property
    def is_open(self) -> bool:
        """Is there a session to be closed when it has been idle?"""
        return self._file is not None and self._file.cursor is not None and not self._file.in_memory

    def run(self, until: float, operation: str, *args: Any) -> Flow[Any]:
        """Do ``operation``, again while another process writes. StoreError at the monotonic time ``until``."""
        retries = 0
        while True:
            error, value = yield Step(self.attempt, self.aattempt, (operation, args, None if retries else until))
            if error is None:
                return value
            yield Step(PAUSE.sleep, PAUSE.asleep, (self.pause(error, until, retries),))
            retries += 1

    def attempt(
        self, operation: str, args: tuple[Any, ...], begin_by: float | None = None
    ) -> tuple[Exception | None, Any]:
        """The error or None, and the result: after a step that raises, a task cannot be cancelled any more."""
        if begin_by is not None and monotonic() > begin_by:
            return Crowded(f"{self._name}: too much to do."), None
        try:
            return None, getattr(self, operation)(*args)
        except sqlite3.Error as error:
            return error, None

    async def aattempt(
        self, operation: str, args: tuple[Any, ...], begin_by: float | None
    ) -> tuple[Exception | None, Any]:
        """:meth:`attempt` for a task: in a thread, since a checkpoint waits for the disk."""
        return await self._threads().short(self.attempt, operation, args, begin_by)

    def pause(self, error: Exception, until: float, retries: int) -> float:
        """Seconds to sleep before the next attempt; StoreError if there is to be none."""
        if isinstance(error, StoreError):
            raise error
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if busy and monotonic() < until:
            longest = min(SHORTEST * 2**retries, LONGEST) if retries < 10 else LONGEST
            return random.uniform(SHORTEST, longest)  # noqa: S311 - spreads retries
        if not busy:
            self.close()  # a file that went away under us is opened anew at the next use
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
        self.used_at = monotonic()
        return file

    def take(self, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        """Take the lease if it is free, expired or ours and nobody is ahead of ``place``; the fence, or None."""
        file = self.file()
        with file.mutex:
            return self._take(file.cursor or file.open(), claim, holder, place)

    def _take(self, cursor: sqlite3.Cursor, claim: Claim, holder: str, place: int) -> int | None:
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
            place = 0  # asked again by whom it was granted to: those who have queued up since are behind
        elif last[0] < now:
            return None
        fence: int = max(last[0] + 1, now)  # the clock was set back, or two grants fell into one microsecond
        again = (*row[:4], fence, *row[5:8], place, row[9])
        return fence if cursor.execute(TAKE, again).rowcount == 1 else None

    def enter(self, claim: Claim, holder: str, queue: bool) -> tuple[int | None, Ticket | None]:
        """:meth:`take`, or else :meth:`join` if ``queue``; the fence, and the ticket.

        A lease that was found taken lately is expected to be: then both are one transaction, with one commit.
        """
        digest, file = claim.key.digest, self.file()
        if not queue or self.used_at - self._taken.get(digest, 0.0) > HOT:
            fence = self.take(claim, holder)
            if fence is not None or not queue:
                return fence, None
            if len(self._taken) >= 1000:
                self._taken.clear()
        self._taken[digest] = self.used_at

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

    def take_turn(self, claim: Claim, holder: str, place: int) -> int | None:
        """:meth:`take`, and leave the queue in the same transaction."""

        def take_and_leave(cursor: sqlite3.Cursor) -> int | None:
            fence = self._take(cursor, claim, holder, place)
            if fence is not None:
                cursor.execute(LEAVE, (claim.key.digest, claim.token, clock() - _DEAD))
            return fence

        return self.file().atomically(take_and_leave)

    def give(self, claim: Claim) -> bool:
        """Give the lease back; False if it is not ours any more."""
        return self.file().change(GIVE, (claim.key.digest, claim.token, clock())) == 1

    def extend(self, claim: Claim, ttl: float) -> bool:
        """Let it live for ``ttl`` seconds from now; False if it is not ours any more."""
        now = clock()
        return self.file().change(EXTEND, (claim.key.digest, claim.token, now + microseconds(ttl), now)) == 1

    def holds(self, claim: Claim) -> bool:
        """Is it still ours?"""
        return bool(self.file().ask(HOLDS, (claim.key.digest, claim.token, clock())))

    def join(self, claim: Claim, holder: str) -> Ticket:
        """Queue up."""
        return self.file().atomically(lambda cursor: self._join(cursor, claim, holder))

    def look(self, claim: Claim, place: int) -> Look:
        """How the lease and the queue stand; no write."""
        now = clock()
        return Look(*self.file().ask(LOOK, (claim.key.digest, now, place, now - _GRACE, claim.token))[0])

    def refresh(self, claim: Claim, place: int) -> None:
        """Say that the waiter lives."""
        self.file().change(REFRESH, (claim.key.digest, place, claim.token, clock()))

    def leave(self, claim: Claim) -> None:
        """Leave the queue."""
        self.file().change(LEAVE, (claim.key.digest, claim.token, clock() - _DEAD))

    def rows(self) -> list[Row]:
        """The live leases of this alias."""
        now = clock()
        return rows_of(self.file().ask(ROWS, (self._alias, now - _GRACE, now)))

    def break_lease(self, digest: str, fence: int) -> bool:
        """Free the lease that was granted with ``fence``; False if that holder has gone."""
        return self.file().change(BREAK, (bytes.fromhex(digest), fence, clock())) == 1

    def prune(self, after: bytes | None, limit: int) -> tuple[int, bytes | None]:
        """Look at the ``limit`` leases with digests above ``after`` and delete those that ended a day ago; how many,
        and the last digest, None at the end. Dead waiters go last."""
        file, after = self.file(), after or b""
        last: bytes | None = file.ask(LAST_OF_BATCH, (after, limit))[0][0]
        if last is None:
            file.change(PRUNE_TICKETS, (clock() - _DEAD,))
            return 0, None
        now = clock()
        return file.change(PRUNE, (after, last, now - _KEPT, now)), last

    def watch(self, now: float) -> float | None:
        """Nothing hangs here."""
        return None

    def attended(self, flow: Flow[Any]) -> Any:
        """Run ``flow`` here: a file cannot hang, so nothing needs watching."""
        return run(flow)

    def close_idle(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; leases are rows and stay. It is opened again when needed."""
        if self._file is not None:
            self._file.close()

    def abandon(self) -> None:
        """In the child of a fork: the file was closed before it, and what was in memory is the parent's."""
        self._file = None
