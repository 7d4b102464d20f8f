"""R7, R23: the places for sessions to wait on, of which an alias has few."""

from __future__ import annotations

from typing import Any

import pytest

from django_distlock.backends.sessions import pool
from django_distlock.backends.sessions.pool import Sessions
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.parking import FairLock
from tests.support.interrupts import interrupted_everywhere


class Idle:
    """What the pool looks at in a session."""

    dead = orphaned_at = None
    used_at = 0.0

    def __init__(self) -> None:
        self.mutex = FairLock()


@pytest.mark.parametrize("fast", [True, False])
def test_r7_an_interrupt_loses_no_place(fast: bool) -> None:
    sessions: Sessions[Any] = Sessions(None, 1, bool)  # type: ignore[arg-type]

    def start() -> None:
        sessions._places, sessions._idle, sessions._lent = 1, [Idle()], set()

    def lend() -> None:
        lent: Any = sessions.ready_to_wait() if fast else run(sessions.lend(0.0))
        sessions.give_back(lent[0] if fast else lent)

    def clean() -> None:
        (session,) = {*sessions._idle, *sessions._lent}
        sessions._forget(session)
        assert (sessions._places, sessions._idle, sessions._lent) == (0, [], set())
        start()

    start()
    assert interrupted_everywhere(lend, clean, pool) > 3
