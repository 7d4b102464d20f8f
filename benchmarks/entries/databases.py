"""PostgreSQL, MySQL or MariaDB, and SQLite: the drivers' own cursors, the peers and ours."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from django.conf import settings
from django.db import connections, transaction

from benchmarks.entries.base import LOCK_NAME, LOCK_NAMES, Ready, django_connection, entry, holding, ours, ready, tooz
from benchmarks.servers import MARIADB, POSTGRES, SQLITE, connect_mariadb, connect_postgres, connect_sqlite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.entries.base import Body, Entry

KEY = 7_000_000_001
WAIT = 10  # seconds
SPIN = 0.001


@entry("bare psycopg")
def bare_postgres() -> Iterator[Ready]:
    """Two statements on one psycopg cursor, each result fetched: the measure for the group."""
    with connect_postgres() as connection:
        cursor = connection.cursor()
        execute, fetchone = cursor.execute, cursor.fetchone

        def cycle(body: Body) -> None:
            execute("SELECT pg_advisory_lock(%s)", (KEY,))
            fetchone()
            body()
            execute("SELECT pg_advisory_unlock(%s)", (KEY,))
            fetchone()

        yield ready(cycle)


@entry("bare psycopg in transaction", contended=False)
def bare_in_transaction() -> Iterator[Ready]:
    """One statement in a transaction that is already open; the commit frees the locks."""
    keys = itertools.cycle(range(KEY, KEY + len(LOCK_NAMES)))
    with connect_postgres() as connection:
        cursor = connection.cursor()

        def cycle(body: Body) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (next(keys),))
            cursor.fetchone()
            body()

        yield ready(cycle, connection.transaction)


@entry("bare Django, whole atomic()")
def django_whole_transaction() -> Iterator[Ready]:
    """BEGIN, lock, COMMIT by Django's atomic() and cursor: the measure for whole transactions."""

    def cycle(body: Body) -> None:
        with transaction.atomic(using=POSTGRES.alias):
            with connections[POSTGRES.alias].cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", (KEY,))
                cursor.fetchone()
            body()

    with django_connection(POSTGRES.alias):
        yield ready(cycle)


@entry("django-pglock")
def pglock() -> Iterator[Ready]:
    """A session lock on Django's connection, as its page shows it."""
    from pglock import advisory

    with django_connection(POSTGRES.alias):
        yield ready(holding(lambda: advisory(LOCK_NAME, using=POSTGRES.alias)))


@entry("django-pglock, xact")
def pglock_transaction() -> Iterator[Ready]:
    """Its transaction scope, which opens a transaction of its own."""
    from pglock import advisory

    with django_connection(POSTGRES.alias):
        yield ready(holding(lambda: advisory(LOCK_NAME, xact=True, using=POSTGRES.alias)))


@entry("django-pglock, xact in atomic()", contended=False)
def pglock_in_atomic() -> Iterator[Ready]:
    """Its functional form: the context manager refuses an open transaction."""
    from pglock import advisory

    names = itertools.cycle(LOCK_NAMES)

    def cycle(body: Body) -> None:
        advisory(next(names), xact=True, using=POSTGRES.alias).acquire()
        body()

    with django_connection(POSTGRES.alias):
        yield ready(cycle, lambda: transaction.atomic(using=POSTGRES.alias))


@entry("bare mysqlclient")
def bare_mysql() -> Iterator[Ready]:
    """Two statements on one mysqlclient cursor, each result fetched and checked: the measure for the group."""
    with contextlib.closing(connect_mariadb()) as connection:
        cursor = connection.cursor()
        execute, fetchone = cursor.execute, cursor.fetchone

        def cycle(body: Body) -> None:
            execute("SELECT GET_LOCK(%s, %s)", ("bare-" + LOCK_NAME, WAIT))
            if fetchone() != (1,):
                raise TimeoutError(f"bare mysqlclient did not get the lock within {WAIT} s")
            body()
            execute("SELECT RELEASE_LOCK(%s)", ("bare-" + LOCK_NAME,))
            fetchone()

        yield ready(cycle)


@entry("django-mysql")
def django_mysql() -> Iterator[Ready]:
    """A named lock on Django's connection, as its page shows it."""
    from django_mysql.locks import Lock

    with django_connection(MARIADB.alias):
        yield ready(holding(lambda: Lock(LOCK_NAME, acquire_timeout=WAIT, using=MARIADB.alias)))


@entry("bare insert + delete, spin 1 ms")
def bare_sqlite() -> Iterator[Ready]:
    """A unique row inserted and deleted in WAL mode, tried again after 1 ms: the measure for the group.

    It has no queue, no expiry and no owner; whoever dies holding it holds it for ever.
    """
    with contextlib.closing(connect_sqlite()) as connection:
        cursor = connection.cursor()

        def persist(statement: str, *params: str) -> None:
            """Execute one write, again while another process writes or the row is there."""
            while True:
                try:
                    cursor.execute(statement, params)
                except (sqlite3.OperationalError, sqlite3.IntegrityError) as error:
                    if isinstance(error, sqlite3.OperationalError) and "locked" not in str(error):
                        raise
                    time.sleep(SPIN)
                else:
                    return

        def cycle(body: Body) -> None:
            persist("INSERT INTO bare_lock (name) VALUES (?)", LOCK_NAME)
            body()
            persist("DELETE FROM bare_lock WHERE name = ?", LOCK_NAME)

        persist("CREATE TABLE IF NOT EXISTS bare_lock (name TEXT PRIMARY KEY) WITHOUT ROWID")
        yield ready(cycle)


def tooz_database(template: str, alias: str) -> Entry:
    """tooz connects anew for every acquire, and polls on MySQL."""

    def url() -> str:
        return template.format(**{key: quote(str(value)) for key, value in settings.DATABASES[alias].items()})

    return tooz(url, pairs=2)


OF_POSTGRES = (
    bare_postgres,
    bare_in_transaction,
    django_whole_transaction,
    pglock,
    pglock_in_atomic,
    pglock_transaction,
    tooz_database("postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}?dbname={NAME}", POSTGRES.alias),
    *ours(POSTGRES.lock_alias, database=POSTGRES.alias),
)
OF_MYSQL = (
    bare_mysql,
    django_mysql,
    tooz_database("mysql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}", MARIADB.alias),
    *ours(MARIADB.lock_alias),
)
OF_SQLITE = (bare_sqlite, *ours(SQLITE.lock_alias))
