"""Deletes old rows of the package."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.utils.module_loading import import_string

from django_distlock.backends.side_connection import Silent, ask
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import BackendUnavailable, DistlockError
from django_distlock.manager import name_log
from django_distlock.manager.registry import registry
from django_distlock.validation import seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_distlock.schema import Pruner

Failure = DistlockError | ImproperlyConfigured


def prune(using: str | None = None, *, days: float = 30, failed: list[Failure] | None = None) -> dict[str, int]:
    """Delete names of locks that were not seen for ``days``, and leases that ended a day ago; return the numbers.

    Unless ``using`` names one alias, also events of the history after ``DISTLOCK_HISTORY_DAYS`` (``days`` without that
    setting), and idempotency keys after their lifetime. In batches of 1,000 rows.

    Locks in use are not affected: their names are seen once a day, and fences follow the clock. What does not answer
    for two seconds, or has no such table, is left out: the errors go into ``failed``, without it the first is raised.
    """
    days = seconds("days", days) or 0.0
    errors: list[Failure] = [] if failed is None else failed
    jobs = [partial(_prune_alias, alias, days) for alias in ([using] if using is not None else registry.aliases())]
    if using is None:
        config: Any = apps.get_app_config("django_distlock")
        silent: set[str] = set()
        for kind, path in config.pruners.items():
            pruner: Pruner = import_string(path)
            try:
                jobs += [partial(_prune_table, kind, pruner, database, days, silent) for database in pruner.databases()]
            except ImproperlyConfigured as error:  # the setting of this part
                errors.append(error)
    deleted: Counter[str] = Counter()
    for job in jobs:
        try:
            deleted.update(job())
        except (DistlockError, ImproperlyConfigured) as error:
            errors.append(error)
    if failed is None and errors:
        raise errors[0]
    return dict(deleted)


def _prune_alias(alias: str, days: float) -> Mapping[str, int]:
    backend = registry.entry(alias).backend
    return {"names": name_log.prune(backend, days)} if backend.keeps_notes else backend.prune_old(days)


def _prune_table(kind: str, pruner: Pruner, database: str, days: float, silent: set[str]) -> Mapping[str, int]:
    """What a part of the package keeps in one database. ``silent``: those that do not answer are asked once."""
    if database in silent:
        return {}
    try:
        ask(database, lambda _connection: None)  # a server that hangs is known before Django's connection waits for it
        return {kind: pruner.delete(database, days)}
    except Silent as error:
        silent.add(database)
        raise BackendUnavailable(f"{error} Its {kind}, and what else is kept there, were not pruned.") from None
    except (DatabaseError, BackendUnavailable) as error:
        raise BackendUnavailable(f"The {kind} in {database!r} cannot be pruned: {one_line(error)}") from error
