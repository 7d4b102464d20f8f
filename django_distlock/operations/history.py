"""The recent history of each lock: who got it when, waited and held for how long, and what went wrong.

Off unless ``DISTLOCK_HISTORY_DAYS`` is set. Then the signals are recorded: queued in this process and written in
batches by a thread with a database connection of its own, so that no acquire and no release pays a statement. Under a
flood part of the ordinary events is left out, never a timeout, a loss or a break as long as the database takes them.
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import router

from django_distlock import signals
from django_distlock.concurrency.text import one_line
from django_distlock.conf import history_days
from django_distlock.models import LockEvent
from django_distlock.schema import Pruner, pruners

from .history_plot import svg
from .recorder import Recorder, at_exit_and_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.utils.safestring import SafeString

UID = "django_distlock.history"
# Rows that one statement deletes.
PRUNED_AT_ONCE = 1000


@dataclass(slots=True, kw_only=True, frozen=True)
class Event:
    """One thing that happened to one lock. ``wait`` and ``hold`` are seconds, None where they do not apply.

    ``kind`` is "acquired", "released", "timed_out", "lost" or "broken"; ``holder`` is host:pid of whoever it happened
    to, and for "broken" of whoever did it. Text is printable.
    """

    name: str
    using: str
    kind: str
    at: datetime
    wait: float | None = None
    hold: float | None = None
    fence: int | None = None
    reason: str = ""
    holder: str = ""


def enabled() -> bool:
    """Is the history recorded?"""
    return history_days() is not None


def recent(alias: str, name: str, limit: int = 50) -> list[Event]:
    """The latest events of one lock, the newest first."""
    rows = LockEvent.rows.filter(digest=_digest(name), alias=_ascii(alias)).order_by("-at", "-pk")[:limit]
    return [
        Event(
            name=row.name,
            using=row.alias,
            kind=row.kind,
            at=row.at,
            wait=row.wait,
            hold=row.hold,
            fence=row.fence,
            reason=row.reason,
            holder=row.holder,
        )
        for row in rows
    ]


def prune(older_than_days: float, database: str | None = None) -> int:
    """Delete the events that are older, some at a time; how many they were."""
    until, deleted = datetime.now(UTC) - timedelta(days=older_than_days), 0
    events = LockEvent.rows.using(database or router.db_for_write(LockEvent))
    while True:
        old = list(events.filter(at__lt=until).order_by("at").values_list("pk", flat=True)[:PRUNED_AT_ONCE])
        deleted += events.filter(pk__in=old).delete()[0] if old else 0
        if len(old) < PRUNED_AT_ONCE:
            return deleted


def plot(events: list[Event]) -> SafeString:
    """Waits and holds as a small SVG to be put into a page; empty if there is nothing to draw."""
    return svg(events)


def configure() -> None:
    """Record, or stop recording, as the settings say."""
    try:
        on = enabled()
    except ImproperlyConfigured:  # the system check says so
        on = False
    for kind, signal in _SIGNALS.items():
        if on:
            signal.connect(_RECEIVERS[kind], dispatch_uid=UID, weak=False)
        else:
            signal.disconnect(dispatch_uid=UID)


def _settings_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "DISTLOCK_HISTORY_DAYS":
        configure()


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _ascii(alias: str) -> str:
    return alias.encode("ascii", "backslashreplace").decode("ascii")[:255]


def _receiver(kind: str) -> Callable[..., None]:
    rare = kind not in ("acquired", "released")

    def receive(sender: type, *, name: str, using: str, **facts: Any) -> None:
        recorder.put((kind, datetime.now(UTC), name, using, facts), rare=rare)

    return receive


def _write(items: Sequence[tuple[str, datetime, str, str, dict[str, Any]]]) -> None:
    holder = one_line(f"{socket.gethostname()}:{os.getpid()}")[:255]
    LockEvent.rows.bulk_create(
        LockEvent(
            alias=_ascii(using),
            digest=_digest(name),
            name=one_line(name)[:512],
            kind=kind,
            at=at,
            wait=facts.get("wait"),
            hold=None if kind == "acquired" else facts.get("hold"),
            fence=facts.get("fence"),
            reason=one_line(facts.get("reason", ""))[:255],
            holder=holder,
        )
        for kind, at, name, using, facts in items
    )


def _prune() -> None:
    days = history_days()
    if days is not None:
        prune(days)


_SIGNALS = {
    "acquired": signals.lock_acquired,
    "released": signals.lock_released,
    "timed_out": signals.lock_timed_out,
    "lost": signals.lock_lost,
    "broken": signals.lock_broken,
}
_RECEIVERS = {kind: _receiver(kind) for kind in _SIGNALS}

recorder = Recorder(_write, _prune)
# as long as the setting says; where it is not set, what was recorded before goes with the rest
pruners["events"] = Pruner(
    databases=lambda: [router.db_for_write(LockEvent)],
    delete=lambda database, days: prune(days if (kept := history_days()) is None else kept, database),
)
at_exit_and_fork(recorder)
setting_changed.connect(_settings_changed, dispatch_uid=UID)
