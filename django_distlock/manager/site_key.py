"""The site key: the value of the setting, else of the row that ``migrate`` creates in the default database.

Lock names are global to a server (MySQL's GET_LOCK even across databases). The key keeps the locks of two sites apart,
and keeps other users of the server from guessing a name. Each process reads it once: if it changed while processes
run, they would silently no longer exclude each other.

A copy of the database, such as staging or the databases of parallel tests, has the same row. So the database itself is
part of a key that comes from the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router

from django_distlock.backends.side_connection import Silent, ask
from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.deadline import PATIENCE
from django_distlock.concurrency.flow import in_task, run
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.parking import FairLock
from django_distlock.conf import site_key_setting
from django_distlock.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

TABLE = "django_distlock_sitekey"
CURES = (
    f"Run `python manage.py migrate`, which makes it in the table {TABLE} of the {DEFAULT_DB_ALIAS!r} database, or set "
    "DISTLOCK_SITE_KEY."
)
# What the server calls the database. A setting may differ between processes that use one, behind a pooler for example.
# A file of SQLite has no name that is the same for all processes: containers mount it at different paths.
NAMED = {"postgresql": "current_database()", "mysql": "LOWER(DATABASE())"}
NOT_INSTALLED = "Add 'django_distlock' to INSTALLED_APPS. "
KEPT_OUT = (
    f"A router in DATABASE_ROUTERS keeps the app django_distlock out of the {DEFAULT_DB_ALIAS!r} database: let it in. "
)


class SiteKeyHolder:
    """The site key of this process, read once."""

    def __init__(self) -> None:
        self.pinned: str | None = None
        # the same without the name of the database, for what is stored in it: a renamed database keeps its records
        self.portable: str | None = None
        self._turns = FairLock()
        self._reads = Background("distlock-site-key")

    def load(self) -> str:
        """:meth:`aload` in this thread."""
        return run(self.aload())

    async def aload(self, patience: float = PATIENCE) -> str:
        """The key, which is read within ``patience`` seconds.

        Without setting and row BackendUnavailable is raised; its message names the two remedies.
        """
        if self.pinned is not None:
            return self.pinned
        if key := site_key_setting():
            return self._pin(key, key)
        until = clock.now() + patience
        turn = self._turns.turn()  # one caller reads; those behind it find the key, and nobody overtakes them
        try:
            if not await turn.acquire(patience):
                raise CallTimeout
            return self.pinned or self._pin(*await self._read(until))
        except (CallTimeout, NotStarted) as error:
            raise BackendUnavailable("The site key of django-distlock was not read in time.") from error
        finally:
            turn.release()

    async def _read(self, until: float) -> tuple[str, str]:
        patience = until - clock.now()
        if not in_task():
            return read_row(patience)
        if _in_memory():  # another thread would have another database, or wait for this one's transaction
            return await sync_to_async(read_row)(patience)
        # not in Django's thread for the ORM, which may be busy for long
        return await self._reads.call(until, _read_in_thread, patience)

    def _pin(self, portable: str, key: str) -> str:
        self.portable, self.pinned = portable, key
        return key

    def forget(self) -> None:
        """Read the key again at the next use. Called when the settings have changed."""
        self.pinned = self.portable = None


def _read_in_thread(patience: float) -> tuple[str, str]:
    try:
        return read_row(patience)
    finally:
        connections[DEFAULT_DB_ALIAS].close()  # that of this thread, which nobody else closes


def _in_memory() -> bool:
    connection: Any = connections[DEFAULT_DB_ALIAS]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def migrated() -> bool:
    """Does `migrate` create the row? A database router may prevent it."""
    return router.allow_migrate(DEFAULT_DB_ALIAS, "django_distlock", model_name="sitekey")


def read_row(patience: float = PATIENCE) -> tuple[str, str]:
    """The key of the row, and the same with the name of its database, which is the site key.

    It is read on a separate connection; BackendUnavailable if there is none within ``patience`` seconds.

    The caller's connection may be in a transaction that does not see the row, and has no time limit.
    """
    missing = apps.apps_ready and not apps.is_installed("django_distlock")
    cures = f"{NOT_INSTALLED if missing else ''}{'' if migrated() else KEPT_OUT}{CURES}"
    try:
        row = ask(DEFAULT_DB_ALIAS, _row, patience)
    except Silent as error:
        raise BackendUnavailable(f"The site key of django-distlock could not be read: {error}") from error
    except DatabaseError as error:
        raise BackendUnavailable(f"The site key of django-distlock could not be read. {cures}") from error
    if row is None:
        raise BackendUnavailable(f"There is no site key for django-distlock. {cures}")
    key, database = row
    return key, f"{key}@{database}" if database else key


def _row(connection: BaseDatabaseWrapper) -> Any:
    """The key and the database that it is in."""
    with connection.cursor() as cursor:
        named = NAMED.get(connection.vendor, "''")
        cursor.execute(f"SELECT site_key, {named} FROM {TABLE} WHERE id = 1")  # noqa: S608 - constants
        row = cursor.fetchone()
    if row is not None and _in_memory():
        return row[0], connection.settings_dict["NAME"]
    return row


site_key = SiteKeyHolder()
# the child may use another database: Django's test runner gives each of its processes a copy
at_fork(Order.PRIMITIVES, child=site_key.__init__)  # type: ignore[misc]
