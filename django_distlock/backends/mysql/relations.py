"""Locks on tables and rows of MySQL and MariaDB that keep somebody waiting, for operators."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from django_distlock.records import LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Each gives kind, table, mode, holder's connection, user, host, seconds, and the connection that waits.
# A pair counts if one of its two locks is stronger than those of plain reads and writes, which never wait for another.
PERFORMANCE_SCHEMA = b"""
SELECT 'relation', g.OBJECT_NAME, g.LOCK_TYPE, h.PROCESSLIST_ID, h.PROCESSLIST_USER, h.PROCESSLIST_HOST,
       h.PROCESSLIST_TIME, t.PROCESSLIST_ID
FROM performance_schema.metadata_locks w
JOIN performance_schema.metadata_locks g ON g.OBJECT_TYPE = 'TABLE' AND g.OBJECT_SCHEMA = w.OBJECT_SCHEMA
 AND g.OBJECT_NAME = w.OBJECT_NAME AND g.LOCK_STATUS = 'GRANTED' AND g.OWNER_THREAD_ID <> w.OWNER_THREAD_ID
JOIN performance_schema.threads h ON h.THREAD_ID = g.OWNER_THREAD_ID
JOIN performance_schema.threads t ON t.THREAD_ID = w.OWNER_THREAD_ID
WHERE w.OBJECT_TYPE = 'TABLE' AND w.LOCK_STATUS = 'PENDING' AND w.OBJECT_SCHEMA = DATABASE()
AND (g.LOCK_TYPE IN ('SHARED_NO_WRITE', 'SHARED_READ_ONLY', 'SHARED_NO_READ_WRITE', 'EXCLUSIVE')
  OR w.LOCK_TYPE IN ('SHARED_NO_WRITE', 'SHARED_READ_ONLY', 'SHARED_NO_READ_WRITE', 'EXCLUSIVE'))
LIMIT 200
"""
# MariaDB's performance schema is off by default. Its plugin shows what is granted; who waits is in the process list,
# and for which table is in the text of the statement.
PLUGIN = b"""
SELECT 'relation', m.TABLE_NAME, SUBSTR(m.LOCK_MODE, 5), h.ID, h.USER, h.HOST, h.TIME, w.ID
FROM information_schema.PROCESSLIST w
JOIN information_schema.METADATA_LOCK_INFO m ON m.LOCK_TYPE = 'Table metadata lock' AND m.THREAD_ID <> w.ID
 AND m.TABLE_SCHEMA = DATABASE() AND LOCATE(m.TABLE_NAME, w.INFO) > 0
JOIN information_schema.PROCESSLIST h ON h.ID = m.THREAD_ID
WHERE w.STATE LIKE 'Waiting for table %lock' AND w.DB = DATABASE()
LIMIT 200
"""
INNODB = b"""
SELECT 'row', SUBSTRING_INDEX(REPLACE(l.LOCK_TABLE, '`', ''), '.', -1), l.LOCK_MODE, b.trx_mysql_thread_id, h.USER,
       h.HOST, h.TIME, r.trx_mysql_thread_id
FROM information_schema.INNODB_LOCK_WAITS x
JOIN information_schema.INNODB_LOCKS l ON l.LOCK_ID = x.blocking_lock_id
JOIN information_schema.INNODB_TRX b ON b.trx_id = x.blocking_trx_id
JOIN information_schema.INNODB_TRX r ON r.trx_id = x.requesting_trx_id
LEFT JOIN information_schema.PROCESSLIST h ON h.ID = b.trx_mysql_thread_id
WHERE l.LOCK_TABLE LIKE CONCAT('`', REPLACE(DATABASE(), '_', '\\\\_'), '`.%')
LIMIT 200
"""
# MySQL 8 has the same in other tables. There BLOCKING_THREAD_ID would be who has made the lock: of a row that was just
# inserted that is the one who waits for it.
DATA_LOCKS = b"""
SELECT 'row', l.OBJECT_NAME, l.LOCK_MODE, b.trx_mysql_thread_id, h.PROCESSLIST_USER, h.PROCESSLIST_HOST,
       h.PROCESSLIST_TIME, r.trx_mysql_thread_id
FROM performance_schema.data_lock_waits x
JOIN performance_schema.data_locks l ON l.ENGINE_LOCK_ID = x.BLOCKING_ENGINE_LOCK_ID
JOIN information_schema.INNODB_TRX b ON b.trx_id = x.BLOCKING_ENGINE_TRANSACTION_ID
JOIN information_schema.INNODB_TRX r ON r.trx_id = x.REQUESTING_ENGINE_TRANSACTION_ID
LEFT JOIN performance_schema.threads h ON h.PROCESSLIST_ID = b.trx_mysql_thread_id
WHERE l.OBJECT_SCHEMA = DATABASE() LIMIT 200
"""


def blocking(alias: str, rows: Iterable[Sequence[str]]) -> list[LockInfo]:
    blocked: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for *lock, waiter in rows:
        blocked[tuple(lock)].add(waiter)
    return [
        LockInfo(
            backend=alias,
            key=f"{kind} {table} {connection}",
            name=table,
            holder=f"{user}@{host}, connection {connection}",
            waiters=len(waiters),
            details={
                "kind": kind,
                "connection": connection,
                "mode": mode,
                "idle_seconds": seconds,
                "blocks": ", ".join(sorted(waiters, key=int)),
            },
        )
        for (kind, table, mode, connection, user, host, seconds), waiters in blocked.items()
    ]
