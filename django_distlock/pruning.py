"""Deleting what the library keeps and does not need any more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .registry import registry
from .validation import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

# Other parts of the library that keep something: what it is called -> delete what is older than so many days; how much.
pruners: dict[str, Callable[[float], int]] = {}


def prune(using: str | None = None, *, days: float = 30) -> dict[str, int]:
    """Delete names of locks that were not seen for ``days``, leases that ended a day ago, and, unless ``using`` names
    one alias, what else is kept. In batches of 1,000. Returns how much of what was deleted.

    A lock in use loses nothing: its name is seen once a day, and fences follow the clock. BackendUnavailable if a
    server does not answer, or has no such table.
    """
    days = seconds("days", days) or 0.0
    deleted: Counter[str] = Counter()
    for alias in [using] if using is not None else registry.aliases():
        deleted.update(registry.entry(alias).backend.prune_old(days))
    if using is None:
        deleted.update({kind: delete(days) for kind, delete in pruners.items()})
    return dict(deleted)
