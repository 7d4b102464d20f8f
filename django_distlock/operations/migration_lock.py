"""The lock around ``migrate``, which must work before the first ``migrate``: without the table of the site key.

Its key is made from constants only, so that all processes agree on it before, during and after the first migration: one
that found the site key already and one that did not would else run side by side.
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from django_distlock.conf import AliasConfig, configured, default_backend, read_alias
from django_distlock.keys import LockKey, derive_key
from django_distlock.locks.lock import Lock
from django_distlock.manager.registry import Entry, registry

MIGRATE = "django_distlock.migrate"


class MigrationEntry(Entry):
    """Hashes names with what every process knows.

    PostgreSQL's locks belong to a database and SQLite's to a file; for the others the database's name is in the key, so
    that the sites on one server do not wait for each other.
    """

    __slots__ = ()

    @property
    def ready(self) -> bool:
        return True

    def key(self, *parts: str) -> LockKey:
        key = self._keys.get(parts)
        if key is None:
            key = self._keys[parts] = derive_key(MIGRATE, "", *parts)
        return key


def migration_lock(database: str, using: str | None = None) -> Lock:
    """The lock of :data:`MIGRATE`, for who migrates ``database``. ``using``: an alias in ``DISTLOCK``; None takes locks
    of the database itself that need no table.

    ImproperlyConfigured for an alias that is not there; UnsupportedOperation for locks that no other process sees.
    """
    config = read_alias(using) if using is not None else _config(database)
    # what has one key has one name, under which a holder is listed
    name = f"{MIGRATE}:{database}:{config.alias}" if using is None else f"{MIGRATE}:{config.alias}"
    entry = registry.add(name, config, MigrationEntry)
    if not entry.backend.needs_site_key:
        raise entry.backend.unsupported("keep other processes out")
    vendor = connections[database].vendor
    where = "" if vendor in ("postgresql", "sqlite") else str(connections[database].settings_dict["NAME"])
    return Lock(f"{MIGRATE} {where}".rstrip(), using=name)


def _config(database: str) -> AliasConfig:
    """An alias whose locks are the database's own, with its options; else one as it would be without ``DISTLOCK``."""
    backend = default_backend(database)
    for alias in configured():
        try:
            config = read_alias(alias)
            fits = issubclass(import_string(config.backend), import_string(backend))
        except (ImproperlyConfigured, ImportError):  # told by the system checks
            continue
        if fits and config.options.get("database", "default") == database:
            return config
    return AliasConfig(alias=database, backend=backend, options={"database": database})
