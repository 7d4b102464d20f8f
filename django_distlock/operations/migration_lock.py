"""The lock around ``migrate``. It works before the first ``migrate``, without the table of the site key.

Its key is made of constants, so that all processes agree on it before, during and after the first migration. With a
site key, a process that has found it and one that has not would run at the same time.
"""

from __future__ import annotations

from dataclasses import replace

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from django_distlock.conf import AliasConfig, configured, default_backend, read_alias
from django_distlock.keys import LockKey, derive_key
from django_distlock.locks.lock import Lock
from django_distlock.manager.registry import Entry, registry

MIGRATE = "django_distlock.migrate"


class MigrationEntry(Entry):
    """Hashes names with a constant instead of the site key."""

    __slots__ = ()

    @property
    def ready(self) -> bool:
        return True

    def key(self, *parts: str) -> LockKey:
        return derive_key(MIGRATE, "", *parts)


def migration_lock(database: str, using: str | None = None) -> Lock:
    """The lock for a process that migrates ``database``. ``using`` is an alias in ``DISTLOCK``; by default the lock is
    one of the database itself, which needs no table.

    ImproperlyConfigured for an unknown alias; UnsupportedOperation for locks that other processes do not see.
    """
    # no namespace: there is one migration for all tenants
    config = replace(read_alias(using) if using is not None else _config(database), namespace="")
    # locks with the same key have the same name, under which the holder is listed
    name = f"{MIGRATE}:{database}:{config.alias}" if using is None else f"{MIGRATE}:{config.alias}"
    entry = registry.add(name, config, MigrationEntry)
    if not entry.backend.needs_site_key:
        raise entry.backend.unsupported("keep other processes out")
    # PostgreSQL's locks belong to a database and SQLite's to a file. Elsewhere the name of the database is part of the
    # key, so that the sites on one server do not wait for each other.
    vendor = connections[database].vendor
    where = "" if vendor in ("postgresql", "sqlite") else str(connections[database].settings_dict["NAME"])
    return Lock(f"{MIGRATE} {where}".rstrip(), using=name)


def _config(database: str) -> AliasConfig:
    """The alias whose locks are in this database; else that which the database would have without ``DISTLOCK``."""
    backend = default_backend(database)
    for alias in configured():
        try:
            config = read_alias(alias)
            fits = issubclass(import_string(config.backend), import_string(backend))
        except (ImproperlyConfigured, ImportError):  # reported by the system checks
            continue
        if fits and config.options.get("database", "default") == database:
            return config
    return AliasConfig(alias=database, backend=backend, options={"database": database})
