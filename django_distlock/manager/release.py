"""Giving a lock back to its engine (R11), and forgetting one that was lost (R17)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django_distlock import signals
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.exceptions import DistlockError, LockLost

from . import events
from .lock_table import lock_table

if TYPE_CHECKING:
    from django_distlock.records import Grant

    from .hold import Hold


logger = logging.getLogger("django_distlock.locks")


def lose(hold: Hold, reason: str, *, releasing: bool = False) -> bool:
    """Mark ``hold`` as lost and tell the callbacks, the signal and the log. False if that was known."""
    if not lock_table.lose(hold, reason, releasing=releasing):
        return False
    tell(hold, reason)
    return True


def lose_dead(hold: Hold, grant: Grant, reason: str, *, releasing: bool = False) -> bool:
    """:func:`lose` for what its backend calls dead, or the engine not ours: for that ``reason``, unless the lease is
    over by now. Some engines know that themselves, and any of them may be asked before the end and answer after it."""
    expired = grant.valid_until is not None and monotonic() >= grant.valid_until
    return lose(hold, "expired" if expired else reason, releasing=releasing)


def tell(hold: Hold, reason: str) -> None:
    """``hold`` has been marked as lost: tell the callbacks, the signal and the log."""
    logger.warning("The lock %r of alias %r was lost: %s.", hold.key.name, hold.backend.alias, reason)
    for callback in hold.callbacks:
        try:
            callback()
        except Exception:
            logger.exception("A callback for the loss of the lock %r failed.", hold.key.name)
    events.send_held(signals.lock_lost, hold, reason=reason)


def freed_now(hold: Hold) -> bool:
    """:func:`give_back` by the engine's short cut, if it has one for this lock; False if nothing was done."""
    grant = hold.grant
    if grant is None or not hold.backend.release_fast(grant):
        return False
    lock_table.end(hold)
    if signals.lock_released.receivers:
        events.send_held(signals.lock_released, hold)
    return True


def give_back(hold: Hold) -> Flow[DistlockError | None]:
    """Release at the engine, then let the next one of this process ask. Returns what went wrong with the release."""
    grant = hold.grant
    try:
        released = yield Step(hold.backend.release, hold.backend.arelease, (grant,))
        if not released and grant is not None:
            lose_dead(hold, grant, "stolen", releasing=True)
    except DistlockError as error:
        lose(hold, "unreachable", releasing=True)
        return error
    finally:
        lock_table.end(hold)
    if not released:
        return LockLost(f"The lock {hold.key.name!r} of alias {hold.backend.alias!r} was lost before its release.")
    events.send_held(signals.lock_released, hold)
    return None
