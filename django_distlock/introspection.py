"""What is held now, by anybody."""

from __future__ import annotations

import logging
from dataclasses import replace

from django.core.exceptions import ImproperlyConfigured

from .exceptions import DistlockError
from .records import BackendReport, LockInfo
from .registry import Entry, registry

logger = logging.getLogger("django_distlock.introspection")


def held_locks(using: str | None = None) -> list[BackendReport]:
    """The held locks of one alias, or of all: one report per alias.

    On PostgreSQL, MySQL and MariaDB also the locks on tables and rows of the alias's database that keep somebody
    waiting: ``details["kind"]`` is "relation" or "row", ``details["blocks"]`` the sessions that wait.

    A backend that does not answer is data, not an exception: its report has ``error``, the class of the error. The
    error itself, which may hold an address, goes to the log only.
    """
    return [_report(alias) for alias in ([using] if using is not None else registry.aliases())]


def _report(alias: str) -> BackendReport:
    try:
        entry = registry.entry(alias)
    except ImproperlyConfigured as error:
        logger.warning("Alias %r: %s", alias, error)
        return BackendReport(alias=alias, backend="", error=type(error).__name__)
    backend = entry.backend
    name = type(backend).__name__
    try:
        locks = tuple(_named(entry, info) for info in (*backend.inspect(), *backend.blocking()))
        return BackendReport(alias=alias, backend=name, locks=locks)
    except DistlockError as error:
        logger.warning("The locks of alias %r cannot be listed: %s", alias, error)
        return BackendReport(alias=alias, backend=name, error=type(error.__cause__ or error).__name__)


def _named(entry: Entry, info: LockInfo) -> LockInfo:
    """An engine that keeps only a hash: give it the name, if this process knows it."""
    return info if info.name is not None else replace(info, name=entry.known_name(info.key))
