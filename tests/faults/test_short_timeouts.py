"""R5 to R7: however short its timeout is, an acquire is answered with what is true, and leaves nothing held."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from django.db import connections

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import connect, eventually
from tests.matrix import MATRIX
from tests.support.processes import Child

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2, pytest.mark.alone]

ALIASES = [entry.using for entry in MATRIX if entry.processes]
each_alias = pytest.mark.parametrize("using", ALIASES)
PROCESSES, SECONDS = 8, 2.0


def first_lock(link: Any, using: str, name: str) -> None:
    lease = advisory_lock(name, using=using).try_acquire(timeout=0.05)
    link.say(lease is not None)
    if lease is not None:
        lease.release()


@each_alias
def test_r5_the_first_lock_of_a_process_is_given_however_short_its_timeout(using: str, name: str) -> None:
    """It has to connect, to find out what server that is, and to read the site key."""
    with Child(first_lock, using, name) as child:
        assert child.hear() is True


def crowd(link: Any, using: str, name: str, seconds: float) -> None:
    """Say (grants, answers "busy", answers "unavailable")."""
    lock = advisory_lock(name, using=using)
    link.say("ready")
    link.hear()
    granted = busy = unavailable = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            lease = lock.try_acquire(timeout=0.001)
            granted, busy = granted + (lease is not None), busy + (lease is None)
            if lease is not None:
                lease.release()
        except BackendUnavailable:
            unavailable += 1
    link.say([granted, busy, unavailable])


@each_alias
def test_r6_a_loaded_host_is_not_an_unavailable_server(using: str, name: str) -> None:
    """Four times as many processes as processors, and all of them run."""
    with ExitStack() as stack:
        children = [stack.enter_context(Child(crowd, using, name, SECONDS)) for _ in range(PROCESSES)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say()
        told = [child.hear(timeout=SECONDS + 30) for child in children]
    granted, busy, unavailable = (sum(column) for column in zip(*told, strict=True))
    assert granted > 0
    assert not unavailable, f"{unavailable} times unavailable, {granted} times granted, {busy} times busy"


@pytest.mark.parametrize("timeout", [0, 0.05])
@pytest.mark.parametrize("using", [using for using in ALIASES if using not in ("leasetable", "redlock")])
def test_r5_a_server_that_answers_within_a_second_has_answered(
    using: str, name: str, timeout: float, proxied: Any
) -> None:
    proxy = proxied(using)
    connect(using)
    proxy.blackhole()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(advisory_lock(name, using=using).try_acquire, timeout)
        threading.Event().wait(0.7)
        proxy.heal()
        lease = asking.result(timeout=30)
    assert lease is not None
    lease.release()


# R7: PostgreSQL's lock_timeout can fire after the grant

CLIENTS, RACE = 24, 3.0  # seconds
ENOUGH, MORE = 1000, 40.0  # timeouts; and seconds for them on a busy machine, since the clients are polite
HELD = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = ANY(%s)"


def give_up(link: Any, name: str, seconds: float) -> None:
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


def test_r7_no_timeout_leaves_the_lock_held(name: str) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(Child(give_up, name, RACE)) for _ in range(CLIENTS)]
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.say()
        told = [child.hear(timeout=RACE + MORE + 30) for child in children]
    grants, timeouts, left_held, unanswered = (sum(column) for column in zip(*told, strict=True))
    assert grants > 0
    assert left_held == 0, f"{left_held} of {timeouts} timeouts left the lock held"
    assert timeouts >= ENOUGH, "too few timeouts to show anything"
    assert unanswered < timeouts / 2, "each of them took longer than half a second"
