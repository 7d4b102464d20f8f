"""The contestants, by group; the first of each group is the bare driver that the others are measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.entries import databases, leases
from benchmarks.entries.base import no_lock

if TYPE_CHECKING:
    from benchmarks.entries.base import Entry

GROUPS: dict[str, tuple[Entry, ...]] = {
    "postgres": (*databases.OF_POSTGRES, no_lock),
    "mysql": (*databases.OF_MYSQL, no_lock),
    "sqlite": (*databases.OF_SQLITE, no_lock),
    "redis": (*leases.OF_REDIS, no_lock),
    "redlock": (*leases.OF_REDLOCK, no_lock),
    "zookeeper": (*leases.OF_ZOOKEEPER, no_lock),
}


def find(group: str, label: str) -> Entry:
    """Return the entry of a group by its label; a worker process gets only the two strings."""
    return next(entry for entry in GROUPS[group] if entry.label == label)
