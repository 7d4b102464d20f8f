"""SQLite: an insert and a delete on the standard library's cursor, and our lease table."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

from benchmarks.entries import ours
from benchmarks.entries.base import LOCK_NAME, Entry
from benchmarks.servers import SQLite

if TYPE_CHECKING:
    from collections.abc import Callable

ALIAS = "leasetable"  # in DISTLOCK
SPIN = 0.001


class Bare(Entry):
    """A unique row inserted and deleted in WAL mode, tried again after 1 ms: the measure for the group.

    It has no queue, no expiry and no owner; whoever dies holding it holds it for ever.
    """

    label = "bare insert + delete, spin 1 ms"

    def open(self) -> None:
        """Connect with short waits of our own in place of SQLite's busy handler."""
        self.connection = SQLite.connect()
        self.cursor = self.connection.cursor()
        self.persist("CREATE TABLE IF NOT EXISTS bare_lock (name TEXT PRIMARY KEY) WITHOUT ROWID")

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def persist(self, statement: str, params: tuple[str, ...] = ()) -> None:
        """Execute one write, again while another process writes or the row is there."""
        while True:
            try:
                self.cursor.execute(statement, params)
            except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                if isinstance(error, sqlite3.OperationalError) and "locked" not in str(error):
                    raise
                time.sleep(SPIN)
            else:
                return

    def cycle(self, body: Callable[[], object]) -> None:
        """Own the row while ``body`` runs."""
        self.persist("INSERT INTO bare_lock (name) VALUES (?)", (LOCK_NAME,))
        body()
        self.persist("DELETE FROM bare_lock WHERE name = ?", (LOCK_NAME,))


class Ours(ours.Ours):
    """The lease table in its own file beside the database."""

    alias = ALIAS


class OursReused(ours.OursReused):
    """The same with one Lock object."""

    alias = ALIAS


class OursAsync(ours.OursAsync):
    """The same, awaited."""

    alias = ALIAS


ENTRIES: tuple[type[Entry], ...] = (Bare, Ours, OursReused, OursAsync)
