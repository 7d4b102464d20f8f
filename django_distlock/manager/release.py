"""Giving a lock back to its engine (R11), and forgetting one that was lost (R17)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django_distlock import signals
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Call, Flow
from django_distlock.exceptions import DistlockError, LockLost

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


def freed_now(holding: Holding) -> bool:
    """:func:`give_back` by the engine's short cut, if it has one for this lock; False if nothing was done."""
    grant = holding.grant
    if grant is None or not holding.backend.free_now(grant):
        return False
    holdings.end(holding)
    if signals.lock_released.receivers:
        events.send_held(signals.lock_released, holding)
    return True


def give_back(holding: Holding) -> Flow[DistlockError | None]:
    """Release at the engine, then let the next one of this process ask. Returns what went wrong with the release."""
    grant = holding.grant
    try:
        released = yield Call(holding.backend, "release", (grant,))
        if not released and grant is not None:
            lose_dead(holding, grant, "stolen", releasing=True)
    except DistlockError as error:
        lose(holding, "unreachable", releasing=True)
        return error
    finally:
        holdings.end(holding)
    if not released:
        return LockLost(
            f"The lock {holding.key.name!r} of alias {holding.backend.alias!r} was lost before its release."
        )
    events.send_held(signals.lock_released, holding)
    return None
