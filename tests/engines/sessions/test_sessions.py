"""The dedicated sessions: how many there are, how long they live, and what a lock costs, as the server counts it."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from django.conf import settings
from django.db import transaction
from django.db.backends.signals import connection_created

from django_distlock import BackendUnavailable, LockTimeout, advisory_lock
from django_distlock.backends.sessions import backend, session
from django_distlock.backends.side_connection import SideConnection
from django_distlock.backends.side_connection import ask as ask_aside
from django_distlock.concurrency import clock
from django_distlock.manager import name_log
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere, hold, waiting
from tests.engines.statements import counted
from tests.faults.server import DATABASES, SESSION_LOCKS, holders, key_of, lock_sessions, session_of, waiters

if TYPE_CHECKING:
    from collections import Counter

    from tests.faults.conftest import Proxied


pytestmark = pytest.mark.usefixtures("databases", "unhurried")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)


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
def test_r4_without_a_place_at_the_server_one_is_got_in_turn(
    using: str, name: str, alias: Any, monkeypatch: Any
) -> None:
    """However many names are busy, none waits for ever outside the server's queue."""
    for module in (backend, session):
        monkeypatch.setattr(module, "TURN", 0.2)
    alias(using, **settings.DISTLOCK[using]["OPTIONS"], wait_sessions=1)
    names = [f"{name}{number}" for number in range(3)]
    with held_elsewhere(using, *names) as let_go, ThreadPoolExecutor(3) as pool:
        acquiring = [pool.submit(advisory_lock(one, using=using, timeout=60).acquire) for one in names]
        for one in (*names, names[0]):
            eventually(partial(waiters, using, one), "it gets no turn")
            assert sum(session.waits for session in registry.entry(using).backend.sessions.all()) <= 2  # type: ignore[attr-defined]
        let_go()
        for each in acquiring:
            each.result(25).release()
    registry.reset()


@each_engine
def test_r5_the_watchdog_spares_a_session_whose_statement_was_answered_meanwhile(using: str, name: str) -> None:
    """The answer came late, and before the watchdog had the mutex."""
    with advisory_lock(name, using=using) as lease:
        watched: Any = session_of(lease)
        mutex = watched.mutex

        def acquire(blocking: bool) -> bool:
            watched.due = None
            return bool(mutex.acquire(blocking))

        watched.mutex = SimpleNamespace(acquire=acquire, release=mutex.release)
        watched.due = clock.now() - 1
        watched.tick(clock.now())
        watched.mutex = mutex
        assert lease.held


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
        transaction.get_connection(DATABASES[using]).close()

    for days in (25, 3660):
        with held_elsewhere(using, name) as let_go, ThreadPoolExecutor(1) as pool:
            working = pool.submit(wait, days)
            eventually(lambda: waiters(using, name), "it does not wait")
            let_go()
            working.result(25)


TRY = {"postgres": "SELECT pg_try_advisory_lock($1)", "mysql": "SELECT GET_LOCK (...)"}
FREE = {"postgres": "SELECT pg_advisory_unlock($1)", "mysql": "SELECT RELEASE_LOCK (?)"}
HEARTBEATS = ("SELECT true", "SELECT $1", "SELECT ?")


def without_heartbeats(found: Counter[str]) -> dict[str, int]:
    return {text: calls for text, calls in found.items() if text not in HEARTBEATS}


@each_engine
def test_r2_one_statement_each_way_and_none_for_who_is_in(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)

    async def tasks(times: int) -> None:
        for _ in range(times):
            async with lock, lock:
                pass

    for _ in range(2):  # connects, prepares
        asyncio.run(tasks(1))
    with counted(using) as found:
        for _ in range(10):
            with lock, lock:
                pass
        asyncio.run(tasks(10))
    assert without_heartbeats(found) == {TRY[using]: 20, FREE[using]: 20}


@each_engine
def test_r4_busy_costs_one_statement_a_wait_one_more_and_one_behind_this_process_none(
    using: str, name: str, monkeypatch: Any
) -> None:
    """The queue of the process stands in front of the engine's: waiters of one process send nothing."""
    monkeypatch.setattr(name_log, "CHECK_EVERY", math.inf)
    lock = advisory_lock(name, using=using)
    for turn in range(2):  # the first one opens the session to wait on, which prepares its statement
        busy, awaited = f"{name}-busy-{turn}", f"{name}-awaited-{turn}"
        others = held_elsewhere(using, busy, awaited, by=hold_without_notes)
        with others as let_go, ThreadPoolExecutor(1) as pool, lock:
            with counted(using) as found:
                assert pool.submit(lock.try_acquire).result(25) is None
                assert advisory_lock(busy, using=using).try_acquire() is None
            assert without_heartbeats(found) == {TRY[using]: 1}
            with counted(using) as found, waiting(using, awaited) as acquiring:
                let_go()
                acquiring.result(25).release()
            # MariaDB counts the try and the wait as one statement
            assert turn == 0 or found[TRY[using]] == {"postgres": 1, "mysql": 2}[using]


@each_engine
def test_receivers_of_the_application_do_not_see_our_connections(using: str, name: str) -> None:
    """They set a role or a search path, or count the connections of the application."""
    receiver = Mock()
    with held_elsewhere(using, name):
        registry.reset()
        connection_created.connect(receiver)
        try:
            assert advisory_lock(name, using=using).try_acquire(timeout=0.1) is None
            assert ask_aside(DATABASES[using], lambda connection: connection.vendor)
        finally:
            connection_created.disconnect(receiver)
    receiver.assert_not_called()


@each_engine
def test_r5_opening_a_session_takes_none_of_the_callers_time(using: str, name: str, proxied: Proxied) -> None:
    """A name that was busy a moment ago is waited for without trying first, here on a session that is yet to open."""
    lock, proxy = advisory_lock(name, using=using), proxied(using)
    sessions: Any = registry.entry(using).backend.sessions  # type: ignore[attr-defined]
    with held_elsewhere(using, name) as let_go:
        assert lock.try_acquire(timeout=0.3) is None
        let_go()
    for each in sessions.all():
        if each.waits:
            sessions.drop(each)
    registry.entry(using).backend._busy.add(key_of(using, name).digest, clock.now())  # type: ignore[attr-defined]
    proxy.delay(0.02)
    lease = lock.try_acquire(timeout=0.05)
    proxy.heal()
    assert lease is not None, "it was free all the time"
    assert holders(using, name) == [session_of(lease).server_id]
    lease.release()
    assert not holders(using, name)


@each_engine
def test_r5_a_server_falls_silent_while_a_session_is_opened(
    using: str, name: str, proxied: Proxied, monkeypatch: Any
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


# in a process that may have no more threads or files


@each_engine
def test_r7_a_wait_without_a_thread_returns_its_session(using: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, sessions = threading.Thread.start, registry.entry(using).backend.sessions  # type: ignore[attr-defined]

    def no_more(thread: threading.Thread) -> Any:
        if thread.name.endswith("-wait"):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> None:
        lock = advisory_lock(name, using=using)
        with pytest.raises(LockTimeout):
            await lock.aacquire(timeout=0.1)
        before = len(sessions.all())
        monkeypatch.setattr(threading.Thread, "start", no_more)
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="can't start new thread"):
                await lock.aacquire(timeout=0.1)
        assert len(sessions.all()) == before

    with held_elsewhere(using, name):
        asyncio.run(main())


@pytest.mark.parametrize("using", ["postgres", "mysql", "leasetable_postgres", "leasetable_mariadb"])
def test_r6_without_a_file_descriptor_there_is_no_session(using: str, name: str, monkeypatch: Any) -> None:
    """Its watchdog could not end a statement that hangs."""
    registry.close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(BackendUnavailable, match="Too many open files"):
            advisory_lock(name, using=using).acquire(timeout=1)
    advisory_lock(name, using=using).acquire(timeout=5).release()
