"""Giving a lock back to its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock import signals
from django_distlock.concurrency.flow import Call, Flow
from django_distlock.exceptions import DistlockError, LockLost

from . import events
from .lock_table import holdings
from .loss import lose, lose_dead

if TYPE_CHECKING:
    from .hold import Holding


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
