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
from tests.support.processes import Child

pytestmark = [pytest.mark.alone, pytest.mark.tier2]  # CLIENTS processes

CLIENTS, SECONDS = 24, 6.0
ENOUGH, MORE = 1000, 40.0  # timeouts; and seconds for them on a busy machine, since the clients are polite
HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = ANY(%s)"


def connect() -> psycopg.Connection[Any]:
    return psycopg.connect(**connections["postgres"].get_connection_params(), autocommit=True)


def client(link: Any, name: str, seconds: float) -> None:
    """Acquire with a millisecond to wait, again and again; say (grants, timeouts, timeouts that left a lock held,
    attempts without an answer, late grants). A late grant is one whose statement was still under way when its caller
    had no more time: the session takes it back, at the latest when the keepalive thread looks next (R7)."""
    os.nice(10)  # whoever measures something goes first
    lock = advisory_lock(name, using="postgres")
    backend: Any = registry.entry("postgres").backend
    grants = timeouts = left_held = unanswered = late = 0
    with connect() as looking:
        lock.acquire(timeout=30).release()  # connects
        link.say("ready")
        link.hear()
        end = time.monotonic() + seconds
        while time.monotonic() < end or (timeouts < ENOUGH / CLIENTS and time.monotonic() < end + MORE):
            try:
                lease = lock.try_acquire(timeout=0.001)
            except BackendUnavailable:
                unanswered += 1
                lease = None
            if lease is not None:
                grants += 1
                lease.release()
                continue
            timeouts += 1
            sessions = [session for session in backend.sessions.all() if session.dead is None]
            asking = any(session.mutex.locked() for session in sessions)
            pids = [session.server_id for session in sessions]
            held = bool(looking.execute(HELD, [pids]).fetchone()[0])
            if held and asking:
                late += 1
                held = not gone(lambda pids=pids: not looking.execute(HELD, [pids]).fetchone()[0])
            left_held += held
    link.say([grants, timeouts, left_held, unanswered, late])


def gone(condition: Any, patience: float = 2.5) -> bool:
    """Whether it came true in time; the keepalive thread looks twice a second."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_r7_no_timeout_leaves_the_lock_held(databases: None, name: str) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(client, name, SECONDS)) for _ in range(CLIENTS)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say()
        told = [child.hear(timeout=SECONDS + MORE + 30) for child in children]
    grants, timeouts, left_held, unanswered, late = (sum(column) for column in zip(*told, strict=True))
    print(f"{grants} grants, {late} of them late, {timeouts} timeouts, {unanswered} unanswered")
    assert grants > 0
    assert left_held == 0, f"{left_held} of {timeouts} timeouts left the lock held"
    assert timeouts >= ENOUGH, "too few timeouts to show anything"
    assert unanswered < timeouts / 2, "each of them took longer than half a second"
