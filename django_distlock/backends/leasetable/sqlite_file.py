"""One SQLite file of leases, open once per process and backend."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django_distlock.concurrency.fork import Order, at_fork

from .path import database_path
from .records import StoreError
from .sqlite_sql import ADD_HOLDER, HAS_HOLDER, SCHEMA, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


# Up to 3.12.3 Python 3.12 takes ?1 for a name, and warns of a sequence at each statement
# (https://github.com/python/cpython/issues/117995).
NUMBERS_ARE_NAMES = (3, 12) <= sys.version_info < (3, 12, 4)


class _Numbered(sqlite3.Cursor):
    def execute(self, statement: str, row: Any = ()) -> Self:
        return super().execute(statement, {str(number): value for number, value in enumerate(row, 1)})


class LeaseFile:
    """One connection with one cursor, for whoever has the ``mutex``; statements commit by themselves.

    There is no busy timeout: SQLite's own sleeps up to 100 ms between two looks, and the caller knows its deadline.
    """

    def __init__(self, path: str | None) -> None:
        self.path = path or ":memory:"
        self.in_memory = path is None
        # Taken by a bare ``with``: between an acquire() and its try a KeyboardInterrupt would leave it locked for ever.
        self.mutex = threading.Lock()
        self.cursor: sqlite3.Cursor | None = None
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
        """Open the file, making it if need be; under the mutex."""
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            cursor = connection.cursor(_Numbered if NUMBERS_ARE_NAMES else sqlite3.Cursor)
            # A lease is one short row. What a commit costs is the size of the page that it is on.
            cursor.execute("PRAGMA page_size = 1024")
            cursor.execute("PRAGMA journal_mode = WAL").fetchall()
            # A lease that a power failure takes back cannot have a holder any more: all of them were on this host.
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
        # The leases in memory go with the last who uses them, and nobody calls close(): Python 3.13 warns of that.
        self._end = weakref.finalize(self, connection.close)
        self._end.atexit = False  # some are given back later than that
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
        """Close the connection; what lives in memory stays for as long as somebody uses it."""
        if not self.in_memory:
            with self.mutex:
                self._close()

    def _close(self) -> None:
        if self.cursor is not None:
            self.cursor = None
            self._end()

    def before_fork(self) -> None:
        """A child must neither use nor close an inherited SQLite connection, nor open a second one to the same file:
        it would share lock counts with a parent whose locks it has not (https://sqlite.org/howtocorrupt.html, 2.6).
        So there is none to inherit. Leases are rows, the parent opens the file again."""
        self.mutex.acquire()
        if not self.in_memory:
            self._close()

    def after_fork(self) -> None:
        self.mutex.release()


_files: weakref.WeakSet[LeaseFile] = weakref.WeakSet()
_in_memory: weakref.WeakValueDictionary[str, LeaseFile] = weakref.WeakValueDictionary()
_guard = threading.Lock()
_paused: list[LeaseFile] = []


def lease_path(name: str) -> str | None:
    """Where the leases of a SQLite database are; None: in memory."""
    path = database_path(name)
    return None if path is None else f"{path}-distlock"


def open_lease_file(name: object) -> LeaseFile:
    """The lease file of a database with that NAME; the one in memory is the same for all who ask."""
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
