"""What happened to one lock lately, if that is kept."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from django.utils.translation import gettext_lazy as _

from django_distlock.oneline import one_line

from .text import duration, moment

MODULE = "django_distlock.history"
SHOWN = 50
KINDS = {
    "acquired": _("acquired"),
    "released": _("released"),
    "timed_out": _("timed out"),
    "lost": _("lost"),
    "broken": _("broken"),
}


def recent(alias: str, name: str | None) -> dict[str, Any] | None:
    """``events``, the latest first, and ``plot``, an SVG of waits and holds; None where nothing is kept."""
    if name is None or find_spec(MODULE) is None:
        return None
    history: Any = importlib.import_module(MODULE)
    if not history.enabled():
        return None
    events = history.recent(alias, name, limit=SHOWN)
    return {"events": [_told(event) for event in events], "plot": history.plot(events) if events else ""}


def _told(event: Any) -> dict[str, Any]:
    return {
        "at": moment(event.at),
        "what": KINDS.get(event.kind, event.kind),
        "wait": _seconds(event.wait),
        "hold": _seconds(event.hold),
        "who": one_line(event.holder, 200),
        "reason": one_line(event.reason, 200),
    }


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s" if value < 1 else duration(value)
