"""The statements that differ from engine to engine."""

from __future__ import annotations

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
