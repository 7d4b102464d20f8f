"""What happened to one lock lately, if that is kept."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

MODULE = "django_distlock.history"
SHOWN = 50


def recent(alias: str, name: str | None) -> dict[str, Any] | None:
    """``events``, the latest first, and ``plot``, an SVG of waits and holds; None where nothing is kept."""
    if name is None or find_spec(MODULE) is None:
        return None
    history: Any = importlib.import_module(MODULE)
    if not history.enabled():
        return None
    events = history.recent(alias, name, limit=SHOWN)
    return {"events": events, "plot": history.plot(events) if events else ""}
