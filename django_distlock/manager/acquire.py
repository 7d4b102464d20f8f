"""Ask an engine for a lock until it grants it or the caller's time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.concurrency.deadline import PAUSE
from django_distlock.concurrency.flow import Flow, Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.concurrency.deadline import Deadline
    from django_distlock.records import Claim, Grant


def acquire_flow(backend: Any, claim: Claim, deadline: Deadline, clock: Callable[[], float]) -> Flow[Grant | None]:
    """Ask ``backend`` until it grants ``claim`` or the deadline passes; None if it was busy to the end.

    A grant that arrives after its own validity is given back. Whatever ends the flow, the backend is told that this
    waiter has left.
    """
    attempt = 0
    if deadline.over():
        return None
    got: list[Grant | None] = []
    try:
        while True:
            grant: Grant | None = yield Step(backend.try_acquire, backend.atry_acquire, (claim, deadline.left()), got)
            if grant is not None:
                if grant.valid_until is None or grant.valid_until > clock():
                    return grant
                yield Step(backend.release, backend.arelease, (grant,))
            got.clear()
            left = deadline.left()
            if left <= 0:
                break
            yield Step(PAUSE.sleep, PAUSE.asleep, (min(backend.pause(claim, attempt), left),))
            attempt += 1
        if backend.queues_waiters:  # and again below, if that is interrupted
            yield Step(backend.withdraw, backend.awithdraw, (claim,))
        return None
    except GeneratorExit:
        raise
    except BaseException:
        if got and got[0] is not None:
            yield Step(backend.release, backend.arelease, (got[0],))
        if backend.queues_waiters:
            yield Step(backend.withdraw, backend.awithdraw, (claim,))
        raise
