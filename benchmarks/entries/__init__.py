"""The contestants, by group; the first of each group is the bare driver that the others are measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.entries import mysql, postgres, redis, redlock, sqlite, zookeeper
from benchmarks.entries.base import NoLock

if TYPE_CHECKING:
    from benchmarks.entries.base import Entry

GROUPS: dict[str, tuple[type[Entry], ...]] = {
    "postgres": (*postgres.ENTRIES, NoLock),
    "mysql": (*mysql.ENTRIES, NoLock),
    "sqlite": (*sqlite.ENTRIES, NoLock),
    "redis": (*redis.ENTRIES, NoLock),
    "redlock": (*redlock.ENTRIES, NoLock),
    "redlock-far": redlock.FAR,
    "zookeeper": (*zookeeper.ENTRIES, NoLock),
}


def find(group: str, label: str) -> type[Entry]:
    """Return the entry of a group by its label; a worker process gets only the two strings."""
    return next(entry for entry in GROUPS[group] if entry.label == label)
