"""MySQL and MariaDB: mysqlclient's own cursor, django-mysql, tooz and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections

from benchmarks.entries import ours
from benchmarks.entries.base import LOCK_NAME, Entry
from benchmarks.entries.peers import ToozDatabase
from benchmarks.servers import MariaDB

if TYPE_CHECKING:
    from collections.abc import Callable

ALIAS = "mysql"  # in DISTLOCK
DATABASE = MariaDB.alias
WAIT = 10


class Bare(Entry):
    """Two statements on one mysqlclient cursor, each result fetched and checked: the measure for the group."""

    label = "bare mysqlclient"

    def open(self) -> None:
        """Connect and keep one cursor."""
        self.connection = MariaDB.connect()
        self.cursor = self.connection.cursor()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def cycle(self, body: Callable[[], object]) -> None:
        """Wait in the server's queue for the named lock and free it."""
        execute, fetchone = self.cursor.execute, self.cursor.fetchone
        execute("SELECT GET_LOCK(%s, %s)", ("bare-" + LOCK_NAME, WAIT))
        if fetchone() != (1,):
            raise TimeoutError(f"bare mysqlclient did not get the lock within {WAIT} s")
        body()
        execute("SELECT RELEASE_LOCK(%s)", ("bare-" + LOCK_NAME,))
        fetchone()


class DjangoMySQL(Entry):
    """django-mysql as its page shows it."""

    label = "django-mysql"

    def open(self) -> None:
        """Import the peer and connect Django's alias."""
        from django_mysql.locks import Lock

        self.lock = Lock
        connections[DATABASE].ensure_connection()

    def close(self) -> None:
        """Close Django's connections of this thread."""
        connections.close_all()

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the lock on Django's connection."""
        with self.lock(LOCK_NAME, acquire_timeout=WAIT, using=DATABASE):
            body()


class ToozMySQL(ToozDatabase):
    """tooz, which connects anew for every acquire and polls."""

    database = DATABASE
    template = "mysql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}"


class Ours(ours.Ours):
    """The named lock on the process' own lock session."""

    alias = ALIAS


class OursReused(ours.OursReused):
    """The same with one Lock object."""

    alias = ALIAS


class OursAsync(ours.OursAsync):
    """The same, awaited."""

    alias = ALIAS


ENTRIES: tuple[type[Entry], ...] = (Bare, DjangoMySQL, ToozMySQL, Ours, OursReused, OursAsync)
