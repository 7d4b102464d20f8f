"""R7, R23: the sessions to wait on, of which none is lost."""

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
def test_r7_an_interrupt_loses_no_session(fast: bool) -> None:
    sessions: Sessions[Any] = Sessions(None, bool)  # type: ignore[arg-type]

    def start() -> None:
        sessions._idle, sessions._lent = [Idle()], set()

    def lend() -> None:
        lent: Any = sessions.ready_to_wait() if fast else run(sessions.lend(0.0))
        sessions.give_back(lent[0] if fast else lent)

    def clean() -> None:
        (session,) = {*sessions._idle, *sessions._lent}
        sessions._forget(session)
        assert (sessions._idle, sessions._lent) == ([], set())
        start()

    start()
    assert interrupted_everywhere(lend, clean, pool) > 3
