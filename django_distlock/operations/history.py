"""The history of each lock: when it was acquired, waited for, held, lost and broken. See the setting
``DISTLOCK_HISTORY_DAYS``."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING

from django.db import router
from django.db.models import F
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from django_distlock.conf import history_days
from django_distlock.models import LockEvent
from django_distlock.schema import Pruner

if TYPE_CHECKING:
    from collections.abc import Iterable

# Rows that one statement deletes.
PRUNED_AT_ONCE = 1000
# Of the drawing, in its own units.
WIDTH, HEIGHT, MARGIN, LABELS = 480, 140, 16, 44
# The shortest time on its scale, in seconds: shorter ones are drawn as this.
LEAST = 0.001


@dataclass(slots=True, kw_only=True, frozen=True)
class Event:
    """One thing that happened to one lock. ``wait`` and ``hold`` are seconds, None where they do not apply.

    ``kind`` is "acquired", "released", "timed_out", "lost" or "broken"; ``holder`` is host:pid of the process that
    recorded it: for "broken" the one that broke the lock. Text is printable.
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
    """Return the latest events of one lock, newest first."""
    names = [field.name for field in fields(Event) if field.name != "using"]
    rows = LockEvent.rows.filter(digest=digest_of(name), alias=ascii_of(alias)).order_by("-at", "-pk")
    return [Event(**row) for row in rows.values(*names, using=F("alias"))[:limit]]


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


def plot(events: Iterable[Event]) -> SafeString:
    """Return waits and holds over time as an SVG to be put into a page; empty if there is nothing to draw.

    On a logarithmic scale: a bar for each hold, a ring for each wait, a cross for each timeout or loss. Without styles
    and scripts: it takes the colour of the text around it, and tells waits from holds by shape.
    """
    shown = sorted(
        (event for event in events if event.wait is not None or event.hold is not None), key=attrgetter("at")
    )
    if not shown:
        return mark_safe("")
    first, last = shown[0].at, shown[-1].at
    longest = max(LEAST * 10, *(max(event.wait or 0, event.hold or 0) for event in shown))
    waits = [event.wait for event in shown if event.wait is not None]
    holds = [event.hold for event in shown if event.hold is not None]

    def x(event: Event) -> float:
        span = (last - first).total_seconds()
        part = (event.at - first).total_seconds() / span if span else 0.5
        return round(LABELS + part * (WIDTH - LABELS - MARGIN), 1)

    def y(seconds: float) -> float:
        part = math.log(max(seconds, LEAST) / LEAST) / math.log(longest / LEAST)
        return round(HEIGHT - MARGIN - part * (HEIGHT - 2 * MARGIN), 1)

    bottom = HEIGHT - MARGIN
    bars = [(x(event), y(event.hold), bottom) for event in shown if event.hold is not None]
    rings = [(x(event), y(event.wait)) for event in shown if event.wait is not None]
    crosses = [(x(event), y(event.wait or event.hold or 0)) for event in shown if event.kind in ("timed_out", "lost")]
    return format_html(
        '<svg class="distlock-plot" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" width="{}" height="{}" '
        'role="img" direction="ltr" fill="none" stroke="currentColor"><title>{}</title><desc>{}</desc>'
        '<path d="M{} {}V{}H{}" stroke-opacity="0.5"/>{}{}{}{}</svg>',
        *(WIDTH, HEIGHT, WIDTH, HEIGHT),
        _("Waits and holds of this lock"),
        _description(first, last, waits, holds, len(crosses)),
        *(LABELS, MARGIN, bottom, WIDTH - MARGIN),
        format_html_join("", '<path d="M{0} {1}V{2}" stroke-width="3" stroke-opacity="0.6"/>', bars),
        format_html_join("", '<circle cx="{}" cy="{}" r="3"/>', rings),
        format_html_join("", '<path d="M{0} {1}m-4 -4l8 8m0 -8l-8 8" stroke-width="2"/>', crosses),
        format_html_join(
            "",
            '<text x="{}" y="{}" fill="currentColor" stroke="none" font-size="11" text-anchor="end">{}</text>',
            [(LABELS - 6, y(longest) + 4, _seconds(longest)), (LABELS - 6, bottom + 4, _seconds(LEAST))],
        ),
    )


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _description(first: datetime, last: datetime, waits: list[float], holds: list[float], wrong: int) -> str:
    """The content of the drawing, for blind readers."""
    said = [
        _("From %(first)s to %(last)s (UTC).")
        % {"first": f"{first:%Y-%m-%d %H:%M:%S}", "last": f"{last:%Y-%m-%d %H:%M:%S}"}
    ]
    for text, values in (
        (_("Waits (rings): %(count)d, the longest %(longest)s."), waits),
        (_("Holds (bars): %(count)d, the longest %(longest)s."), holds),
    ):
        if values:
            said.append(text % {"count": len(values), "longest": _seconds(max(values))})
    if wrong:
        said.append(_("Ended badly (crosses): %(count)d.") % {"count": wrong})
    return " ".join(said)


# `distlock prune` goes by the setting. Without the setting, by its own --days: there may be events of an earlier time.
pruner = Pruner(
    databases=lambda: [router.db_for_write(LockEvent)],
    delete=lambda database, days: prune(days if (kept := history_days()) is None else kept, database),
)
