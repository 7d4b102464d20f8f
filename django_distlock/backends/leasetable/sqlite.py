"""The lease table on SQLite, in a file beside the database.

SQLite has one writer per file. A lease in the database itself could not be taken once the caller's own transaction has
written, and would be rolled back with it. So leases are in ``<NAME>-distlock``; for an in-memory database they are in
memory, shared by all threads of the process.

All processes run on one host, whose clock counts: microseconds since 1970.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from django.db import connections

from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import pause
from django_distlock.concurrency.fork import Order, at_fork

from .records import GRACE, NOWHERE, StoreError, StoreOverloaded, Ticket
from .statements import PLACE, Executor, Statements, Store, microseconds
from .wakeups import WakeSockets

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.concurrency.executor import Threads
    from django_distlock.records import Claim, Grant

P = ParamSpec("P")
T = TypeVar("T")

VERSION = 1
SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS lease (
        digest BLOB PRIMARY KEY, alias TEXT NOT NULL, name TEXT NOT NULL, token TEXT NOT NULL, fence INTEGER NOT NULL,
        acquired_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, holder TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS ticket (
        digest BLOB NOT NULL, place INTEGER NOT NULL, token TEXT NOT NULL, seen INTEGER NOT NULL, holder TEXT,
        address TEXT, PRIMARY KEY (digest, place)
    ) WITHOUT ROWID
    """,
    f"PRAGMA user_version = {VERSION}",
)
# Older files have tickets without these columns. The format is the same: earlier versions ignore them.
ADDED = ("holder", "address")
HAS_ADDED = "SELECT name FROM pragma_table_info('ticket') WHERE name IN ('holder', 'address')"

# What the statements raise; most often because another process writes. Other errors are interrupts.
FILE_ERRORS = (sqlite3.Error, StoreError)
# The pause before a statement is repeated because another process writes; seconds.
SHORTEST, LONGEST = 0.00005, 0.001
# Seconds for which a lease that was found taken is expected to be taken.
HOT = 0.05
# Seconds of a hold that no caller is expected to have begun to wait for. After a longer one its release looks for them.
SHORT_HOLD = 0.001

# The fence is the clock, which is nearly always above the last fence, so that it need not be read back. RETURNING would
# cost more than the write itself, and SQLite has it only since 3.35. Reading the table that is written costs as much.
TAKE = """
INSERT INTO lease {columns} SELECT :digest, :alias, :name, :token, :fence, :now, :now + :ttl, :holder
WHERE NOT EXISTS (SELECT 1 {ahead})
ON CONFLICT (digest) DO UPDATE SET
    token = excluded.token, fence = excluded.fence, acquired_at = excluded.acquired_at,
    expires_at = excluded.expires_at, holder = excluded.holder, alias = excluded.alias
WHERE (token = '-' OR token = excluded.token OR expires_at <= :now) AND fence < excluded.fence
"""
# A ticket for a lease that is taken, or that others wait for.
JOIN_TAKEN = """
INSERT INTO ticket (token, digest, place, seen, holder, address)
SELECT :token, :digest, (SELECT coalesce(max(place), 0) + 1 FROM ticket WHERE digest = :digest), :now, :holder, :address
WHERE EXISTS (SELECT 1 FROM lease WHERE digest = :digest AND token <> '-' AND expires_at > :now)
    OR EXISTS (SELECT 1 FROM ticket t WHERE t.digest = :digest AND t.seen > :now - {grace})
"""
LAST = "SELECT fence, token FROM lease WHERE digest = :digest AND (token IN ('-', :token) OR expires_at <= :now)"


_GRACE = microseconds(GRACE)
NEXT_ADDRESS = "SELECT address FROM ticket WHERE digest = ? AND seen > ? ORDER BY place LIMIT 1"
GLANCE = """
SELECT (SELECT fence FROM lease WHERE digest = ? AND expires_at > ? AND token <> '-'),
    (SELECT COUNT(*) FROM ticket WHERE digest = ? AND place < ? AND seen > ?)
"""


class SqliteStatements(Statements):
    """Each raises sqlite3.OperationalError while another process writes."""

    placeholder = "?"
    ahead = "FROM ticket t WHERE t.digest = :digest AND t.place < :place AND t.seen > :now - {grace}"
    digest = staticmethod(attrgetter("key.digest"))
    join_text = """
    INSERT INTO ticket (token, digest, place, seen, holder, address)
    SELECT :token, :digest, coalesce(max(place), 0) + 1, :now, :holder, :address FROM ticket WHERE digest = :digest
    """

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        # by digest: when callers were last seen to wait for it, and the address of the one that is next
        self._queues: dict[bytes, tuple[float, str | None]] = {}
        self.wakes = WakeSockets()

    def fragments(self, session: object) -> dict[str, str]:
        return {"lease": "lease", "ticket": "ticket", "arrived": "place", "hex": "lower(hex(l.digest))", "dual": ""}

    def now(self, session: object) -> int:
        return time.time_ns() // 1000

    def packed(self, digits: str) -> bytes:
        return bytes.fromhex(digits)

    def limit(self, session: object, count: int) -> str:
        return f"LIMIT {count}"

    def take(self, session: Executor, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        values = self.values(claim, holder, place)
        now = values["now"] = values["fence"] = self.now(session)
        if self.change(session, TAKE, values):
            return now
        last = self.ask(session, LAST, values)
        if not last:
            return None
        fence, token = last[0]
        if token == claim.token:
            values["place"] = 0  # it was granted to this claim before: waiters that came since are behind
        elif fence < now:
            return None
        values["fence"] = max(fence + 1, now)  # the clock was set back, or two grants fell into one microsecond
        return values["fence"] if self.change(session, TAKE, values) else None

    def glance(self, session: Executor, claim: Claim, place: int) -> tuple[int | None, int]:
        """The fence of the live lease, and how many live waiters are ahead of ``place``."""
        digest, now = claim.key.digest, self.now(session)
        found: tuple[int | None, int] = session.ask(GLANCE, (digest, now, digest, place, now - _GRACE))[0]
        return found

    def expects_queue(self, claim: Claim) -> bool:
        """Did callers wait for the lease a moment ago?"""
        found = self._queues.get(claim.key.digest)
        return found is not None and clock.now() - found[0] < HOT

    def _note_queue(self, claim: Claim, address: str | None = None) -> None:
        if len(self._queues) >= 1000:
            self._queues.clear()
        self._queues[claim.key.digest] = (clock.now(), address)

    def enter(
        self, session: Executor, claim: Claim, holder: str, queue: bool, address: str | None = None
    ) -> tuple[int | None, Ticket | None]:
        # For a lease that was taken a moment ago a ticket is drawn at once: then both are one write.
        if queue and self.expects_queue(claim):
            values = {**self.hold(claim), "holder": holder, "address": address}
            if self.change(session, JOIN_TAKEN, values):
                self._note_queue(claim)
                try:
                    place, ahead = self.ask(session, PLACE, values)[0]
                except sqlite3.Error:
                    self._take_back(session, claim)
                    raise
                return None, Ticket(place, int(ahead))
        fence = self.take(session, claim, holder)
        if fence is not None or not queue:
            return fence, None
        self._note_queue(claim)
        return None, self.join(session, claim, holder, address)

    def join(self, session: Executor, claim: Claim, holder: str, address: str | None = None) -> Ticket:
        try:
            return super().join(session, claim, holder, address)
        except sqlite3.Error:
            self._take_back(session, claim)
            raise

    def _take_back(self, session: Executor, claim: Claim) -> None:
        """Delete a ticket whose place could not be read: nobody would wait with it, and all others behind it."""
        with contextlib.suppress(sqlite3.Error):
            self.leave(session, claim)

    def take_turn(self, session: Executor, claim: Claim, holder: str, place: int) -> int | None:
        def take_and_leave() -> int | None:
            fence = self.take(session, claim, holder, place)
            if fence is not None:
                self.leave(session, claim)
                # for the release, where this read would cost more
                self._note_queue(claim, self._next_address(session, claim))
            return fence

        return session.atomically(take_and_leave)

    def release(self, session: Executor, grant: Grant) -> bool:
        given = super().release(session, grant)
        if given:
            self._wake_next(session, grant)
        return given

    def _wake_next(self, session: Executor, grant: Grant) -> None:
        """Wake the first waiter. A short hold that did not wait itself is not expected to have one."""
        held = clock.now() - grant.acquired_at
        noted, address = self._queues.get(grant.claim.key.digest, (0.0, None))
        waited = noted > grant.acquired_at
        if not waited and held < SHORT_HOLD:
            return
        if address is None or not waited or held > HOT:
            with contextlib.suppress(sqlite3.Error):  # the lease is free all the same
                address = self._next_address(session, grant.claim)
        if address is not None:
            self.wakes.wake(address)

    def _next_address(self, session: Executor, claim: Claim) -> str | None:
        """The address of the first live waiter."""
        found = session.ask(NEXT_ADDRESS, (claim.key.digest, self.now(session) - _GRACE))
        return found[0][0] if found else None


class LeaseFile:
    """One connection with one cursor, guarded by ``mutex``; statements commit by themselves.

    There is no busy timeout: SQLite's own sleeps for up to 100 ms between two attempts, and ignores the caller's
    deadline.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path or ":memory:"
        self.in_memory = path is None
        # Taken by ``with`` alone: a KeyboardInterrupt between an acquire() and its try would leave it locked.
        self.mutex = threading.RLock()
        self.cursor: sqlite3.Cursor | None = None
        self.used_at = 0.0
        _files.add(self)

    def change(self, statement: str, row: Any) -> int:
        """Execute a write; how many rows it changed."""
        with self.mutex:
            return (self.cursor or self.open()).execute(statement, row).rowcount

    def ask(self, statement: str, row: Any) -> list[Any]:
        """Execute a read; its rows."""
        with self.mutex:
            return (self.cursor or self.open()).execute(statement, row).fetchall()

    def atomically(self, work: Callable[[], T]) -> T:
        """Execute several statements as one."""
        with self.mutex:
            cursor = self.cursor or self.open()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                result = work()
                cursor.execute("COMMIT")
                return result
            except BaseException:
                if cursor.connection.in_transaction:
                    cursor.execute("ROLLBACK")
                raise

    def open(self) -> sqlite3.Cursor:
        """Open the file, or create it; under the mutex."""
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            cursor = connection.cursor()
            # A commit costs a whole page, and a lease is one short row.
            cursor.execute("PRAGMA page_size = 1024")
            cursor.execute("PRAGMA journal_mode = WAL").fetchall()
            # Leases that a power failure undoes have no holders left: those were on this host.
            cursor.execute("PRAGMA synchronous = NORMAL")
            version = cursor.execute("PRAGMA user_version").fetchone()[0]
            if version > VERSION:
                raise StoreError(
                    f"{self.path} was made by a newer version of django-distlock (format {version}, known: {VERSION})."
                )
            if version < VERSION:
                self._create(cursor)
            # also after _create(), which does nothing if a process with an older version was faster
            if len(cursor.execute(HAS_ADDED).fetchall()) < len(ADDED):
                self._add_columns(cursor)
        except BaseException:
            connection.close()
            raise
        self.cursor = cursor
        # Leases in memory end with their last user, without a call of close(), of which Python 3.13 would warn.
        self._end = weakref.finalize(self, connection.close)
        self._end.atexit = False  # some leases are released later than that
        return cursor

    @staticmethod
    def _create(cursor: sqlite3.Cursor) -> None:
        cursor.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            cursor.execute(statement)
        cursor.execute("COMMIT")

    @staticmethod
    def _add_columns(cursor: sqlite3.Cursor) -> None:
        cursor.execute("BEGIN IMMEDIATE")
        known = {name for (name,) in cursor.execute(HAS_ADDED)}  # another process may have been faster
        for name in ADDED:
            if name not in known:
                cursor.execute(f"ALTER TABLE ticket ADD COLUMN {name} TEXT")
        cursor.execute("COMMIT")

    def close(self) -> None:
        """Close the connection. Leases in memory stay while they are in use."""
        if not self.in_memory:
            with self.mutex:
                self._close()

    def _close(self) -> None:
        if self.cursor is not None:
            self.cursor = None
            self._end()

    def before_fork(self) -> None:
        """Close the connection, which the parent opens again when it needs it.

        A child must neither use nor close an inherited SQLite connection, nor open a second one to the same file: it
        would share lock counts with its parent, but not the locks (https://sqlite.org/howtocorrupt.html, 2.6).
        """
        self.mutex.acquire()
        if not self.in_memory:
            self._close()

    def after_fork(self) -> None:
        self.mutex.release()


_files: weakref.WeakSet[LeaseFile] = weakref.WeakSet()
_in_memory: weakref.WeakValueDictionary[str, LeaseFile] = weakref.WeakValueDictionary()
_guard = threading.Lock()
_paused: list[LeaseFile] = []


def database_path(name: object) -> str | None:
    """The file of a SQLite database, whose name may be a URI; None: in memory.

    Symbolic links are resolved, as SQLite does before it names its journal, even if the file does not exist yet.
    """
    text = os.fspath(name) if isinstance(name, os.PathLike) else str(name)
    if text == ":memory:" or "mode=memory" in text:
        return None
    if text.startswith("file:"):
        text = unquote(urlsplit(text).path)
        if text == ":memory:":
            return None
    return os.path.realpath(text)


def lease_path(name: str) -> str | None:
    """The file of the leases of a SQLite database; None: in memory."""
    path = database_path(name)
    return None if path is None else f"{path}-distlock"


def open_lease_file(name: object) -> LeaseFile:
    """The lease file of the database ``name``. All callers share the one in memory."""
    text = os.fspath(name) if isinstance(name, os.PathLike) else str(name)
    path = lease_path(text)
    if path is not None:
        return LeaseFile(path)
    with _guard:
        file = _in_memory.get(text)
        if file is None:
            file = _in_memory[text] = LeaseFile(None)
        return file


def _before_fork() -> None:
    _paused[:] = list(_files)
    for file in _paused:
        file.before_fork()


def _after_fork_in_parent() -> None:
    for file in _paused:
        file.after_fork()
    _paused.clear()


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _after_fork_in_parent()
    _in_memory.clear()


at_fork(Order.SESSIONS, before=_before_fork, parent=_after_fork_in_parent, child=_after_fork_in_child)


class SqliteStore(Store):
    """The file of one alias, which does not hang. A statement is repeated while another process writes."""

    statements: SqliteStatements

    def __init__(self, alias: str, database: str, threads: Callable[[], Threads]) -> None:
        super().__init__(SqliteStatements(alias), threads)
        self._settings = connections.settings[database]
        self._name: object = None

    async def run(
        self, until: float, operation: Callable[Concatenate[Any, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        retries = 0
        while True:
            begin_by = None if retries else until
            error, value = await self.aattempt(operation, args, begin_by)
            if error is None:
                return value
            await pause(self._pause(error, until, retries))
            retries += 1

    def attempt(
        self, operation: Callable[..., Any], args: tuple[Any, ...], begin_by: float | None
    ) -> tuple[Exception | None, Any]:
        if begin_by is not None and clock.now() > begin_by:
            return StoreOverloaded(f"{self._name} is overloaded: the statement could not be executed in time."), None
        try:
            return None, operation(self.file(), *args)
        except FILE_ERRORS as error:
            return error, None

    def _pause(self, error: Exception, until: float, retries: int) -> float:
        """The pause before the statement is repeated; StoreError if it is not."""
        if isinstance(error, StoreError):
            raise error
        busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if busy and clock.now() < until:
            longest = min(SHORTEST * 2**retries, LONGEST) if retries < 10 else LONGEST
            return random.uniform(SHORTEST, longest)  # noqa: S311 - spreads retries
        if not busy:
            self.close()  # the file may have been deleted or replaced: the next statement opens it again
        where = self.session.path if self.session is not None else self._name
        raise StoreError(f"{where}: {error}") from error

    def file(self) -> LeaseFile:
        """The file of the database that the alias has now: test runners change its NAME."""
        name = self._settings["NAME"]
        file: LeaseFile | None = self.session
        if file is None or (name is not self._name and name != self._name):
            if file is not None:
                file.close()
            file = self.session = open_lease_file(name)
            self._name = name
        file.used_at = clock.now()
        return file

    @property
    def is_open(self) -> bool:
        return self.session is not None and self.session.cursor is not None and not self.session.in_memory

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.statements.wakes.close()

    def abandon(self) -> None:
        self.statements.wakes.close()
        self.session = None  # it was closed before the fork; what was in memory is the parent's
