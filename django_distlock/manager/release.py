"""Giving a lock back to its engine (R11), and forgetting one that was lost (R17)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from django_distlock import signals
from django_distlock.concurrency import clock
from django_distlock.exceptions import DistlockError, LockLost

from . import events
from .lock_table import State, lock_table

if TYPE_CHECKING:
    from django_distlock.records import Grant

    from .lock_table import Hold


logger = logging.getLogger("django_distlock.locks")


def lose(hold: Hold, reason: str, *, releasing: bool = False) -> bool:
    """Mark ``hold`` as lost and notify the callbacks, the signal and the log. False if the loss was known."""
    if not lock_table.lose(hold, reason, releasing=releasing):
        return False
    notify_of_loss(hold, reason)
    return True


def lose_dead(hold: Hold, grant: Grant, reason: str, *, releasing: bool = False) -> bool:
    """:func:`lose` for ``reason``, or because the lease has expired, if its time is over.

    The request may have been sent before the end of the lease and answered after it.
    """
    expired = grant.valid_until is not None and clock.now() >= grant.valid_until
    return lose(hold, "expired" if expired else reason, releasing=releasing)


def notice_loss(hold: Hold) -> bool:
    """Is it lost, as far as this process can know without asking the engine?"""
    grant = hold.grant
    if hold.lost is not None or hold.state is State.ENDED or grant is None:
        return hold.lost is not None
    if grant.valid_until is not None and clock.now() >= grant.valid_until:
        return lose(hold, "expired") or hold.lost is not None
    if not hold.backend.look(grant):
        return lose_dead(hold, grant, "session") or hold.lost is not None
    return False


def notify_of_loss(hold: Hold, reason: str) -> None:
    """Notify the callbacks, the signal and the log of the loss of ``hold``, which is marked as lost."""
    logger.warning("The lock %r of alias %r was lost: %s.", hold.key.name, hold.backend.alias, reason)
    for callback in hold.callbacks:
        try:
            callback()
        except Exception:
            logger.exception("A callback for the loss of the lock %r failed.", hold.key.name)
    events.send_held(signals.lock_lost, hold, reason=reason)


async def take_back(hold: Hold) -> None:
    """Give the engine back what it has granted to an acquire that has failed, if it has."""
    if hold.grant is None and hold.claim is not None:
        hold.grant = hold.backend.stray(hold.claim, lock_table.other_grants(hold))
        if hold.grant is not None and not lock_table.is_alone(hold):
            hold.backend.release_again(hold.grant, False)
            return
    if hold.grant is not None:
        await hold.give(hold.grant)


def give_back_fast(hold: Hold) -> bool:
    """Release by the engine's fast path, then let the next one of this process ask. False if that is not possible: the
    caller uses :func:`give_back`."""
    grant = hold.grant
    if grant is None:
        return False
    # like Hold.give(): between the return of the engine's method and the assignment Python does not look for signals
    hold.giving = True
    hold.given = given = hold.backend.release_fast(grant)
    if not given:
        return False
    lock_table.end(hold)
    if signals.lock_released.receivers:
        events.send_held(signals.lock_released, hold)
    return True


async def give_back(hold: Hold) -> DistlockError | None:
    """Release at the engine, then let the next one of this process ask. Returns what went wrong with the release.

    After an interrupt (KeyboardInterrupt, a task's soft time limit, which is an Exception) it is left to the keepalive
    thread: see manager/interrupted.py.
    """
    grant = hold.grant
    try:
        released = await hold.give(grant)
    except DistlockError as error:
        lose(hold, "unreachable", releasing=True)
        lock_table.end(hold)
        return error
    except (asyncio.CancelledError, GeneratorExit):
        lock_table.end(hold)
        raise
    if not released and grant is not None:
        lose_dead(hold, grant, "stolen", releasing=True)
    lock_table.end(hold)
    if not released:
        return LockLost(f"The lock {hold.key.name!r} of alias {hold.backend.alias!r} was lost before its release.")
    if signals.lock_released.receivers:
        events.send_held(signals.lock_released, hold)
    return None
