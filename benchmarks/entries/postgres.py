"""PostgreSQL: psycopg's own cursor, django-pglock, tooz and ours."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from django.db import connections, transaction

from benchmarks.entries import ours
from benchmarks.entries.base import LOCK_NAME, LOCK_NAMES, Entry
from benchmarks.entries.peers import ToozDatabase
from benchmarks.servers import Postgres

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

DATABASE = Postgres.alias
KEY = 7_000_000_001


class Bare(Entry):
    """Two statements on one psycopg cursor, each result fetched: the measure for the group."""

    label = "bare psycopg"

    def open(self) -> None:
        """Connect and keep one cursor."""
        self.connection = Postgres.connect()
        self.cursor = self.connection.cursor()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def cycle(self, body: Callable[[], object]) -> None:
        """Wait in the server's queue for a session lock and free it."""
        execute, fetchone = self.cursor.execute, self.cursor.fetchone
        execute("SELECT pg_advisory_lock(%s)", (KEY,))
        fetchone()
        body()
        execute("SELECT pg_advisory_unlock(%s)", (KEY,))
        fetchone()


class BareInTransaction(Bare):
    """One statement in a transaction that is already open."""

    label = "bare psycopg in transaction"
    contended = False

    def around(self) -> AbstractContextManager[object]:
        """Open the transaction for the whole slice."""
        self.keys = itertools.cycle(range(KEY, KEY + len(LOCK_NAMES)))
        return self.connection.transaction()

    def cycle(self, body: Callable[[], object]) -> None:
        """Take the next of the locks, which the commit frees."""
        self.cursor.execute("SELECT pg_advisory_xact_lock(%s)", (next(self.keys),))
        self.cursor.fetchone()
        body()


class BareWholeTransaction(Bare):
    """BEGIN, lock, COMMIT on one psycopg cursor."""

    label = "bare psycopg, whole transaction"
    quick = False

    def cycle(self, body: Callable[[], object]) -> None:
        """Take a lock that the commit frees, and commit."""
        execute = self.cursor.execute
        execute("BEGIN")
        execute("SELECT pg_advisory_xact_lock(%s)", (KEY,))
        self.cursor.fetchone()
        body()
        execute("COMMIT")


class DjangoWholeTransaction(Entry):
    """BEGIN, lock, COMMIT by Django's atomic() and cursor: the measure for whole transactions."""

    label = "bare Django, whole atomic()"

    def open(self) -> None:
        """Connect Django's alias."""
        connections[DATABASE].ensure_connection()

    def close(self) -> None:
        """Close Django's connections of this thread."""
        connections.close_all()

    def cycle(self, body: Callable[[], object]) -> None:
        """Take a lock that the commit frees, and commit."""
        with transaction.atomic(using=DATABASE):
            with connections[DATABASE].cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (KEY,))
                cursor.fetchone()
            body()


class PgLock(Entry):
    """django-pglock as its page shows it."""

    label = "django-pglock"

    def open(self) -> None:
        """Import the peer and connect Django's alias."""
        import pglock

        self.advisory = pglock.advisory
        connections[DATABASE].ensure_connection()

    def close(self) -> None:
        """Close Django's connections of this thread."""
        connections.close_all()

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold a session lock on Django's connection."""
        with self.advisory(LOCK_NAME, using=DATABASE):
            body()


class PgLockTransaction(PgLock):
    """django-pglock's transaction scope, which opens a transaction of its own."""

    label = "django-pglock, xact"

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the lock until the peer's own transaction commits."""
        with self.advisory(LOCK_NAME, xact=True, using=DATABASE):
            body()


class PgLockInAtomic(PgLock):
    """django-pglock's one statement in a transaction that is already open."""

    label = "django-pglock, xact in atomic()"
    contended = False

    def around(self) -> AbstractContextManager[object]:
        """Open the transaction for the whole slice."""
        self.names = itertools.cycle(LOCK_NAMES)
        return transaction.atomic(using=DATABASE)

    def cycle(self, body: Callable[[], object]) -> None:
        """Use the functional form: the peer's context manager refuses an open transaction."""
        self.advisory(next(self.names), xact=True, using=DATABASE).acquire()
        body()


class ToozPostgres(ToozDatabase):
    """tooz, which connects anew for every acquire."""

    database = DATABASE
    template = "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}?dbname={NAME}"


class Ours(ours.Ours):
    """Session scope on the process' own lock session."""

    alias = DATABASE


class OursReused(ours.OursReused):
    """The same with one Lock object."""

    alias = DATABASE


class OursInAtomic(ours.OursInAtomic):
    """Transaction scope on the caller's connection."""

    alias = database = DATABASE


class OursWholeTransaction(ours.OursWholeTransaction):
    """Transaction scope with the transaction's own statements."""

    alias = database = DATABASE


class OursAsync(ours.OursAsync):
    """Session scope, awaited."""

    alias = DATABASE


ENTRIES: tuple[type[Entry], ...] = (
    Bare,
    BareInTransaction,
    BareWholeTransaction,
    DjangoWholeTransaction,
    PgLock,
    PgLockInAtomic,
    PgLockTransaction,
    ToozPostgres,
    Ours,
    OursReused,
    OursInAtomic,
    OursWholeTransaction,
    OursAsync,
)
