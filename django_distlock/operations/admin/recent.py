"""What happened to one lock lately, if that is kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.db import Error as DatabaseGone
from django.db import router, transaction
from django.utils.translation import gettext_lazy as _

from django_distlock.concurrency.text import one_line
from django_distlock.models import LockEvent
from django_distlock.operations import history

from .text import duration, moment

logger = logging.getLogger("django_distlock.operations")

if TYPE_CHECKING:
    from django_distlock.operations.history import Event

SHOWN = 50
KINDS = {
    "acquired": _("acquired"),
    "released": _("released"),
    "timed_out": _("timed out"),
    "lost": _("lost"),
    "broken": _("broken"),
}


def recent(alias: str, name: str | None) -> dict[str, Any] | None:
    """``events``, the latest first, and ``plot``, an SVG of waits and holds; or ``error``, the class of what prevented
    reading them. None where nothing is kept."""
    if name is None or not history.enabled():
        return None
    try:
        # what fails must not spoil a transaction that the page is in
        with transaction.atomic(using=router.db_for_read(LockEvent)):
            events = history.recent(alias, name, limit=SHOWN)
    except DatabaseGone as error:
        logger.warning("The history of locks cannot be read: %s", one_line(error))
        return {"error": type(error).__name__}
    return {"events": [_told(event) for event in events], "plot": history.plot(events) if events else ""}


def _told(event: Event) -> dict[str, Any]:
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
