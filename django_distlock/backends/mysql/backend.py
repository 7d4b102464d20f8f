"""GET_LOCK of MySQL and MariaDB (https://dev.mysql.com/doc/refman/8.4/en/locking-functions.html,
https://mariadb.com/kb/en/get_lock/) on dedicated sessions.

Its locks belong to the server, not to a database, and survive a rollback; so names are hashed with the site key, and a
lock taken inside a transaction is released after it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from django_distlock.backends.sessions.backend import SessionLockBackend
from django_distlock.backends.sessions.session import ServerError, SessionDead, unavailable
from django_distlock.exceptions import BackendUnavailable, UnsupportedOperation

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
        return self._ask_beside(partial(introspection.listed, self.alias, self.known_names()))

    def _held_statement(self, keys: Iterable[str]) -> bytes:
        """This needs no privilege, unlike the list of all locks."""
        names = " UNION ALL ".join(f"SELECT '{key}' AS name" for key in keys)
        return f"SELECT name FROM ({names}) n WHERE IS_USED_LOCK(name) IS NOT NULL".encode()  # noqa: S608 - LockKey.text

    def diagnose(self) -> Iterable[Finding]:
        yield from super().diagnose()
        yield from doctor.findings(self._ask, self.wait_sessions)

    def break_lock(self, info: LockInfo) -> bool:
        try:
            return self._ask_beside(partial(introspection.end, info))
        except BackendUnavailable as error:
            if error.__cause__ is None or introspection.code_of(error.__cause__) not in introspection.NOT_ALLOWED:
                raise
            raise UnsupportedOperation(
                f"The user of alias {self.alias!r} may not end this connection: it belongs to another user. Grant it "
                "CONNECTION_ADMIN (MySQL), CONNECTION ADMIN (MariaDB 10.5.2) or SUPER."
            ) from error
