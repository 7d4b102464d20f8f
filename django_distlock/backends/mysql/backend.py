"""GET_LOCK of MySQL and MariaDB (https://dev.mysql.com/doc/refman/8.4/en/locking-functions.html,
https://mariadb.com/kb/en/get_lock/) on dedicated sessions.

Its locks belong to the server, not to a database, and survive a rollback; so names are hashed with the site key, and a
lock taken inside a transaction is released after it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from django_distlock.backends.sessions.backend import SessionLockBackend
from django_distlock.backends.sessions.session import STATEMENT_LIMIT, ServerError, SessionDead, unavailable
from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import run
from django_distlock.exceptions import UnsupportedOperation

from . import doctor, introspection

try:
    from .session import MySQLSession, open_session
except ImportError as error:
    raise ImproperlyConfigured(
        "The MySQL lock backend needs mysqlclient: pip install 'django-distlock[mysql]'."
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_distlock.keys import LockKey
    from django_distlock.records import Finding, LockInfo


class NamedLockBackend(SessionLockBackend[MySQLSession]):
    """OPTIONS: ``database`` (the alias whose server is used), ``session_database`` (another alias for the dedicated
    sessions, which connects directly where the first goes through a proxy), ``wait_sessions`` (default 8)."""

    def open_session(self, waits: bool) -> MySQLSession:
        vendor = connections[self.session_database].vendor
        if vendor != "mysql":
            raise ImproperlyConfigured(
                f"DISTLOCK[{self.alias!r}]: the database {self.session_database!r} is {vendor}, not MySQL or MariaDB."
            )
        try:
            return open_session(self.alias, self.session_database, waits)
        except (DatabaseError, SessionDead, ServerError, TypeError) as error:  # TypeError: an unknown option
            raise unavailable(self.alias, error) from (error.__cause__ or error)

    # for operators

    def listed_as(self, key: LockKey) -> str:
        return key.text

    def inspect(self) -> Iterable[LockInfo]:
        return introspection.infos(self.alias, _texts(run(self._aside(self._listed))))

    def _held_statement(self, keys: Iterable[str]) -> bytes:
        """This needs no privilege, unlike the list of all locks."""
        names = " UNION ALL ".join(f"SELECT '{key}' AS name" for key in keys)
        return f"SELECT name FROM ({names}) n WHERE IS_USED_LOCK(name) IS NOT NULL".encode()  # noqa: S608 - LockKey.text

    def diagnose(self) -> Iterable[Finding]:
        yield from super().diagnose()
        yield from doctor.findings(self._ask, self.wait_sessions)

    async def _listed(self, session: MySQLSession) -> list[Any]:
        until = clock.now() + STATEMENT_LIMIT
        for named in (True, False):  # the names' table may not be there yet, or not be readable
            try:
                rows: list[Any] = await session.query(introspection.listing(session.mariadb, named), until)
            except ServerError as error:
                if not named and error.code not in introspection.NOT_TO_BE_SEEN:
                    raise unavailable(self.alias, error) from error
                continue
            if rows or session.mariadb:
                return rows
            break  # MySQL's table is also empty if it is switched off
        return await self._asked_by_name(session, until)

    async def _asked_by_name(self, session: MySQLSession, until: float) -> list[Any]:
        """Without a list of locks the server still names the holder of one: ask for the noted names, and for those
        that this process knows, so that an operator without the privilege to list locks sees these."""
        noted: list[Any] = []
        with contextlib.suppress(ServerError):
            noted = await session.query(introspection.NOTED, until)
        names = sorted(self.known_names().keys() - {_text(row[0]) for row in noted})
        if not names:
            return noted
        columns = ", ".join(f"IS_USED_LOCK('{name}')" for name in names)
        used = await session.query(f"SELECT {columns}".encode(), until)
        found = zip(names, used[0], strict=True)
        return [*noted, *((name, None, connection) for name, connection in found if connection is not None)]

    def blocking(self) -> Iterable[LockInfo]:
        return introspection.blocking(self.alias, run(self._aside(self._blocking)))

    async def _blocking(self, session: MySQLSession) -> list[list[str]]:
        until = clock.now() + STATEMENT_LIMIT
        rows = await self._rows(session, introspection.PERFORMANCE_SCHEMA, until)
        if not rows and session.mariadb:
            rows = await self._rows(session, introspection.PLUGIN, until)
        last = introspection.INNODB if session.mariadb else introspection.DATA_LOCKS
        return rows + (await self._rows(session, last, until))

    async def _rows(self, session: MySQLSession, sql: bytes, until: float) -> list[list[str]]:
        """No rows if the server has no such table, or refuses us the privilege."""
        try:
            rows = await session.query(sql, until)
        except ServerError:
            return []
        return [["" if value is None else value for value in row] for row in _texts(rows)]

    def break_lock(self, info: LockInfo) -> bool:
        found = introspection.ours(info)
        return found is not None and run(self._aside(lambda session: self._break(session, *found)))

    async def _break(self, session: MySQLSession, connection: int, holds: str, noted: str) -> bool:
        """End the connection in one statement. MySQL checks the note of the hold in a statement before, since its KILL
        may read no table."""
        until = clock.now() + STATEMENT_LIMIT
        try:
            if session.mariadb:
                sql = introspection.COMPARE_AND.format(ours=holds + noted, then=f"KILL CONNECTION {connection}")
            else:
                sql = introspection.KILL_IF.format(ours=holds, connection=connection)
                if noted and (await session.query(f"SELECT {holds}{noted}".encode(), until))[0][0] != 1:
                    return False
            await session.query(sql.encode(), until)
        except ServerError as error:
            if error.code in (introspection.NOT_OURS, introspection.NO_SUCH_CONNECTION):
                return False
            if error.code not in introspection.NOT_ALLOWED:
                raise unavailable(self.alias, error) from error
            raise UnsupportedOperation(
                f"The user of alias {self.alias!r} may not end this connection: it belongs to another user. Grant it "
                "CONNECTION_ADMIN (MySQL), CONNECTION ADMIN (MariaDB 10.5.2) or SUPER."
            ) from error
        return True


def _texts(rows: Iterable[Any]) -> list[list[str | None]]:
    return [[_text(value) for value in row] for row in rows]


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)
