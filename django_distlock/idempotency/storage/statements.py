"""The statements that differ from engine to engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

TABLE = "django_distlock_idempotency"
# Microseconds since 1970, so that no time zone matters; in a long transaction too the time of now, not of its start.
NOW = {
    "postgresql": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
COLUMNS = "scope, state, owner, fingerprint, principal, method, route, phases, claimed_at, expires_at, lives_until"
VALUES = "%s, 'claimed', %s, %s, %s, %s, %s, '{{}}', {now}, {now} + %s, {now} + %s"
INSERT = {
    "postgresql": f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({VALUES}) ON CONFLICT DO NOTHING",  # noqa: S608
    "mysql": f"INSERT IGNORE INTO {TABLE} ({COLUMNS}) VALUES ({VALUES})",  # noqa: S608
    "sqlite": f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({VALUES}) ON CONFLICT DO NOTHING",  # noqa: S608
}
# With a quota the row is made only while the principal has fewer keys that live. Of more no more are counted.
ROOM = (
    f"(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {TABLE} WHERE principal = %s AND lives_until > {{now}} "  # noqa: S608
    "LIMIT {quota}) live) < {quota}"
)
INSERT_IF_ROOM = {
    "postgresql": f"INSERT INTO {TABLE} ({COLUMNS}) SELECT {VALUES} WHERE {ROOM} ON CONFLICT DO NOTHING",
    "mysql": f"INSERT IGNORE INTO {TABLE} ({COLUMNS}) SELECT {VALUES} FROM DUAL WHERE {ROOM}",  # noqa: S608
    "sqlite": f"INSERT INTO {TABLE} ({COLUMNS}) SELECT {VALUES} WHERE {ROOM} ON CONFLICT DO NOTHING",
}
LIVE = f"""
SELECT COUNT(*), MIN(lives_until) - {{now}} FROM (
    SELECT lives_until FROM {TABLE} WHERE principal = %s AND lives_until > {{now}} ORDER BY lives_until LIMIT {{quota}}
) live
"""  # noqa: S608
# An INSERT that meets an uncommitted row of the same key waits for that transaction. The lock answers at once, and is
# freed by the end of the transaction whatever that is; both in one statement.
TRY_INSERT = f"""
WITH lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%s) AS got),
made AS (INSERT INTO {TABLE} ({COLUMNS}) SELECT {VALUES} FROM lock WHERE got{{room}} ON CONFLICT DO NOTHING RETURNING 1)
SELECT got, EXISTS (SELECT 1 FROM made) FROM lock
"""  # noqa: S608
READ = (
    f"SELECT scope, state, owner, fingerprint, expires_at <= {{now}}, facts, body, phases FROM {TABLE} WHERE scope = %s"  # noqa: S608
)
# A snapshot that is older than the winner's commit does not show it: MySQL and MariaDB at REPEATABLE READ.
LOCKING = {"mysql": " LOCK IN SHARE MODE"}
# Where innodb_snapshot_isolation is on (the default from MariaDB 11.6.2), a row that another transaction has written
# after the snapshot of this one ends it with error 1020, and all that the view has written. Keys are compared with what
# is committed: https://mariadb.com/docs/server/server-usage/storage-engines/innodb/innodb-system-variables
COMMITTED = "SET STATEMENT innodb_snapshot_isolation = OFF FOR "
# The releases that have the setting, by series; all series from the last one on.
HAVE_SETTING = {(10, 6): 18, (10, 11): 8, (11, 0): 6, (11, 1): 5, (11, 2): 4, (11, 4): 2}


def committed(connection: BaseDatabaseWrapper) -> str:
    """What goes before a statement on keys inside a transaction; empty where nothing has to."""
    mysql: Any = connection
    if not connection.in_atomic_block or connection.vendor != "mysql" or not mysql.mysql_is_mariadb:
        return ""
    series, release = mysql.mysql_version[:2], mysql.mysql_version[2]
    has = series > max(HAVE_SETTING) or release >= HAVE_SETTING.get(series, release + 1)
    return COMMITTED if has else ""
