"""The dedicated sessions: how many there are, how long they live, and what a lock costs, as the server counts it;
and what the question costs whether the server excludes (R22b), which only the first lock of a process asks."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_distlock import advisory_lock, held_locks
from django_distlock.backends.sessions import backend as sessions_backend
from django_distlock.backends.sessions import exclusion, pool
from django_distlock.backends.sessions.pool import Sessions
from django_distlock.concurrency import deadline
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.parking import FairLock
from django_distlock.manager import name_log
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere, hold
from tests.engines.statements import counted
from tests.faults.server import SESSION_LOCKS, holders, lock_sessions, session_exists, session_of, waiters
from tests.support.interrupts import interrupted_everywhere

if TYPE_CHECKING:
    from collections import Counter

    from tests.faults.conftest import Proxied


pytestmark = pytest.mark.usefixtures("databases", "unhurried")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)
WAIT_SESSIONS = 8
IDLE = 5.0
LOCKS_PER_SESSION = 128


def no_sessions(using: str) -> None:
    """A session that was closed is gone on the server only a moment later, also that of the proof that comes with the
    first lock."""
    with advisory_lock("proven", using=using):
        pass
    registry.close()
    eventually(lambda: not lock_sessions(using), f"sessions of another test: {lock_sessions(using)}")


def hold_without_notes(link: Any, using: str, *names: str) -> None:
    """In a child: a session that it opened after a while, to write the names down, would be taken for one of ours."""
    name_log.CHECK_EVERY = math.inf
    hold(link, using, *names)


@each_engine
def test_r23_locks_share_a_session_until_it_is_full(using: str, name: str) -> None:
    """Each 128 locks have a session of their own, for which the documentation gives the reason."""
    no_sessions(using)
    leases = [advisory_lock(f"{name}{number}", using=using).acquire() for number in range(LOCKS_PER_SESSION + 2)]
    sessions = [session_of(lease).server_id for lease in leases]
    assert len(set(sessions[:LOCKS_PER_SESSION])) == 1
    assert sessions[-1] == sessions[-2] != sessions[0]
    assert set(sessions) <= lock_sessions(using)
    for lease in leases[:LOCKS_PER_SESSION]:
        lease.release()
    eventually(lambda: not session_exists(using, sessions[0]), "the full session was left open with its last lock")
    assert leases[-1].held
    for lease in leases[LOCKS_PER_SESSION:]:
        lease.release()


@each_engine
def test_many_busy_names_take_few_sessions_and_all_get_on(using: str, name: str) -> None:
    """20 threads wait for 20 names that another process holds: on no more than the wait set and the shared session. All
    get in though the first ones hold to the end, each on a session of its own if it had to wait."""
    names = [f"{name}{number}" for number in range(20)]
    everybody = threading.Barrier(len(names) + 1)
    no_sessions(using)

    def wait(one: str) -> None:
        with advisory_lock(one, using=using, timeout=25):
            everybody.wait(25)

    with held_elsewhere(using, *names, by=hold_without_notes) as let_go, ThreadPoolExecutor(len(names)) as pool:
        theirs = lock_sessions(using)
        waiting = [pool.submit(wait, one) for one in names]
        eventually(lambda: sum(len(waiters(using, one)) for one in names) == WAIT_SESSIONS, "the wait set is not full")
        most = len(lock_sessions(using) - theirs)
        let_go()
        everybody.wait(25)
        most_held = len(lock_sessions(using) - theirs)
        for each in waiting:
            each.result(25)
    assert most <= WAIT_SESSIONS + 1
    assert most_held <= len(names) + 1


@each_engine
def test_r23_an_idle_session_is_closed_after_five_seconds(using: str, name: str) -> None:
    """By the clock that tick() is given: nobody has to wait. One that holds a lock is not idle."""
    backend = registry.entry(using).backend
    with advisory_lock(name, using=using) as lease:
        session = session_of(lease)
        backend.sessions._close_idle(session)  # as if the lock had come after the look
        assert lease.held
        backend.tick(monotonic() + 3600)
        assert holders(using, name) == [session.server_id]
    released, server_id = session.used_at, session.server_id
    backend.tick(released + IDLE - 0.2)
    assert session_exists(using, server_id)
    assert backend.tick(released + IDLE + 0.2) is None
    eventually(lambda: not session_exists(using, server_id), "the session is still there")
    with advisory_lock(name, using=using) as lease:  # and comes back when needed
        assert session_of(lease).server_id != server_id


@each_engine
def test_r23_the_session_of_a_listing_is_looked_after(using: str) -> None:
    """held_locks() opens a session as well, in a process that may never lock anything."""
    no_sessions(using)
    eventually(lambda: keepalive.thread is None, "the keepalive thread goes on with nothing to look after")
    held_locks(using)
    assert lock_sessions(using)
    assert keepalive.thread is not None


@each_engine
def test_r17_closing_the_backend_loses_what_is_held(using: str, name: str) -> None:
    lost = threading.Event()
    lease = advisory_lock(name, using=using).acquire()
    lease.on_lost(lambda _: lost.set())
    registry.close()
    assert lost.wait(25)
    assert lease.lost
    eventually(lambda: not holders(using, name), "still held at the server")


@pytest.mark.parametrize(
    ("using", "inside"),
    [("postgres", False), ("postgres", True), ("mysql", False)],
    ids=["postgres", "inside", "mysql"],
)
def test_r5_a_wait_longer_than_the_engine_can_count_is_a_wait(using: str, inside: bool, name: str) -> None:
    """R5: lock_timeout and poll() end at 2^31 ms, less than 25 days; the contract allows ten years."""

    def wait(days: int) -> None:
        with transaction.atomic(using) if inside else nullcontext():
            advisory_lock(name, using=using, timeout=days * 86400.0).acquire().release()
        transaction.get_connection(using if using == "postgres" else "mariadb").close()

    for days in (25, 3660):
        with held_elsewhere(using, name) as let_go, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait, days)
            eventually(lambda: waiters(using, name), "it does not wait")
            let_go()
            waiting.result(25)


TRY = {"postgres": "SELECT pg_try_advisory_lock($1)", "mysql": "SELECT GET_LOCK (...)"}
FREE = {"postgres": "SELECT pg_advisory_unlock($1)", "mysql": "SELECT RELEASE_LOCK (?)"}
HEARTBEATS = ("SELECT true", "SELECT $1", "SELECT ?")


def without_heartbeats(found: Counter[str]) -> dict[str, int]:
    return {text: calls for text, calls in found.items() if text not in HEARTBEATS}


@each_engine
def test_r2_one_statement_each_way_and_none_for_who_is_in(using: str, name: str, proxied: Proxied) -> None:
    """One round trip each, too: nothing is sent that the server does not count as a statement."""
    proxy = proxied(using)
    lock = advisory_lock(name, using=using)

    async def tasks(times: int) -> None:
        for _ in range(times):
            async with lock, lock:
                pass

    for _ in range(2):  # connects, prepares
        asyncio.run(tasks(1))
    before = proxy.requests
    with counted(using) as found:
        for _ in range(10):
            with lock, lock:
                pass
        asyncio.run(tasks(10))
    assert without_heartbeats(found) == {TRY[using]: 20, FREE[using]: 20}
    assert 40 <= proxy.requests - before <= 45  # heartbeats, on a slow machine


@each_engine
def test_r4_who_is_busy_costs_one_statement_a_wait_one_more_and_one_behind_this_process_none(
    using: str, name: str
) -> None:
    """The queue of the process stands in front of the engine's: waiters of one process send nothing."""
    lock = advisory_lock(name, using=using)
    for turn in range(2):  # the first one opens the session to wait on, which prepares its statement
        busy, awaited = f"{name}-busy-{turn}", f"{name}-awaited-{turn}"
        with held_elsewhere(using, busy, awaited) as let_go, ThreadPoolExecutor(1) as pool, lock:
            with counted(using) as found:
                assert pool.submit(lock.try_acquire).result(25) is None
                assert advisory_lock(busy, using=using).try_acquire() is None
            assert without_heartbeats(found) == {TRY[using]: 1}
            with counted(using) as found:
                waiting = pool.submit(advisory_lock(awaited, using=using).acquire, timeout=60)
                eventually(partial(waiters, using, awaited), "nobody waits at the server")
                let_go()
                waiting.result(25).release()
            # MariaDB counts the try and the wait as one statement
            assert turn == 0 or found[TRY[using]] == {"postgres": 1, "mysql": 2}[using]


@pytest.mark.parametrize("fast", [True, False])
def test_r7_an_interrupt_while_a_session_is_lent_loses_none(fast: bool) -> None:
    """There are eight to wait on, and without them nobody waits."""
    sessions: Sessions[Any] = Sessions(None, bool)  # type: ignore[arg-type]

    def start() -> None:
        sessions._idle = [Mock(dead=None, orphaned_at=None, mutex=FairLock())]

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


# What a session costs anyway is that of the second lock, for which one is opened again.
@pytest.mark.parametrize(("using", "extra"), [("postgres", 8), ("mysql", 7)])
def test_r22b_lock_sessions(using: str, name: str, extra: int) -> None:
    registry.reset()
    costs = []
    for _ in range(3):
        with counted(using) as found:
            advisory_lock(name, using=using).acquire().release()
            registry.close()
        costs.append(sum(found.values()))
    assert costs[0] - costs[1] == extra
    assert costs[1] == costs[2]


def test_r22b_locks_of_a_transaction(name: str) -> None:
    """None of it on the caller's own connection."""
    registry.reset()
    costs = []
    for _ in range(3):
        with counted("postgres") as found, transaction.atomic("postgres"):
            with CaptureQueriesContext(connections["postgres"]) as queries, advisory_lock(name, using="postgres"):
                pass
            assert len(queries) == 1
        costs.append(sum(found.values()))
    assert costs[0] - costs[1] == 1
    assert costs[1] == costs[2]


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_r22b_a_server_far_away(proxied: Proxied, using: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof may take longer than a caller without a timeout has, and would never end. A session of ours opens in
    0.7 s here, and the proof takes more than 1.7 s: all times are multiplied, for a busy machine's sake."""
    for module in (deadline, sessions_backend, exclusion):
        monkeypatch.setattr(module, "LEAST_PATIENCE", 1.5)
    proxied(using).on_request = lambda number: time.sleep(0.12)
    registry.reset()
    with advisory_lock(name, using=using, timeout=0):
        pass


def test_r22b_threads_in_transactions_ask_once(name: str) -> None:
    """One connection more for a moment, however many threads begin at once."""
    registry.reset()
    threads = 12
    start = threading.Barrier(threads)

    def work(number: int) -> None:
        try:
            with transaction.atomic("postgres"):
                connections["postgres"].ensure_connection()
                start.wait(25)
                with advisory_lock(f"{name} {number}", using="postgres"):
                    pass
        finally:
            connections.close_all()

    with counted("postgres") as found, ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    asked = sum(count for statement, count in found.items() if "pg_try_advisory_xact_lock" in statement)
    assert asked == threads + 1
