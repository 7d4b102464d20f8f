"""The SQL of the table of edit locks, for PostgreSQL, MySQL, MariaDB and SQLite.

All times are microseconds since 1970 by the *present* time of the database: ``now()`` stands still in a transaction.
Parameters are named. ``{now}`` and ``{nowait}`` are filled in by :func:`text_for`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from django.db import Error, OperationalError

from django_distlock import UnsupportedOperation

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

TABLE = "django_distlock_editlease"
NOW = {
    "postgresql": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
COLUMNS = (
    "digest, model, object_pk, lease, principal, tab, label, fence, writes, since, seen, active_at, expires_at, "
    "reserved, previous, ended, changed_at, changed_by"
)
READ = f"{COLUMNS}, {{now}}"
SELECT = f"SELECT {READ} FROM {TABLE}"  # noqa: S608
FREE = "(lease = '' OR expires_at <= {now})"
# Values of ``reserved``: the page has gone, or has just saved and may go. The tab has some seconds to come back.
LEFT, SAVED = 1, 2
# Conditions on the row, under which a verb gets it.
CLAIM = f"({FREE} OR principal = %(principal)s)"
ADOPT = f"({FREE} OR (principal = %(principal)s AND lease IN (%(lease)s, %(former)s)))"
TAKEOVER = "1 = 1"
# MySQL assigns from left to right: what is compared comes last.
HOLD = """
previous = CASE WHEN lease IN ('', %(lease)s) THEN previous ELSE lease END,
ended = CASE WHEN lease IN ('', %(lease)s) THEN ended WHEN expires_at <= {now} THEN 'expired' ELSE %(reason)s END,
fence = CASE WHEN lease = %(lease)s THEN fence ELSE fence + 1 END,
since = CASE WHEN lease <> '' AND expires_at > {now} AND principal = %(principal)s THEN since ELSE {now} END,
principal = %(principal)s, tab = %(tab)s, label = %(label)s, seen = {now}, active_at = {now} - %(idle)s,
expires_at = {now} + %(ttl)s, reserved = %(reserved)s, lease = %(lease)s
"""
# The names stay with an expired lease, and go with one that was given back.
DROP = """
previous = lease, ended = %(reason)s, principal = '', tab = '', label = '', reserved = 0, seen = {now},
expires_at = {now}, lease = ''
"""
COUNT = "writes = writes + 1, changed_at = {now}, changed_by = %(label)s"
RENEW = "seen = {now}, active_at = {now} - %(idle)s, expires_at = {now} + %(ttl)s, reserved = 0"
RESERVE = """
seen = {now}, reserved = %(reserved)s,
expires_at = CASE WHEN expires_at < {now} + %(ttl)s THEN expires_at ELSE {now} + %(ttl)s END
"""
MINE = "lease = %(lease)s AND lease <> '' AND (%(principal)s = '' OR principal = %(principal)s)"
NEW_ROW = "{now}, {now}, {now}, {now}, {now}, {now} + %(ttl)s, %(reserved)s, '', '', 0, ''"
EMPTY_ROW = "'', '', '', '', {now}, {now}, {now}, {now}, {now}, {now}, 0, '', '', 0, ''"
HELD_ROW = f"%(digest)s, %(model)s, %(pk)s, %(lease)s, %(principal)s, %(tab)s, %(label)s, {NEW_ROW}"
# What a statement waits for the lock of a row that another transaction inserts, in milliseconds.
PATIENCE = 100
# Prefix of MariaDB, and of none else: a statement that meets a locked row fails at once.
NOWAIT = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "
# With innodb_snapshot_isolation (on by default from MariaDB 11.6.2) a statement that meets a row newer than the
# snapshot of its transaction fails with error 1020. Who holds a lease is a matter of the present, not of the snapshot:
# https://mariadb.com/docs/server/server-usage/storage-engines/innodb/innodb-system-variables
COMMITTED = "SET STATEMENT innodb_snapshot_isolation = OFF, innodb_lock_wait_timeout = 0 FOR "
# The first releases with the setting, by series. All later series have it.
HAVE_SNAPSHOTS = {(10, 6): 18, (10, 11): 8, (11, 0): 6, (11, 1): 5, (11, 2): 4, (11, 4): 2}
# SQLSTATE and numbers of errors that say: another transaction was first, or has the row now. The latter may come after
# a wait of many seconds.
FIRST = {"40001", "40P01", 1020, 1213}
LOCKED_NOW = {"55P03", 1205, 3572}


def text_for(connection: BaseDatabaseWrapper, template: str) -> str:
    """The statement for this database. UnsupportedOperation for a database whose SQL is not known."""
    if connection.vendor not in NOW:
        raise UnsupportedOperation(
            f"Edit locks need PostgreSQL, MySQL, MariaDB or SQLite; {connection.alias!r} is {connection.display_name}."
        )
    return _filled(template, connection.vendor)


@cache
def _filled(template: str, vendor: str) -> str:
    return template.replace("{now}", NOW[vendor])


def nowait(connection: BaseDatabaseWrapper) -> str:
    """The prefix of a statement that must not wait for the lock of a row; empty on other databases."""
    mysql: Any = connection
    if connection.vendor != "mysql" or not mysql.mysql_is_mariadb:
        return ""
    series, release = mysql.mysql_version[:2], mysql.mysql_version[2]
    has = series > max(HAVE_SNAPSHOTS) or release >= HAVE_SNAPSHOTS.get(series, release + 1)
    return COMMITTED if has and connection.in_atomic_block else NOWAIT


def update(connection: BaseDatabaseWrapper, assignments: str, condition: str) -> str:
    """An UPDATE of one row that does not wait for its lock, where the database can do so in one statement."""
    if connection.vendor == "postgresql":
        found = f"SELECT digest FROM {TABLE} WHERE digest = %(digest)s AND {condition} FOR UPDATE SKIP LOCKED"  # noqa: S608
        text = f"UPDATE {TABLE} SET {assignments} WHERE digest = ({found}) RETURNING {READ}"  # noqa: S608
    else:
        text = f"UPDATE {TABLE} SET {assignments} WHERE digest = %(digest)s AND {condition}"  # noqa: S608
        text += f" RETURNING {READ}" if returns_updated(connection) else ""
    return text_for(connection, text)


def returns_updated(connection: BaseDatabaseWrapper) -> bool:
    """Does the UPDATE of :func:`update` return the row? MySQL has no such statement, and MariaDB only for others."""
    return connection.vendor != "mysql" and connection.features.can_return_rows_from_bulk_insert


def insert(connection: BaseDatabaseWrapper) -> str:
    """An INSERT of a held row, unless the row exists."""
    if connection.vendor == "mysql":
        text = f"INSERT IGNORE INTO {TABLE} ({COLUMNS}) VALUES ({HELD_ROW})"  # noqa: S608
    elif connection.vendor == "postgresql" and not connection.in_atomic_block:
        # the setting ends with the statement, which is a transaction
        wait = f"SELECT set_config('lock_timeout', '{PATIENCE}', true)"
        text = (
            f"WITH wait AS MATERIALIZED ({wait}) INSERT INTO {TABLE} ({COLUMNS}) "  # noqa: S608
            f"SELECT {HELD_ROW} FROM wait ON CONFLICT DO NOTHING"
        )
    else:
        text = f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({HELD_ROW}) ON CONFLICT DO NOTHING"  # noqa: S608
    return text_for(connection, text)


def upsert_and_lock(connection: BaseDatabaseWrapper, count: int) -> str:
    """Make the rows of ``count`` objects that have none, and lock all of them in the order given.

    Returns them where the database can do that in the same statement.
    """
    rows = ", ".join(f"(%s, %s, %s, {EMPTY_ROW})" for _ in range(count))
    if connection.vendor == "mysql":
        text = f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {rows} ON DUPLICATE KEY UPDATE digest = VALUES(digest)"  # noqa: S608
    else:
        text = (
            f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {rows} "  # noqa: S608
            "ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest"
        )
    return text_for(connection, text)


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
