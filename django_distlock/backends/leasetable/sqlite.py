"""The lease table on SQLite, in a file beside the database.

SQLite has one writer per file. A lease in the database itself could not be taken once the caller's own transaction has
written, and would be rolled back with it. So leases are in ``<NAME>-distlock``; for an in-memory database they are in
memory, shared by all threads of the process.

All processes run on one host, whose clock counts: microseconds since 1970.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import sqlite3
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from django.db import connections

from django_distlock.backends.base import IDLE, TICK
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.exceptions import BackendUnavailable

from .statements import NOWHERE, Statements

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.records import Claim

SUFFIX = "-distlock"
VERSION = 2
# The tables that `migrate` makes on servers, as far as SQLite needs them.
SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS django_distlock_lease (
    digest TEXT PRIMARY KEY, alias TEXT NOT NULL, name TEXT NOT NULL, token TEXT NOT NULL, fence INTEGER NOT NULL,
    acquired_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, holder TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS django_distlock_ticket (
    digest TEXT NOT NULL, arrived INTEGER NOT NULL, token TEXT NOT NULL, seen INTEGER NOT NULL, holder TEXT NOT NULL,
    PRIMARY KEY (digest, arrived)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
COMMIT;
"""
# The pause before a statement is repeated because another process writes; seconds.
SHORTEST, LONGEST = 0.00005, 0.001

# The fence is the clock, which is nearly always above the last fence, so that it need not be read back. RETURNING would
# cost more than the write itself, and SQLite has it only since 3.35. Reading the table that is written costs as much.
TAKE = """
INSERT INTO django_distlock_lease {columns} SELECT :digest, :alias, :name, :token, :fence, :now, :now + :ttl, :holder
WHERE NOT EXISTS (SELECT 1 {ahead})
ON CONFLICT (digest) DO UPDATE SET
    token = excluded.token, fence = excluded.fence, acquired_at = excluded.acquired_at,
    expires_at = excluded.expires_at, holder = excluded.holder, alias = excluded.alias
WHERE (token = '-' OR token = excluded.token OR expires_at <= :now) AND fence < excluded.fence
"""
LAST = """
SELECT fence, token FROM django_distlock_lease
WHERE digest = :digest AND (token IN ('-', :token) OR expires_at <= :now)
"""
# A waiter is behind those that have come before, also if the clock was set back meanwhile.
JOIN = """
INSERT INTO django_distlock_ticket (token, digest, arrived, seen, holder)
SELECT :token, :digest, coalesce(max(arrived), 0) + 1, :now, :holder
FROM django_distlock_ticket WHERE digest = :digest
"""


class SqliteStatements(Statements):
    """SQL of SQLite. While another process writes, a statement raises sqlite3.OperationalError."""

    placeholder, join_text = "?", JOIN

    def now(self) -> int:
        return time.time_ns() // 1000

    def take(self, session: Any, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        values = self.take_values(claim, holder, place)
        now = values["now"] = values["fence"] = self.now()
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

    def take_turn(self, session: Any, claim: Claim, holder: str, place: int) -> int | None:
        """Both statements in one transaction, which is one write to the disk."""
        try:
            session.cursor.execute("BEGIN IMMEDIATE")
            fence = super().take_turn(session, claim, holder, place)
            session.cursor.execute("COMMIT")
            return fence
        except BaseException:
            if session.cursor.connection.in_transaction:
                session.cursor.execute("ROLLBACK")
            raise


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
        _files.add(self)

    def open(self) -> None:
        """Open the file, or create it; under the mutex."""
        if not self.in_memory:
            make_for_all(self.path.removesuffix(SUFFIX), self.path)
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            # A commit costs a whole page, and a lease is one short row.
            connection.execute("PRAGMA page_size = 1024")
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            # Leases that a power failure undoes have no holders left: those were on this host.
            connection.execute("PRAGMA synchronous = NORMAL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > VERSION:
                raise BackendUnavailable(
                    f"{self.path} was made by a newer version of django-distlock (format {version}, known: {VERSION})."
                )
            if version < VERSION:
                connection.executescript(SCHEMA)
        except BaseException:
            connection.close()
            raise
        self.cursor = connection.cursor()
        # Leases in memory end with their last user, without a call of close(), of which Python 3.13 would warn.
        self._end = weakref.finalize(self, connection.close)
        self._end.atexit = False  # some leases are released later than that

    def close(self) -> None:
        """Close the connection. Leases in memory stay while they are in use."""
        with self.mutex:
            if self.cursor is not None and not self.in_memory:
                self.cursor = None
                self._end()

    def before_fork(self) -> None:
        """Close the connection, which the parent opens again when it needs it.

        A child must neither use nor close an inherited SQLite connection, nor open a second one to the same file: it
        would share lock counts with its parent, but not the locks (https://sqlite.org/howtocorrupt.html, 2.6).
        """
        self.mutex.acquire()
        self.close()


_files: weakref.WeakSet[LeaseFile] = weakref.WeakSet()
_in_memory: weakref.WeakValueDictionary[str, LeaseFile] = weakref.WeakValueDictionary()
_guard = threading.Lock()
_paused: list[LeaseFile] = []


def _before_fork() -> None:
    _paused[:] = list(_files)
    for file in _paused:
        file.before_fork()


def _after_fork() -> None:
    for file in _paused:
        file.mutex.release()
    _paused.clear()


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _after_fork()
    _in_memory.clear()


at_fork(Order.SESSIONS, before=_before_fork, parent=_after_fork, child=_after_fork_in_child)


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


def make_for_all(database: str, path: str) -> None:
    """Make the file ``path``, unless it is there, for those who may use the database, as SQLite does with its journals:
    where root, or one user of a group, was the first one to take a lock, nobody else could take any."""
    with contextlib.suppress(OSError, AttributeError):  # it is there; the database is yet to be made; Windows
        wanted = os.stat(database)
        # O_EXCL: what somebody else has put there, such as a link to another file, is not touched
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with contextlib.suppress(OSError):
                os.fchown(descriptor, wanted.st_uid if os.geteuid() == 0 else -1, wanted.st_gid)
            same_group = os.fstat(descriptor).st_gid == wanted.st_gid
            os.fchmod(descriptor, 0o600 | wanted.st_mode & (0o666 if same_group else 0o606))
        finally:
            os.close(descriptor)


def lease_path(name: object) -> str | None:
    """The file of the leases of a SQLite database; None: in memory."""
    path = database_path(name)
    return None if path is None else path + SUFFIX


def open_lease_file(name: object) -> LeaseFile:
    """The lease file of the database ``name``. All callers share the one in memory."""
    path = lease_path(name)
    if path is not None:
        return LeaseFile(path)
    with _guard:
        file = _in_memory.get(str(name))
        if file is None:
            file = _in_memory[str(name)] = LeaseFile(None)
        return file


class SqliteStore:
    """The file of one alias, which does not hang. A statement is repeated while another process writes."""

    #: Seconds for which a statement may still be executed after its caller was told that it failed.
    late = 0.0
    lost_at = -math.inf

    def __init__(self, alias: str, database: str) -> None:
        self.statements: Statements = SqliteStatements(alias)
        self.used_at = 0.0
        self._settings = connections.settings[database]
        self._name: object = None
        self._file: LeaseFile | None = None

    def run(self, until: float, operation: Callable[..., Any], *args: Any) -> Any:
        """Execute one of the operations on leases, again while another process writes; BackendUnavailable if it does
        so at the monotonic time ``until``, and has done so for a second."""
        retries, give_up = 0, 0.0
        while True:
            file = self.file()
            try:
                with file.mutex:
                    if file.cursor is None:
                        file.open()
                    return operation(file, *args)
            except sqlite3.Error as error:
                now = clock.now()
                give_up = give_up or max(until, now + SILENCE)
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not busy:
                    file.close()  # it may have been deleted or replaced: the next statement opens it again
                if not busy or now >= give_up:
                    raise BackendUnavailable(f"{file.path}: {error}") from error
            time.sleep(random.uniform(SHORTEST, min(SHORTEST * 2 ** min(retries, 10), LONGEST)))  # noqa: S311
            retries += 1

    def file(self) -> LeaseFile:
        """The file of the database that the alias has now: test runners change its NAME."""
        name, file = self._settings["NAME"], self._file
        if file is None or (name is not self._name and name != self._name):
            if file is not None:
                file.close()
            file = self._file = open_lease_file(name)
            self._name = name
        self.used_at = clock.now()
        return file

    def keep(self) -> None:
        """Nothing: it can be opened again at any time, and is then seen if it was deleted or replaced."""

    def tick(self, now: float) -> float | None:
        """Close the file once it is idle. The time of the next call; None if none is needed."""
        file = self._file
        if file is None or file.cursor is None or file.in_memory:
            return None
        if now - self.used_at >= IDLE:
            file.close()
        return now + TICK

    def close(self) -> None:
        """Close the file. Leases are rows and stay; the next statement opens it again."""
        if self._file is not None:
            self._file.close()

    def abandon(self) -> None:
        """In the child of a fork: it was closed before; what was in memory is the parent's."""
        self._file = None
