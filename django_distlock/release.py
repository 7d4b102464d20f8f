"""Giving a lock back to its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import signals
from .exceptions import DistlockError, LockLost
from .holdings import holdings
from .loss import lose, lose_dead
from .waiting import Call, Flow

if TYPE_CHECKING:
    from .holding import Holding


def freed_now(holding: Holding) -> bool:
    """:func:`give_back` by the engine's short cut, if it has one for this lock; False if nothing was done."""
    grant = holding.grant
    if grant is None or not holding.backend.free_now(grant):
        return False
    holdings.end(holding)
    if signals.lock_released.receivers:
        signals.send_held(signals.lock_released, holding)
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
    signals.send_held(signals.lock_released, holding)
    return None
