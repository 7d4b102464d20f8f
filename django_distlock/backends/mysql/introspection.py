"""The locks of MySQL and MariaDB as an operator sees them: holders and waiters of user-level locks, tables and rows;
names; and ending a holder."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from django_distlock.backends.sessions.introspection import Row, infos
from django_distlock.backends.side_connection import code_of
from django_distlock.backends.text import NAMES_TABLE, readable
from django_distlock.exceptions import UnsupportedOperation
from django_distlock.records import LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper


# Two ways to see user-level locks: MariaDB's plugin METADATA_LOCK_INFO, and the performance schema of MySQL 8.
# Without the privilege PROCESS the process list shows only connections of the same account.
MARIADB = """
SELECT m.TABLE_SCHEMA AS lock_name, 'GRANTED' AS status, m.THREAD_ID AS ID, p.USER, p.HOST, p.TIME
FROM information_schema.METADATA_LOCK_INFO m LEFT JOIN information_schema.PROCESSLIST p ON p.ID = m.THREAD_ID
WHERE m.LOCK_TYPE = 'User lock'
UNION ALL
SELECT SUBSTRING_INDEX(SUBSTRING_INDEX(INFO, '''', 2), '''', -1), 'PENDING', ID, USER, HOST, TIME_MS / 1000
FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' AND INFO LIKE 'SELECT GET\\\\_LOCK(%'
"""
# Its threads count whole seconds; the time of a wait is that of its statement (TIMER_WAIT, in 10^-12 s).
MYSQL = """
SELECT m.OBJECT_NAME AS lock_name, m.LOCK_STATUS AS status, t.PROCESSLIST_ID AS ID, t.PROCESSLIST_USER AS USER,
       t.PROCESSLIST_HOST AS HOST, IF(m.LOCK_STATUS = 'PENDING', COALESCE(
           (SELECT MAX(s.TIMER_WAIT) / 1e12 FROM performance_schema.events_statements_current s
            WHERE s.THREAD_ID = t.THREAD_ID), t.PROCESSLIST_TIME), t.PROCESSLIST_TIME) AS TIME
FROM performance_schema.metadata_locks m JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID
WHERE m.OBJECT_TYPE = 'USER LEVEL LOCK' AND m.LOCK_STATUS IN ('GRANTED', 'PENDING')
"""
# A note belongs to the connection that it was written for.
NAMED = """
SELECT l.*, n.name, IF(n.session = l.ID, n.since, NULL), IF(n.session = l.ID, n.holder, NULL)
FROM ({locks}) l LEFT JOIN {table} n
ON n.lock_key = CONVERT(l.lock_name USING ascii) COLLATE ascii_bin
"""
# If neither is there, or allowed: the held locks among the noted names.
NOTED = f"""
SELECT k.lock_key, NULL, k.ID, p.USER, p.HOST, p.TIME, k.name, IF(k.session = k.ID, k.since, NULL),
       IF(k.session = k.ID, k.holder, NULL)
FROM (SELECT n.*, IS_USED_LOCK(n.lock_key) AS ID FROM {NAMES_TABLE} n) k
LEFT JOIN information_schema.PROCESSLIST p ON p.ID = k.ID WHERE k.ID IS NOT NULL
"""  # noqa: S608 - a constant
# Locks on tables and rows that keep a session waiting. Each statement returns kind, table, mode, the holder's
# connection, user, host and seconds, and the connection that waits. A pair counts if one of its two locks is stronger
# than those of plain reads and writes, which never wait for each other.
PERFORMANCE_SCHEMA = """
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
# MariaDB's performance schema is off by default. Its plugin shows granted locks; the waiters are in the process list,
# and the table they wait for is in the text of their statement.
PLUGIN = """
SELECT 'relation', m.TABLE_NAME, SUBSTR(m.LOCK_MODE, 5), h.ID, h.USER, h.HOST, h.TIME, w.ID
FROM information_schema.PROCESSLIST w
JOIN information_schema.METADATA_LOCK_INFO m ON m.LOCK_TYPE = 'Table metadata lock' AND m.THREAD_ID <> w.ID
 AND m.TABLE_SCHEMA = DATABASE() AND LOCATE(m.TABLE_NAME, w.INFO) > 0
JOIN information_schema.PROCESSLIST h ON h.ID = m.THREAD_ID
WHERE w.STATE LIKE 'Waiting for table %lock' AND w.DB = DATABASE()
LIMIT 200
"""
INNODB = """
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
# MySQL 8 has the same in other tables. BLOCKING_THREAD_ID there is the thread that made the lock: for a row that was
# just inserted that is the thread that waits for it.
DATA_LOCKS = """
SELECT 'row', l.OBJECT_NAME, l.LOCK_MODE, b.trx_mysql_thread_id, h.PROCESSLIST_USER, h.PROCESSLIST_HOST,
       h.PROCESSLIST_TIME, r.trx_mysql_thread_id
FROM performance_schema.data_lock_waits x
JOIN performance_schema.data_locks l ON l.ENGINE_LOCK_ID = x.BLOCKING_ENGINE_LOCK_ID
JOIN information_schema.INNODB_TRX b ON b.trx_id = x.BLOCKING_ENGINE_TRANSACTION_ID
JOIN information_schema.INNODB_TRX r ON r.trx_id = x.REQUESTING_ENGINE_TRANSACTION_ID
LEFT JOIN performance_schema.threads h ON h.PROCESSLIST_ID = b.trx_mysql_thread_id
WHERE l.OBJECT_SCHEMA = DATABASE() LIMIT 200
"""
# No such table, and no privilege.
NOT_TO_BE_SEEN = frozenset({1146, 1109, 1044, 1142, 1143, 1227})
# The form of LockKey.text: nothing else goes into a statement.
IS_KEY = re.compile(r"[a-z0-9-]{1,64}")
# Only a connection that holds this very lock is ended, in one statement. MariaDB answers 1644 if it does not hold it.
# MySQL takes an expression for the connection, and there is no connection 0.
END_MARIADB = """
BEGIN NOT ATOMIC IF IS_USED_LOCK('{key}') = {connection} THEN KILL CONNECTION {connection};
ELSE SIGNAL SQLSTATE '45000'; END IF; END
"""
END_MYSQL = "KILL CONNECTION IF(IS_USED_LOCK('{key}') = {connection}, {connection}, 0)"
NOT_HELD = frozenset({1644, 1094})
# KILL DENIED, and the privilege that MySQL 8 and MariaDB name
NOT_ALLOWED = frozenset({1095, 1227})


def _row(
    key: str,
    status: str | None,
    connection: int,
    user: str | None = None,
    host: str | None = None,
    seconds: float | None = None,
    name: str | None = None,
    since: int | None = None,
    told: str | None = None,
) -> Row:
    """``status`` is None where the server shows the holder of a lock, and not its waiters; ``told`` is host:pid:thread
    if the holder has noted it."""
    account = f"{user}@{host}, " if user else ""
    server = f"{account}connection {connection}"
    who = f"{readable(told)}, {server}" if told else server
    details = {"connection": str(connection), "idle_seconds": "" if seconds is None else f"{seconds:.0f}"}
    return Row(key, None if status is None else status == "GRANTED", connection, who, name, since, details)


def is_mariadb(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.mysql_is_mariadb)  # type: ignore[attr-defined]


def listed(alias: str, known: Mapping[str, str], connection: BaseDatabaseWrapper) -> list[LockInfo]:
    """All held locks with a name, and those on tables and rows that keep a session waiting. ``known`` are the names
    that this process knows, by key."""
    with connection.cursor() as cursor:
        found = infos(alias, _named(cursor, is_mariadb(connection), known))
        return found + blocking(alias, _blocking(cursor, is_mariadb(connection)))


def _named(cursor: Any, mariadb: bool, known: Mapping[str, str]) -> list[Row]:
    locks = MARIADB if mariadb else MYSQL
    for statement in (NAMED.format(locks=locks, table=NAMES_TABLE), locks):
        try:  # the names' table may not be there yet, or not be readable
            rows = _rows(cursor, statement)
        except DatabaseError as error:
            if statement is locks and code_of(error) not in NOT_TO_BE_SEEN:
                raise
            continue
        if rows or mariadb:
            return rows
        break  # MySQL's table is also empty if it is switched off
    return _asked_by_name(cursor, known)


def _asked_by_name(cursor: Any, known: Mapping[str, str]) -> list[Row]:
    """Without a list of locks the server still names the holder of one: ask for the noted names, and for those that
    this process knows, so that an operator without the privilege to list locks sees these."""
    found: list[Row] = []
    with contextlib.suppress(DatabaseError):
        found = _rows(cursor, NOTED)
    if keys := sorted(known.keys() - {row.key for row in found}):
        cursor.execute("SELECT " + ", ".join(f"IS_USED_LOCK('{key}')" for key in keys))
        used = zip(keys, cursor.fetchone(), strict=True)
        found += [_row(key, None, connection) for key, connection in used if connection is not None]
    return found


def _rows(cursor: Any, statement: str) -> list[Row]:
    """Those that have waited longest come first."""
    cursor.execute(statement)
    return [_row(*row) for row in sorted(cursor.fetchall(), key=lambda row: -float(row[5] or 0))]


def _blocking(cursor: Any, mariadb: bool) -> list[Sequence[Any]]:
    rows = _seen(cursor, PERFORMANCE_SCHEMA)
    if not rows and mariadb:
        rows = _seen(cursor, PLUGIN)
    return rows + _seen(cursor, INNODB if mariadb else DATA_LOCKS)


def _seen(cursor: Any, statement: str) -> list[Sequence[Any]]:
    """No rows if the server has no such table, or refuses us the privilege."""
    with contextlib.suppress(DatabaseError):
        cursor.execute(statement)
        return list(cursor.fetchall())
    return []


def blocking(alias: str, rows: Iterable[Sequence[Any]]) -> list[LockInfo]:
    """The locks on tables and rows, from pairs of a holder and a waiter."""
    blocked: dict[tuple[Any, ...], set[int]] = {}
    for *lock, waiter in rows:
        blocked.setdefault(tuple("" if value is None else str(value) for value in lock), set()).add(waiter)
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
                "blocks": ", ".join(map(str, sorted(waiters))),
            },
        )
        for (kind, table, mode, connection, user, host, seconds), waiters in blocked.items()
    ]


def end(info: LockInfo, connection: BaseDatabaseWrapper) -> bool:
    """End the connection that ``info`` shows, if it still holds the lock."""
    holder = info.details.get("connection", "")
    if not holder.isdecimal():
        return False
    if not IS_KEY.fullmatch(info.key):
        raise UnsupportedOperation(f"The lock {info.key!r} is not one of ours: another program holds it.")
    statement = END_MARIADB if is_mariadb(connection) else END_MYSQL
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement.format(key=info.key, connection=int(holder)))
    except DatabaseError as error:
        if code_of(error) in NOT_HELD:
            return False
        raise
    return True
