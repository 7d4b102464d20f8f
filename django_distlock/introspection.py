"""What is held now, by anybody, and how an operator takes it away."""

from __future__ import annotations

import logging
from dataclasses import replace

from django.core.exceptions import ImproperlyConfigured

from . import signals
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


def break_lock(info: LockInfo, *, reason: str = "") -> bool:
    """Take a lock away from the very holder that ``info``, of :func:`held_locks`, shows.

    True if that holder had it and has lost it; False if it had gone, whoever has the lock now. The victim is told as of
    any loss: ``lease.lost``, :class:`LockLost`, the signal ``lock_lost``. The signal ``lock_broken`` is sent, with
    ``reason``, which should say who did it and why.

    UnsupportedOperation where the engine cannot, and for locks on tables and rows; BackendUnavailable if the server
    does not answer. On PostgreSQL and MySQL the session that holds the lock is ended, with all its locks.
    """
    backend = registry.entry(info.backend).backend
    if not backend.supports_break or "kind" in info.details:
        raise backend.unsupported("break this lock")
    broken = backend.break_lock(info)
    if broken:
        logger.warning("The lock %r of alias %r was broken: %s", info.name or info.key, info.backend, reason or "-")
        signals.send(signals.lock_broken, backend, info.name or info.key, reason=reason)
    return broken


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
        return BackendReport(alias=alias, backend=name, locks=locks, breakable=backend.supports_break)
    except DistlockError as error:
        logger.warning("The locks of alias %r cannot be listed: %s", alias, error)
        return BackendReport(alias=alias, backend=name, error=type(error.__cause__ or error).__name__)


def _named(entry: Entry, info: LockInfo) -> LockInfo:
    """An engine that keeps only a hash: give it the name, if this process knows it."""
    return info if info.name is not None else replace(info, name=entry.known_name(info.key))
