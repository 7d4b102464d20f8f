"""A lock was lost: forget it, and tell whoever asked to be told (R17)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django_distlock import signals
from django_distlock.concurrency.clock import monotonic

from . import events
from .lock_table import holdings

if TYPE_CHECKING:
    from django_distlock.records import Grant

    from .hold import Holding

logger = logging.getLogger("django_distlock.loss")


def lose(holding: Holding, reason: str, *, releasing: bool = False) -> bool:
    """Mark ``holding`` as lost and tell the callbacks, the signal and the log. False if that was known."""
    if not holdings.lose(holding, reason, releasing=releasing):
        return False
    tell(holding, reason)
    return True


def lose_dead(holding: Holding, grant: Grant, reason: str, *, releasing: bool = False) -> bool:
    """:func:`lose` for what its backend calls dead, or the engine not ours: for that ``reason``, unless the lease is
    over by now. Some engines know that themselves, and any of them may be asked before the end and answer after it."""
    expired = grant.valid_until is not None and monotonic() >= grant.valid_until
    return lose(holding, "expired" if expired else reason, releasing=releasing)


def tell(holding: Holding, reason: str) -> None:
    """``holding`` has been marked as lost: tell the callbacks, the signal and the log."""
    logger.warning("The lock %r of alias %r was lost: %s.", holding.key.name, holding.backend.alias, reason)
    for callback in holding.callbacks:
        try:
            callback()
        except Exception:
            logger.exception("A callback for the loss of the lock %r failed.", holding.key.name)
    events.send_held(signals.lock_lost, holding, reason=reason)
