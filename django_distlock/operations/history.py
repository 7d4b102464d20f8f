"""The history of each lock: when it was acquired, waited for, held, lost and broken. See the setting
``DISTLOCK_HISTORY_DAYS``."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from django.db import router

from django_distlock.conf import history_days
from django_distlock.models import LockEvent
from django_distlock.schema import Pruner

# Rows that one statement deletes.
PRUNED_AT_ONCE = 1000


def enabled() -> bool:
    """Is the history recorded?"""
    return history_days() is not None


def recent(alias: str, name: str, limit: int = 50) -> list[LockEvent]:
    """Return the latest events of one lock, newest first.

    Their fields: ``kind`` is "acquired", "released", "timed_out", "lost" or "broken"; ``at``; ``wait`` and ``hold`` are
    seconds, None where they do not apply; ``fence``; ``reason``; ``holder`` is host:pid of the process that recorded
    it: for "broken" the one that broke the lock. Text is printable.
    """
    rows = LockEvent.rows.filter(digest=digest_of(name), alias=ascii_of(alias)).order_by("-at", "-pk")
    return list(rows[:limit])


def prune(older_than_days: float, database: str | None = None) -> int:
    """Delete older events, in batches, and return how many they were."""
    until, deleted = datetime.now(UTC) - timedelta(days=older_than_days), 0
    events = LockEvent.rows.using(database or router.db_for_write(LockEvent))
    while True:
        old = list(events.filter(at__lt=until).order_by("at").values_list("pk", flat=True)[:PRUNED_AT_ONCE])
        deleted += events.filter(pk__in=old).delete()[0] if old else 0
        if len(old) < PRUNED_AT_ONCE:
            return deleted


def digest_of(name: str) -> str:
    """The column ``digest`` of a name."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def ascii_of(alias: str) -> str:
    """The column ``alias`` of an alias."""
    return alias.encode("ascii", "backslashreplace").decode("ascii")[:255]


# Without the setting `distlock prune` goes by its own --days: there may be events of an earlier time.
pruner = Pruner(
    databases=lambda: [router.db_for_write(LockEvent)],
    delete=lambda database, days: prune(history_days() or days, database),
)
