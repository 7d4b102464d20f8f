"""Transactions that read an old snapshot (R13): what is read under a lock may be older than the lock."""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .records import Scope

STALE_LEVELS = frozenset({"REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"})


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
    """The isolation level as settings gave it, in capitals; None if that is not known."""
    level = getattr(connection, "isolation_level", None)
    if level is None:
        return _level_of_the_server(connection) if connection.vendor == "mysql" else None
    return _spelt(getattr(level, "name", level))


def _spelt(level: Any) -> str:
    return str(level).replace("_", " ").replace("-", " ").upper()


def _level_of_the_server(connection: Any) -> str | None:
    """What MySQL or MariaDB does without being told, which is REPEATABLE READ by default; asked once a connection."""
    raw = connection.connection
    if not hasattr(raw, "_distlock_isolation"):
        if connection._thread_ident != threading.get_ident():
            return None  # a task: the connection is that of the thread that waits for it
        variable = "tx_isolation" if connection.mysql_is_mariadb else "transaction_isolation"
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT @@{variable}")
                raw._distlock_isolation = _spelt(cursor.fetchone()[0])
        except DatabaseError:  # a broken transaction reads nothing any more
            return None
    return str(raw._distlock_isolation)
