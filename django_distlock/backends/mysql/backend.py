"""GET_LOCK of MySQL and MariaDB (https://dev.mysql.com/doc/refman/8.4/en/locking-functions.html,
https://mariadb.com/kb/en/get_lock/) on dedicated sessions.

Its locks belong to the server, not to a database, and survive a rollback; so names are hashed with the site key, and a
lock taken inside a transaction is released after it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from django_distlock.backends.sessions.backend import SessionLockBackend

from . import doctor, introspection

try:
    from .session import MySQLSession, open_session
except ImportError as error:
    raise ImproperlyConfigured(
        "The MySQL lock backend needs mysqlclient: pip install 'django-distlock[mysql]'."
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.keys import LockKey
    from django_distlock.records import Finding, LockInfo


class NamedLockBackend(SessionLockBackend[MySQLSession]):
    """OPTIONS: ``database`` (the alias whose server is used), ``session_database`` (another alias for the dedicated
    sessions, which connects directly where the first goes through a proxy), ``wait_sessions`` (default 8)."""

    vendor, products = "mysql", "MySQL or MariaDB"
    not_allowed = introspection.NOT_ALLOWED
    needs_to_break = "Grant it CONNECTION_ADMIN (MySQL), CONNECTION ADMIN (MariaDB 10.5.2) or SUPER."

    def _connect(self, waits: bool) -> MySQLSession:
        return open_session(self.alias, self.session_database, waits)

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

    def _end(self, info: LockInfo, connection: BaseDatabaseWrapper) -> bool:
        return introspection.end(info, connection)
