"""The dedicated sessions: how many there are, how long they live, and what a lock costs, as the server counts it."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

from django_distlock import BackendUnavailable, advisory_lock, held_locks
from django_distlock.backends.mysql.session import MySQLSession
from django_distlock.backends.sessions import session
from django_distlock.backends.side_connection import SideConnection
from django_distlock.backends.side_connection import ask as ask_aside
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager import name_log
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere, hold
from tests.engines.statements import counted
from tests.faults.server import SESSION_LOCKS, holders, lock_sessions, session_exists, session_of, waiters

if TYPE_CHECKING:
    from collections import Counter

    from tests.faults.conftest import Proxied


pytestmark = pytest.mark.usefixtures("databases", "unhurried")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)
WAIT_SESSIONS = 8
IDLE = 5.0


def no_sessions(using: str) -> None:
    """A session that was closed is gone on the server only a moment later."""
    registry.close()
    eventually(lambda: not lock_sessions(using), f"sessions of another test: {lock_sessions(using)}")


def hold_without_notes(link: Any, using: str, *names: str) -> None:
    """In a child: a session that it opened after a while, to write the names down, would be taken for one of ours."""
    name_log.CHECK_EVERY = math.inf
    hold(link, using, *names)


@each_engine
def test_r23_all_free_locks_share_a_session(using: str, name: str) -> None:
    no_sessions(using)
    leases = [advisory_lock(f"{name}{number}", using=using).acquire() for number in range(150)]
    assert len({session_of(lease).server_id for lease in leases}) == 1
    assert len(lock_sessions(using)) == 1
    for lease in leases:
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
        assert not session.close_if_unused()  # as if the lock had come after the look
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
def test_r23_a_listing_leaves_no_session(using: str) -> None:
    """In a process that may never lock anything."""
    no_sessions(using)
    eventually(lambda: keepalive.thread is None, "the keepalive thread goes on with nothing to look after")
    (report,) = held_locks(using)
    assert (report.error, keepalive.thread) == (None, None)
    eventually(lambda: not lock_sessions(using), "a session is left")


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


@each_engine
def test_r4_who_does_not_wait_asks_once_also_for_a_name_that_was_busy_just_now(using: str, name: str) -> None:
    """A session to wait on is idle, and is left alone."""
    lock = advisory_lock(name, using=using)
    with held_elsewhere(using, name):
        assert lock.try_acquire(timeout=0.05) is None
        with counted(using) as found:
            assert lock.try_acquire() is None
    assert without_heartbeats(found) == {TRY[using]: 1}


@each_engine
def test_r23_a_session_on_which_locks_are_refused_is_not_idle(using: str, name: str) -> None:
    backend: Any = registry.entry(using).backend
    with held_elsewhere(using, name):
        assert advisory_lock(name, using=using).try_acquire() is None
        session = backend.sessions.open_shared
        session.used_at -= IDLE
        assert advisory_lock(name, using=using).try_acquire() is None
        backend.tick(monotonic() + IDLE - 1)
        assert session_exists(using, session.server_id)
        backend.tick(monotonic() + IDLE + 1)
        eventually(lambda: not session_exists(using, session.server_id), "the session is still there")


@each_engine
def test_a_first_lock_opens_one_connection(using: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[SideConnection] = []
    opens = SideConnection.open_driver
    monkeypatch.setattr(
        SideConnection, "open_driver", lambda connection: opened.append(connection) or opens(connection)
    )
    registry.reset()
    with advisory_lock(name, using=using):
        assert len([each for each in opened if each.options.get("application_name") != "distlock"]) == 1


@each_engine
def test_receivers_of_the_application_do_not_see_our_connections(using: str, name: str) -> None:
    """They set a role or a search path, or count the connections of the application."""
    seen: list[Any] = []
    receiver = lambda connection, **_: seen.append(connection)  # noqa: E731
    with held_elsewhere(using, name):
        registry.reset()
        connection_created.connect(receiver)
        try:
            assert advisory_lock(name, using=using).try_acquire(timeout=0.1) is None
            assert ask_aside({"postgres": "postgres", "mysql": "mariadb"}[using], lambda connection: connection.vendor)
        finally:
            connection_created.disconnect(receiver)
    assert not seen


def test_r5_who_waits_without_end_asks_a_silent_server_no_longer_than_a_wait_lasts(
    name: str, proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that died would keep it for hours: no heartbeat is sent during a wait."""
    monkeypatch.setattr(MySQLSession, "longest_wait", 1.0)
    with held_elsewhere("mysql", name), ThreadPoolExecutor(1) as pool:
        proxy = proxied("mysql")
        waiting = pool.submit(advisory_lock(name, using="mysql").acquire, timeout=None)
        eventually(lambda: waiters("mysql", name), "it does not wait")
        proxy.blackhole()
        with pytest.raises(BackendUnavailable):
            waiting.result(60)


def test_r22b_the_first_lock_in_a_transaction_asks_for_the_version(name: str) -> None:
    """Once in a process, and none of it in the application's log of queries."""
    registry.reset()
    costs = []
    for _ in range(3):
        with counted("postgres") as found, transaction.atomic("postgres"):
            with CaptureQueriesContext(connections["postgres"]) as queries, advisory_lock(name, using="postgres"):
                pass
            assert not queries.captured_queries
        costs.append(sum(found.values()))
    assert costs[0] - costs[1] == 1
    assert costs[1] == costs[2]


@each_engine
def test_r5_a_server_that_falls_silent_while_a_session_is_opened(
    using: str, name: str, proxied: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has accepted the login. Who waits without end is told, and the next one is not left with that connection."""
    monkeypatch.setattr(session, "OPEN_LIMIT", 1.0)
    proxy, opens = proxied(using), SideConnection.open_driver

    def open_and_fall_silent(connection: SideConnection) -> None:
        opens(connection)
        proxy.blackhole()

    registry.reset()
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(SideConnection, "open_driver", open_and_fall_silent)
        with pytest.raises(BackendUnavailable):
            pool.submit(advisory_lock(name, using=using).acquire, timeout=None).result(60)
    proxy.heal()
    advisory_lock(name, using=using).acquire(timeout=25).release()
