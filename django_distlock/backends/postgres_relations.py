"""Locks on tables and rows of PostgreSQL that keep somebody waiting, for operators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django_distlock.records import LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# pg_locks is read once, and pg_blocking_pids(), which stops the lock manager for a moment, is asked for waiters only:
# https://www.postgresql.org/docs/current/functions-info.html. Who waits for a row waits for the end of a transaction
# and holds, or waits for, the lock on that row. Whoever merely stands before others in the queue is no holder.
BLOCKING = b"""
WITH locks AS MATERIALIZED (
    SELECT locktype, database, relation, pid, mode, granted FROM pg_locks
    WHERE locktype IN ('relation', 'tuple', 'transactionid')
), waiting AS (
    SELECT pid, relation, 'relation' AS kind FROM locks WHERE NOT granted AND locktype = 'relation'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL
    SELECT w.pid, t.relation, 'row' FROM locks w JOIN locks t ON t.pid = w.pid AND t.locktype = 'tuple'
    WHERE NOT w.granted AND w.locktype IN ('tuple', 'transactionid')
    AND t.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    LIMIT 100
), pairs AS (
    SELECT DISTINCT w.kind, w.relation, b.pid, w.pid AS waiter
    FROM waiting w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b(pid)
)
SELECT p.kind, p.relation::regclass::text, p.pid, string_agg(DISTINCT p.waiter::text, ', '),
       count(DISTINCT p.waiter), coalesce(string_agg(DISTINCT h.mode, ', '), 'row'),
       a.application_name, a.client_addr, a.usename, extract(epoch FROM a.xact_start)
FROM pairs p
LEFT JOIN locks h ON h.pid = p.pid AND h.relation = p.relation AND h.granted AND h.locktype = 'relation'
LEFT JOIN pg_stat_activity a ON a.pid = p.pid
WHERE p.kind = 'row' OR h.pid IS NOT NULL
GROUP BY p.kind, p.relation, p.pid, a.application_name, a.client_addr, a.usename, a.xact_start
LIMIT 200
"""


def blocking(alias: str, rows: Iterable[Sequence[str | None]]) -> list[LockInfo]:
    return [
        LockInfo(
            backend=alias,
            key=f"{kind} {table} {pid}",
            name=table,
            shared=False,
            holder=f"{user} at {address or 'local'}, server process {pid}, {application}",
            acquired_at=None if began is None else datetime.fromtimestamp(float(began), UTC),
            waiters=int(count or 0),
            details={"kind": str(kind), "pid": str(pid), "mode": str(mode), "blocks": str(waiters)},
        )
        for kind, table, pid, waiters, count, mode, application, address, user, began in rows
    ]
