"""The storage of claims and answers: a table or a cache. Also operations on all tables: purge, forget a user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from django_distlock.idempotency.conf import config
from django_distlock.idempotency.http.requests import user_label
from django_distlock.schema import NOW, Pruner

from .base import Storage, TooManyKeys
from .database import TABLE, DatabaseStorage
from .encoding import require_cryptography

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Storage", "TooManyKeys", "forget_user", "purge", "storage_of", "table_in"]


def storage_of(alias: str | None = None) -> Storage:
    """The storage that the setting names; with ``alias`` the table in that database, for the exactly-once mode."""
    require_cryptography()
    if alias is None and config().storage == "cache":
        from .cache import CacheStorage  # a site that keeps its keys in a table does not import it

        return CacheStorage(config().cache)
    return table_in(alias or config().database)


def table_in(alias: str) -> DatabaseStorage:
    """The table in one database. ImproperlyConfigured for a database whose SQL is not known."""
    if not is_known(alias):
        raise ImproperlyConfigured(
            f"Idempotency keys need PostgreSQL, MySQL, MariaDB or SQLite; {alias!r} is "
            f"{connections[alias].display_name}. Keep them in another database, or set "
            'DISTLOCK_IDEMPOTENCY["STORAGE"] = "cache".'
        )
    return DatabaseStorage(alias)


def purge() -> int:
    """Delete the records whose lifetime is over, in every database. Returns their number."""
    return sum(_purge(alias) for alias in databases())


def forget_user(user: Any) -> int:
    """Delete every stored answer and key of ``user``, in each database that has the table. Returns their number.

    A request of this user that is running keeps its key, and its answer is stored when it ends. A request that is
    repeated afterwards acts again. Keys in a cache cannot be listed: they stay until their lifetime ends.
    Raises BackendUnavailable if a database does not answer.
    """
    return sum(table_in(alias).forget(user_label(user)) for alias in databases() if _has_table(alias))


def databases() -> Iterable[str]:
    """The aliases in which the table is used: the routers allow it, and its SQL is known."""
    return (alias for alias in connections if is_allowed(alias) and is_known(alias))


def is_known(alias: str) -> bool:
    """Is the SQL of this database known?"""
    return connections[alias].vendor in NOW


def is_allowed(alias: str) -> bool:
    """Do the routers allow the table in this database?"""
    return bool(router.allow_migrate(alias, "django_distlock", model_name="idempotencyrecord"))


def _purge(alias: str) -> int:
    return sum(iter(table_in(alias).purge, 0)) if _has_table(alias) else 0


def _has_table(alias: str) -> bool:
    connection = connections[alias]
    return connection.introspection.identifier_converter(TABLE) in connection.introspection.table_names()


# An expired record is of no use, however many days `distlock prune --days` keeps of other things.
pruner = Pruner(databases, lambda database, days: _purge(database))
