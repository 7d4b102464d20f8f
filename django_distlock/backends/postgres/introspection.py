"""PostgreSQL's locks as an operator sees them: holders, waiters and names; and ending a holder."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DatabaseError

from django_distlock.backends.sessions.introspection import Row, infos, moment
from django_distlock.backends.text import NAMES_TABLE, readable
from django_distlock.records import LockInfo

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

NUMBER = "((classid::bigint << 32) | objid::bigint)"
HERE = "(SELECT oid FROM pg_database WHERE datname = current_database())"
OURS = f"locktype = 'advisory' AND objsubid = 1 AND pg_locks.database = {HERE}"
# The locks of this session, in the caller's transaction.
MINE = f"SELECT {NUMBER} FROM pg_locks WHERE {OURS} AND granted AND pid = pg_backend_pid()"  # noqa: S608 - constants
HELD = f"SELECT DISTINCT {NUMBER}::text FROM pg_locks WHERE {OURS} AND granted AND {NUMBER} IN ({{keys}})"  # noqa: S608 - numbers
# The holder of a lock that no session holds: https://www.postgresql.org/docs/current/sql-prepare-transaction.html
PREPARED = "a prepared transaction"
# A session, and when its transaction began.
SESSION = """s.application_name, s.usename::text, host(s.client_addr), extract(epoch FROM s.backend_start)::text,
       extract(epoch FROM s.state_change)::text, (extract(epoch FROM s.xact_start) * 1000000)::bigint"""
# Waiters come in order.
NAMED = f"""
SELECT {NUMBER}::text, granted, pg_locks.mode = 'ShareLock', pg_locks.pid, {SESSION}, {{note}}
FROM pg_locks LEFT JOIN pg_stat_activity s ON s.pid = pg_locks.pid {{join}}
WHERE {OURS} ORDER BY s.query_start, pg_locks.pid
"""  # noqa: S608 - constants
# A note belongs to a hold of the session that it names if that session had begun by then: process ids are used again.
_NOTED = "n.session = pg_locks.pid AND n.since >= coalesce(extract(epoch FROM s.backend_start) * 1000000, 0)"
WITH_NOTES = NAMED.format(
    note=f"n.name, CASE WHEN {_NOTED} THEN n.since END, CASE WHEN {_NOTED} THEN n.holder END",
    join=f"LEFT JOIN {NAMES_TABLE} n ON n.lock_key = {NUMBER}::text",
)
WITHOUT_NOTES = NAMED.format(note="NULL, NULL, NULL", join="")
# pg_blocking_pids(), which stops the lock manager for a moment, is called for waiters only:
# https://www.postgresql.org/docs/current/functions-info.html. A session that waits for a row waits for the end of a
# transaction and holds, or waits for, the lock on that row. A session that is merely ahead in the queue is no holder.
# The session of a prepared transaction is 0 there, and unknown in pg_locks.
BLOCKING = f"""
WITH waiting AS (
    SELECT pid, relation, 'relation' AS kind FROM pg_locks
    WHERE NOT granted AND locktype = 'relation' AND database = {HERE}
    UNION ALL
    SELECT w.pid, t.relation, 'row' FROM pg_locks w JOIN pg_locks t ON t.pid = w.pid AND t.locktype = 'tuple'
    WHERE NOT w.granted AND w.locktype IN ('tuple', 'transactionid') AND t.database = {HERE}
    LIMIT 100
), pairs AS (
    SELECT DISTINCT w.kind, w.relation, b.pid, w.pid AS waiter
    FROM waiting w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b(pid)
)
SELECT p.kind, p.relation::regclass::text, coalesce(string_agg(DISTINCT h.mode, ', '), 'row'),
       string_agg(DISTINCT p.waiter::text, ', '), p.pid, {SESSION}
FROM pairs p
LEFT JOIN pg_locks h ON coalesce(h.pid, 0) = p.pid AND h.relation = p.relation AND h.granted AND h.locktype = 'relation'
LEFT JOIN pg_stat_activity s ON s.pid = p.pid
WHERE p.kind = 'row' OR h.mode IS NOT NULL
GROUP BY p.kind, p.relation, p.pid, s.application_name, s.usename, s.client_addr, s.backend_start, s.state_change,
         s.xact_start
LIMIT 200
"""  # noqa: S608 - constants
# The conditions come first: only a session that holds this very lock is ended.
BREAK = f"""
SELECT pg_terminate_backend(pid) FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE {OURS} AND granted AND {NUMBER}::text = %s AND pid::text = %s
AND extract(epoch FROM backend_start)::text IS NOT DISTINCT FROM %s LIMIT 1
"""  # noqa: S608 - constants
INSUFFICIENT_PRIVILEGE = "42501"

# The application name of our sessions.
OUR_APPLICATION = re.compile(r"distlock (\S+:\d+)")


class Server(NamedTuple):
    """A session as the server describes it. Times in seconds since 1970, as text; ``entered`` in microseconds."""

    pid: int | None
    application: str | None
    user: str | None
    address: str | None
    began: str | None
    last_statement: str | None
    entered: int | None

    def described(self, told: str | None = None) -> str:
        """host:pid:thread as the holder itself has noted (``told``), else the name of its session; and the server's
        description."""
        if not self.pid:
            return PREPARED
        ours = OUR_APPLICATION.match(self.application or "")
        holder = readable(told) if told else ours.group(1) if ours else self.application
        server = f"{self.user or 'unknown'} at {self.address or 'local'}, server process {self.pid}"
        return f"{holder}, {server}" if holder else server

    @property
    def earliest(self) -> int | None:
        """Since when it may hold a lock without a note: a lock of another program is at most as old as its transaction.
        Our own sessions are in none."""
        return None if (self.application or "").startswith("distlock") else self.entered


def rows(connection: BaseDatabaseWrapper) -> tuple[list[Any], list[Any]]:
    """The rows of all locks with a key, and those of locks on tables and rows that keep a session waiting."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(WITH_NOTES)
        except DatabaseError:  # the names' table is not there, or not to be read
            cursor.execute(WITHOUT_NOTES)
        named = cursor.fetchall()
        cursor.execute(BLOCKING)
        return named, cursor.fetchall()


def listed(alias: str, named: list[Any], blocks: list[Any]) -> list[LockInfo]:
    """The held locks in :func:`rows`."""
    return [*infos(alias, [_row(*row) for row in named]), *(blocking(alias, *row) for row in blocks)]


def _row(key: str, granted: bool, shared: bool, *more: Any) -> Row:
    """From a row of NAMED."""
    server, (name, since, told) = Server._make(more[:7]), more[7:]
    details = {
        "pid": str(server.pid) if server.pid else None,
        "application_name": server.application,
        "last_statement": server.last_statement,
        "backend_start": server.began,
    }
    who, since = server.described(told if granted else None), server.earliest if since is None else since
    return Row(key, granted, server.pid, who, name, since, details, shared)


def blocking(alias: str, kind: str, table: str, mode: str, blocks: str, *session: Any) -> LockInfo:
    """A lock on a table or its rows, from a row of BLOCKING."""
    server = Server(*session)
    return LockInfo(
        backend=alias,
        key=f"{kind} {table} {server.pid}",
        name=table,
        holder=server.described(),
        acquired_at=moment(server.entered),
        waiters=blocks.count(",") + 1,
        details={"kind": kind, "pid": str(server.pid), "mode": mode, "blocks": blocks},
    )


def end(info: LockInfo, connection: BaseDatabaseWrapper) -> bool:
    """End the session that ``info`` shows, if it still holds the lock."""
    with connection.cursor() as cursor:
        cursor.execute(BREAK, [info.key, info.details.get("pid"), info.details.get("backend_start")])
        return bool(cursor.fetchone() == (True,))
