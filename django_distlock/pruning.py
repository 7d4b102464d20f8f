"""Deleting what nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable

# What others keep: a name -> deletes what is older than so many days, and says how much that was.
pruners: dict[str, Callable[[float], int]] = {}


def prune(using: str | None = None, *, days: float = 30.0) -> dict[str, int]:
    """Delete expired leases of one alias, or of all, and what is older than ``days``; how much of each.

    BackendUnavailable if a server does not answer. Leases are deleted a day after their end whatever ``days`` says.
    """
    deleted = {"leases": 0}
    stores: set[Any] = set()
    for alias in [using] if using is not None else registry.aliases():
        backend: Any = registry.entry(alias).backend
        if hasattr(backend, "prune") and (backend.options.get("database") not in stores):
            stores.add(backend.options.get("database"))
            deleted["leases"] += backend.prune()
    if using is None:
        deleted.update({name: delete(days) for name, delete in pruners.items()})
    return deleted
