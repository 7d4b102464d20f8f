"""The SQLite file of the leases: where it is, its tables, and one connection per process and backend."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

from django_distlock.concurrency.fork import Order, at_fork

from .records import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        PRIMARY KEY (digest, place)
    ) WITHOUT ROWID
    """,
    f"PRAGMA user_version = {VERSION}",
)
# Older files have tickets without this column. The format is the same: earlier versions ignore it.
HAS_HOLDER = "SELECT 1 FROM pragma_table_info('ticket') WHERE name = 'holder'"
ADD_HOLDER = "ALTER TABLE ticket ADD COLUMN holder TEXT"

# Python 3.12.0 to 3.12.3 takes ?1 for a name, and warns at each statement with a sequence
# (https://github.com/python/cpython/issues/117995).
NUMBERS_ARE_NAMES = (3, 12) <= sys.version_info < (3, 12, 4)


class _Numbered(sqlite3.Cursor):
    def execute(self, statement: str, row: Any = ()) -> Self:
        return super().execute(statement, {str(number): value for number, value in enumerate(row, 1)})


class LeaseFile:
    """One connection with one cursor, guarded by ``mutex``; statements commit by themselves.

    There is no busy timeout: SQLite's own sleeps for up to 100 ms between two attempts, and ignores the caller's
    deadline.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path or ":memory:"
        self.in_memory = path is None
        # Taken by ``with`` alone: a KeyboardInterrupt between an acquire() and its try would leave it locked.
        self.mutex = threading.Lock()
        self.cursor: sqlite3.Cursor | None = None
        self.used_at = 0.0
        _files.add(self)

    def change(self, statement: str, row: Sequence[object]) -> int:
        """Execute a write; how many rows it changed."""
        with self.mutex:
            return (self.cursor or self.open()).execute(statement, row).rowcount

    def ask(self, statement: str, row: Sequence[object]) -> list[Any]:
        """Execute a read; its rows."""
        with self.mutex:
            return (self.cursor or self.open()).execute(statement, row).fetchall()

    def atomically(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Execute several statements as one."""
        with self.mutex:
            cursor = self.cursor or self.open()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                result = work(cursor)
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
            cursor = connection.cursor(_Numbered if NUMBERS_ARE_NAMES else sqlite3.Cursor)
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
            elif not cursor.execute(HAS_HOLDER).fetchone():
                self._add_holder(cursor)
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
    def _add_holder(cursor: sqlite3.Cursor) -> None:
        cursor.execute("BEGIN IMMEDIATE")
        if not cursor.execute(HAS_HOLDER).fetchone():  # another process was not faster
            cursor.execute(ADD_HOLDER)
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
