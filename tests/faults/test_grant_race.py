"""R7: PostgreSQL's lock_timeout can fire after the grant. 24 clients wait for one millisecond each."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from django.db import connections

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.support.processes import Child

pytestmark = [pytest.mark.alone, pytest.mark.tier2]  # CLIENTS processes

CLIENTS, SECONDS = 24, 6.0
ENOUGH, MORE = 1000, 40.0  # timeouts; and seconds for them on a busy machine, since the clients are polite
HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = ANY(%s)"


def client(link: Any, name: str, seconds: float) -> None:
    """Acquire with a millisecond to wait, again and again; say (grants, timeouts, timeouts that left a lock held,
    attempts without an answer).

    A grant whose statement was still under way when its caller had no more time is taken back by the session, at the
    latest when the keepalive thread looks next (R7).
    """
    os.nice(10)  # whoever measures something goes first
    lock = advisory_lock(name, using="postgres")
    backend: Any = registry.entry("postgres").backend
    grants = timeouts = left_held = unanswered = 0
    with psycopg.connect(**connections["postgres"].get_connection_params(), autocommit=True) as looking:

        def free() -> bool:
            pids = [session.server_id for session in backend.sessions.all() if session.dead is None]
            return not looking.execute(HELD, [pids]).fetchone()[0]

        lock.acquire(timeout=30).release()  # connects
        link.say("ready")
        link.hear()
        end = time.monotonic() + seconds
        while time.monotonic() < end or (timeouts < ENOUGH / CLIENTS and time.monotonic() < end + MORE):
            lease = None
            try:
                lease = lock.try_acquire(timeout=0.001)
            except BackendUnavailable:
                unanswered += 1
            if lease is not None:
                grants += 1
                lease.release()
                continue
            timeouts += 1
            try:
                eventually(free, "held", 2.5, pause=0.02)
            except AssertionError:
                left_held += 1
    link.say([grants, timeouts, left_held, unanswered])


def test_r7_no_timeout_leaves_the_lock_held(databases: None, name: str) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(client, name, SECONDS)) for _ in range(CLIENTS)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say()
        told = [child.hear(timeout=SECONDS + MORE + 30) for child in children]
    grants, timeouts, left_held, unanswered = (sum(column) for column in zip(*told, strict=True))
    assert grants > 0
    assert left_held == 0, f"{left_held} of {timeouts} timeouts left the lock held"
    assert timeouts >= ENOUGH, "too few timeouts to show anything"
    assert unanswered < timeouts / 2, "each of them took longer than half a second"
