"""Deleting what the library keeps and does not need any more."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from .exceptions import BackendUnavailable, DistlockError
from .oneline import one_line
from .registry import registry
from .validation import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Other parts of the library that keep something: what it is called -> delete what is older than so many days; how much.
pruners: dict[str, Callable[[float], int]] = {}


def prune(using: str | None = None, *, days: float = 30) -> dict[str, int]:
    """Delete names of locks that were not seen for ``days``, leases that ended a day ago, and, unless ``using`` names
    one alias, what else is kept: events of the history after ``DISTLOCK_HISTORY_DAYS`` (``days`` where that is not
    set), idempotency keys after their lifetime. In batches of 1,000. Returns how much of what was deleted.

    A lock in use loses nothing: its name is seen once a day, and fences follow the clock. BackendUnavailable if a
    server does not answer, or has no such table; the others are pruned all the same.
    """
    days = seconds("days", days) or 0.0
    steps = [partial(_of_alias, alias, days) for alias in ([using] if using is not None else registry.aliases())]
    if using is None:
        steps += [partial(_of_kind, kind, days) for kind in pruners]
    deleted: Counter[str] = Counter()
    failed: list[DistlockError | ImproperlyConfigured] = []
    for step in steps:
        try:
            deleted.update(step())
        except (DistlockError, ImproperlyConfigured) as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return dict(deleted)


def _of_alias(alias: str, days: float) -> Mapping[str, int]:
    return registry.entry(alias).backend.prune_old(days)


def _of_kind(kind: str, days: float) -> Mapping[str, int]:
    try:
        return {kind: pruners[kind](days)}
    except DatabaseError as error:
        raise BackendUnavailable(f"The {kind} cannot be pruned: {one_line(error)}") from error
