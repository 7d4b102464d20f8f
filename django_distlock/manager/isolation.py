"""Transactions that read an old snapshot (R13): data read under a lock may be older than the lock."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.records import Scope

STALE_LEVELS = frozenset({"REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"})
# libpq's PQTRANS_INTRANS: inside a transaction, which is not aborted
_BEGUN = 2


class StaleSnapshotWarning(RuntimeWarning):
    """A lock was taken inside a transaction that may read data from before the lock was granted."""


def warn_of_stale_snapshot(name: str, scope: Scope, reported: str | None, opened: list[BaseDatabaseWrapper]) -> None:
    """The snapshot of such a transaction can be older than the lock. Warns with the name and the fix."""
    for connection in opened:
        level = reported if scope == "transaction" else isolation_level(connection)
        if level in STALE_LEVELS:
            warnings.warn(
                f"The lock {name!r} was taken inside a {level} transaction on {connection.alias!r}. What the "
                "transaction reads may be older than the lock: its snapshot is taken before the lock is granted. Take "
                "the lock before atomic(), or use READ COMMITTED.",
                StaleSnapshotWarning,
                stacklevel=_frames_of_this_package(),
            )


def _frames_of_this_package() -> int:
    """The ``stacklevel`` at which the user's own code begins."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("django_distlock."):
        level, frame = level + 1, frame.f_back
    return level


def isolation_level(connection: BaseDatabaseWrapper) -> str | None:
    """The isolation level of the transaction of ``connection``, in capitals; None if it is unknown.

    PostgreSQL is asked, because SQL may have set another level than the settings. MySQL does not report the level that
    SQL has set for one transaction.
    """
    level = _level_of_the_transaction(connection) if connection.vendor == "postgresql" else None
    return configured_level(connection) if level is None else level


def configured_level(connection: BaseDatabaseWrapper) -> str | None:
    """The isolation level of the settings, in capitals. If they do not set one, MySQL is asked, once."""
    level = getattr(connection, "isolation_level", None)
    if level is None:
        return _level_of_the_server(connection) if connection.vendor == "mysql" else None
    return _spelt(getattr(level, "name", level))


def _spelt(level: Any) -> str:
    return str(level).replace("_", " ").replace("-", " ").upper()


def _level_of_the_transaction(connection: Any) -> str | None:
    """The level of a transaction that has begun on PostgreSQL; None if it cannot be asked.

    The query is one round trip and takes no snapshot. It uses the driver's cursor, not Django's, so that
    assertNumQueries does not count it.
    """
    raw = connection.connection
    if connection._thread_ident != threading.get_ident() or _status(raw) != _BEGUN:
        return None  # a thread waits for this task, BEGIN was not sent yet, or the transaction is aborted
    try:
        with connection.wrap_database_errors, raw.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            return _spelt(cursor.fetchone()[0])
    except DatabaseError:  # the caller's next statement raises the error
        return None


def _status(raw: Any) -> int | None:
    """libpq's status of the transaction."""
    info = getattr(raw, "info", None)
    return None if info is None else int(info.transaction_status)


def _level_of_the_server(connection: Any) -> str | None:
    """The default level of a MySQL or MariaDB session, usually REPEATABLE READ; queried once a connection."""
    raw = connection.connection
    if not hasattr(raw, "_distlock_isolation"):
        if connection._thread_ident != threading.get_ident():
            return None  # a task: the connection is that of the thread that waits for it
        variable = "tx_isolation" if connection.mysql_is_mariadb else "transaction_isolation"
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT @@{variable}")
                raw._distlock_isolation = _spelt(cursor.fetchone()[0])
        except DatabaseError:  # the transaction is broken and refuses queries
            return None
    return str(raw._distlock_isolation)
