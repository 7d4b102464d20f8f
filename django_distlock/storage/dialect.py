"""Where the SQL of PostgreSQL, MySQL, MariaDB and SQLite differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from django.db import Error, OperationalError

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# What a statement waits for the lock of a row that another transaction inserts, in milliseconds.
PATIENCE = 50
# Prefix of MariaDB, and of none else: a statement that meets a locked row fails at once.
NOWAIT = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
# With innodb_snapshot_isolation (on by default from MariaDB 11.6.2) a statement that meets a row newer than the
# snapshot of its transaction fails with error 1020. Who holds a lease is a matter of the present, not of the snapshot:
# https://mariadb.com/docs/server/server-usage/storage-engines/innodb/innodb-system-variables
PRESENT = "SET STATEMENT innodb_snapshot_isolation = OFF FOR "
PRESENT_NOWAIT = "SET STATEMENT innodb_snapshot_isolation = OFF, innodb_lock_wait_timeout = 0 FOR "
# The first releases with the setting, by series. All later series have it.
HAVE_SNAPSHOTS = {(10, 6): 18, (10, 11): 8, (11, 0): 6, (11, 1): 5, (11, 2): 4, (11, 4): 2}
# SQLSTATE and numbers of errors that say: another transaction was first, or has the row now. The latter may come after
# a wait of many seconds.
FIRST = {"40001", "40P01", 1020, 1213}
LOCKED_NOW = {"55P03", 1205, 3572}


def nowait(connection: BaseDatabaseWrapper) -> str:
    """The prefix of a statement that must not wait for the lock of a row; empty on other databases than MariaDB."""
    mysql: Any = connection
    if connection.vendor != "mysql" or not mysql.mysql_is_mariadb:
        return ""
    return PRESENT_NOWAIT if present(connection) else NOWAIT


def present(connection: BaseDatabaseWrapper) -> str:
    """The prefix of a statement that locks rows as they are now, also if the snapshot of its transaction is older."""
    mysql: Any = connection
    if connection.vendor != "mysql" or not mysql.mysql_is_mariadb or not connection.in_atomic_block:
        return ""
    series, release = mysql.mysql_version[:2], mysql.mysql_version[2]
    has = series > max(HAVE_SNAPSHOTS) or release >= HAVE_SNAPSHOTS.get(series, release + 1)
    return PRESENT if has else ""


def keeps_snapshot(connection: BaseDatabaseWrapper) -> bool:
    """MySQL's transactions at another level than READ COMMITTED: they read what was there at their beginning, and a
    statement that changes rows locks all that it reads, also those that it only counts."""
    level = connection.settings_dict["OPTIONS"].get("isolation_level", "read committed")  # Django's default
    return connection.vendor == "mysql" and str(level).lower() != "read committed"


def returns_updated(connection: BaseDatabaseWrapper) -> bool:
    """Has an UPDATE the clause RETURNING? MySQL has no such statement, and MariaDB only for others."""
    return connection.vendor != "mysql" and connection.features.can_return_rows_from_bulk_insert


def insert(connection: BaseDatabaseWrapper, table: str, columns: str, values: str) -> str:
    """An INSERT of one row, unless the row exists. It waits at most briefly for a row that is being inserted."""
    if connection.vendor == "mysql":
        return f"INSERT IGNORE INTO {table} ({columns}) VALUES ({values})"  # noqa: S608
    if connection.vendor == "postgresql" and not connection.in_atomic_block:
        # the setting ends with the statement, which is a transaction
        wait = f"SELECT set_config('lock_timeout', '{PATIENCE}', true)"
        return (
            f"WITH wait AS MATERIALIZED ({wait}) INSERT INTO {table} ({columns}) "  # noqa: S608
            f"SELECT {values} FROM wait ON CONFLICT DO NOTHING"
        )
    return f"INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"  # noqa: S608


def contended(error: BaseException) -> Literal["refused", "locked"] | None:
    """Did the statement fail only because another transaction was first ("refused"), or has the row now ("locked")?"""
    if not isinstance(error, Error):
        return None
    cause = error.__cause__
    codes = {getattr(cause, "sqlstate", None), *(error.args[:1])}
    if codes & FIRST:
        return "refused"
    sqlite = isinstance(error, OperationalError) and "database is locked" in str(error)
    return "locked" if codes & LOCKED_NOW or sqlite else None
