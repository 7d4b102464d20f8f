"""A small drawing of how long a lock was waited for and held. SVG without styles or scripts: it may stand in any page,
takes the colour of its text, and tells waits from holds by shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from .history import Event

WIDTH, HEIGHT, MARGIN, LABELS = 480, 140, 16, 44
# Shorter times than this many seconds are drawn as this.
LEAST = 0.001


def svg(events: Iterable[Event]) -> SafeString:
    """Over time, on a logarithmic scale: a bar for each hold, a ring for each wait, a cross where it went wrong."""
    shown = sorted((event for event in events if event.wait is not None or event.hold is not None), key=_when)
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


def _when(event: Event) -> datetime:
    return event.at


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def _description(first: datetime, last: datetime, waits: list[float], holds: list[float], wrong: int) -> str:
    """What the drawing shows, for those who do not see it."""
    said = [
        _("From %(first)s to %(last)s (UTC).")
        % {"first": f"{first:%Y-%m-%d %H:%M:%S}", "last": f"{last:%Y-%m-%d %H:%M:%S}"}
    ]
    if waits:
        said.append(
            _("Waits (rings): %(count)d, the longest %(longest)s.")
            % {"count": len(waits), "longest": _seconds(max(waits))}
        )
    if holds:
        said.append(
            _("Holds (bars): %(count)d, the longest %(longest)s.")
            % {"count": len(holds), "longest": _seconds(max(holds))}
        )
    if wrong:
        said.append(_("Ended badly (crosses): %(count)d.") % {"count": wrong})
    return " ".join(said)
