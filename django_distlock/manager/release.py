"""Giving a lock back to its engine (R11), and forgetting one that was lost (R17)."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from django_distlock import signals
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.flow import in_task
from django_distlock.exceptions import DistlockError, LockLost

from . import events
from .lock_table import State, lock_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.backends.base import Backend
    from django_distlock.records import Grant

    from .lock_table import Hold


logger = logging.getLogger("django_distlock.locks")


def lose(hold: Hold, reason: str, *, releasing: bool = False) -> bool:
    """Mark ``hold`` as lost and notify the callbacks, the signal and the log. False if the loss was known."""
    if not lock_table.lose(hold, reason, releasing=releasing):
        return False
    notify_of_loss(hold, reason)
    return True


def expired(grant: Grant) -> bool:
    """Is the time of the lease over?"""
    return grant.valid_until is not None and clock.now() >= grant.valid_until


def lose_dead(hold: Hold, grant: Grant, reason: str, *, releasing: bool = False) -> bool:
    """:func:`lose` for ``reason``, or because the lease has expired, if its time is over.

    The request may have been sent before the end of the lease and answered after it.
    """
    return lose(hold, "expired" if expired(grant) else reason, releasing=releasing)


def notice_loss(hold: Hold) -> bool:
    """Is it lost, as far as this process can know without asking the engine?"""
    grant = hold.grant
    unknown = hold.lost is None and hold.state is not State.ENDED
    if unknown and grant is not None and (expired(grant) or not hold.backend.look(grant)):
        lose_dead(hold, grant, "session")
    return hold.lost is not None


def notify_of_loss(hold: Hold, reason: str) -> None:
    """Notify the callbacks, the signal and the log of the loss of ``hold``, which is marked as lost."""
    logger.warning("The lock %r of alias %r was lost: %s.", hold.key.full_name, hold.backend.alias, reason)
    for callback in hold.callbacks:
        try:
            callback()
        except Exception:
            logger.exception("A callback for the loss of the lock %r failed.", hold.key.full_name)
    events.send_held(signals.lock_lost, hold, reason=reason)


async def ask_to_release(backend: Backend, grant: Grant) -> bool:
    """Ask the engine to release it. False: ``grant`` no longer held it."""
    return await backend.arelease(grant) if in_task() else backend.release(grant)


async def give_back(hold: Hold) -> None:
    """Release at the engine, then let the next one of this process ask. LockLost, BackendUnavailable.

    What the exception of a signal cuts off is left to the caller: see :func:`finish_release`.
    """
    grant: Any = hold.grant
    try:
        released = await ask_to_release(hold.backend, grant)
    except DistlockError:
        lose(hold, "unreachable", releasing=True)
        lock_table.end(hold)
        raise
    except (asyncio.CancelledError, GeneratorExit):  # the engine goes on with it
        leftovers.now_or_later(lock_table.end, hold)
        raise
    if not released:
        lose_dead(hold, grant, "stolen", releasing=True)
    lock_table.end(hold)
    if not released:
        raise LockLost(f"The lock {hold.key.name!r} of alias {hold.backend.alias!r} was lost before its release.")
    if signals.lock_released.receivers:
        events.send_held(signals.lock_released, hold)


def _now(notify: Callable[[], object]) -> None:
    notify()


def leave_behind(hold: Hold, lease: Any) -> None:
    """Have another thread undo an acquire that a signal has cut off, or whose coroutine is being closed."""
    if hold.state in (State.WAITING, State.CLAIMING):
        hold.state = State.RELEASING  # whoever asks for the lock meanwhile waits for this, and closes no circle
        leftovers.leave(partial(finish_release, hold, False))
    elif hold.state is not State.ENDED:
        leftovers.leave(lease._finish_release)


def finish_release(hold: Hold, again: bool, tell: Callable[[Callable[[], object]], object] = _now) -> None:
    """Release at the engine a hold that no caller uses any more, or undo its claim if there is no grant yet.

    It runs in a thread that may wait. ``again``: a release that was cut off may have reached the engine, so that the
    engine's answer does not tell a loss. ``tell`` gets the function that notifies the receivers of the signals. An
    error of the engine is only logged: no caller waits for the result.
    """
    backend, grant = hold.backend, hold.grant
    lost = ""
    try:
        if grant is None:
            if hold.claim is not None:
                backend.undo(hold.claim)
        elif again:
            backend.release_again(grant)
        elif not backend.release(grant):
            lost = "stolen"
    except Exception:
        logger.exception("The lock %r could not be released.", hold.key.full_name)
        lost = "unreachable"
    if lost and hold.held_at and lock_table.lose(hold, lost, releasing=True):
        tell(partial(notify_of_loss, hold, lost))
        return
    lock_table.end(hold)
    if hold.held_at and hold.lost is None:
        tell(partial(events.send_held, signals.lock_released, hold))
