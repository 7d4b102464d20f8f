"""GET_LOCK of MySQL and MariaDB (https://dev.mysql.com/doc/refman/8.4/en/locking-functions.html,
https://mariadb.com/kb/en/get_lock/) on dedicated sessions.

Its locks belong to the server, not to a database, and survive a rollback; so names are hashed with the site key, and a
lock taken inside a transaction is given back after it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock.records import LockInfo
from django_distlock.waiting import Flow, drive

from . import mysql_doctor, mysql_relations
from .session import ServerError, SessionDead
from .sessionlocks import SessionLockBackend

try:
    from .mysql_session import MySQLSession, open_session
except ImportError as error:
    raise ImproperlyConfigured(
        "The MySQL lock backend needs mysqlclient: pip install 'django-distlock[mysql]'."
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django_distlock.records import Claim, Grant

# Two ways to see user-level locks: MariaDB's plugin METADATA_LOCK_INFO, and the performance schema of MySQL 8.
LIST_MARIADB = b"""
SELECT m.TABLE_SCHEMA, 'GRANTED', p.ID, p.USER, p.HOST, p.TIME
FROM information_schema.METADATA_LOCK_INFO m JOIN information_schema.PROCESSLIST p ON p.ID = m.THREAD_ID
WHERE m.LOCK_TYPE = 'User lock'
UNION ALL
SELECT SUBSTRING_INDEX(SUBSTRING_INDEX(INFO, '''', 2), '''', -1), 'PENDING', ID, USER, HOST, TIME
FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' AND INFO LIKE 'SELECT GET\\_LOCK(%'
"""
LIST_MYSQL = b"""
SELECT m.OBJECT_NAME, m.LOCK_STATUS, t.PROCESSLIST_ID, t.PROCESSLIST_USER, t.PROCESSLIST_HOST, t.PROCESSLIST_TIME
FROM performance_schema.metadata_locks m JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID
WHERE m.OBJECT_TYPE = 'USER LEVEL LOCK'
"""
KNOWN_NAMES = 4096


class NamedLockBackend(SessionLockBackend[MySQLSession]):
    """OPTIONS: ``database`` (the alias whose server is used), ``session_database`` (another alias for the dedicated
    sessions, for a direct way around a proxy), ``wait_sessions`` (default 8)."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._known: dict[str, str] = {}

    def _connect(self, waits: bool, until: float) -> Flow[MySQLSession]:
        connection = connections[self.session_database]
        if connection.vendor != "mysql":
            raise ImproperlyConfigured(
                f"DISTLOCK[{self.alias!r}]: the database {self.session_database!r} is {connection.vendor}, not MySQL "
                "or MariaDB."
            )
        try:
            return (yield from open_session(self.alias, connection.get_connection_params(), waits, until))
        except SessionDead as error:
            raise self._unavailable(error) from (error.__cause__ or error)

    def take_now(self, claim: Claim, wait: float) -> Grant | None:
        self._remember(claim)
        return super().take_now(claim, wait)

    def _acquire(self, claim: Claim, wait: float) -> Flow[Grant | None]:
        self._remember(claim)
        return super()._acquire(claim, wait)

    def _remember(self, claim: Claim) -> None:
        """Without the right to list locks, an operator sees those of the names that this process knows."""
        if claim.key.text not in self._known:
            if len(self._known) >= KNOWN_NAMES:
                self._known.clear()
            self._known[claim.key.text] = claim.key.name

    # for operators

    def inspect(self) -> Iterable[LockInfo]:
        return drive(self._inspect())

    def _inspect(self) -> Flow[list[LockInfo]]:
        session = yield from self._shared_session()
        try:
            rows = yield from self._listing(LIST_MARIADB if session.mariadb else LIST_MYSQL)
        except ServerError:  # no plugin, or no privilege: at least the names that this process knows
            rows = yield from self._used_locks()
        waiters = Counter(row[0] for row in rows if row[1] == "PENDING")
        return [
            LockInfo(
                backend=self.alias,
                key=name,
                name=self._known.get(name),
                holder=f"{user}@{host}, connection {connection}",
                waiters=waiters[name],
                details={"connection": str(connection), "idle_seconds": str(seconds)},
            )
            for name, status, connection, user, host, seconds in _texts(rows)
            if status == "GRANTED"
        ]

    diagnose = mysql_doctor.findings

    def blocking(self) -> Iterable[LockInfo]:
        return drive(self._blocking())

    def _blocking(self) -> Flow[list[LockInfo]]:
        session = yield from self._shared_session()
        rows = yield from self._rows(mysql_relations.PERFORMANCE_SCHEMA)
        if not rows and session.mariadb:
            rows = yield from self._rows(mysql_relations.PLUGIN)
        rows += yield from self._rows(mysql_relations.INNODB if session.mariadb else mysql_relations.SYS)
        return mysql_relations.blocking(self.alias, rows)

    def _rows(self, sql: bytes) -> Flow[list[list[str]]]:
        """Nothing where the server has no such table, or no privilege for us."""
        try:
            return _texts((yield from self._listing(sql)))
        except ServerError:
            return []

    def _used_locks(self) -> Flow[list[Any]]:
        names = list(self._known)
        if not names:
            return []
        columns = ", ".join(f"IS_USED_LOCK('{name}')" for name in names)
        used = yield from self._listing(f"SELECT {columns}".encode())
        return [
            (name, "GRANTED", connection, "", "", "")
            for name, connection in zip(names, used[0], strict=True)
            if connection is not None
        ]


def _texts(rows: Iterable[Any]) -> list[list[str]]:
    return [[value.decode() if isinstance(value, bytes) else str(value) for value in row] for row in rows]
