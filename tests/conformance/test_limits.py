"""R23: after everything all is as it was; and at most MAX_HELD locks per process."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from django.db import connections

from django_distlock import DistlockError, LockNotAcquired, advisory_lock, lock_all
from django_distlock.backends.sessions.pool import IDLE
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.conformance.actors import PATIENCE, ThreadActor
from tests.conftest import eventually
from tests.support.sizes import LONG

if TYPE_CHECKING:
    from tests.conformance.actors import Actor
    from tests.matrix import Entry


PAIRS = 2000 if LONG else 500


def server_sessions(entry: Entry) -> int:
    """How many lock sessions of this process the server counts."""
    if entry.database in (None, "default"):
        return 0
    with connections[entry.database].cursor() as cursor:
        if entry.database == "postgres":
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND client_port = ANY(%s)",
                [_ports()],
            )
        else:
            ports = ", ".join(map(str, _ports())) or "0"
            cursor.execute(
                "SELECT count(*) FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()"
                f" AND SUBSTRING_INDEX(HOST, ':', -1) IN ({ports})"
            )
        return int(cursor.fetchone()[0])


def _ports() -> list[int]:
    """The local ports of this process."""
    return [each.laddr.port for each in psutil.Process().net_connections("tcp") if each.status == "ESTABLISHED"]


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.tier2
def test_r23_many_times_leave_nothing(me: Actor, entry: Entry, using: str, name: str, backend: Any) -> None:
    locks = [advisory_lock(f"{name}{number}", using=using) for number in range(20)]
    me.release(me.acquire(locks[0]))
    threads, files, sessions = threading.active_count(), _open_files(), server_sessions(entry)

    def pairs() -> Any:
        for number in range(PAIRS):
            with locks[number % len(locks)]:
                pass

    async def apairs() -> Any:
        for number in range(PAIRS):
            async with locks[number % len(locks)]:
                pass

    me.run(pairs if isinstance(me, ThreadActor) else apairs)
    assert list(lock_table.everything()) == []
    assert threading.active_count() <= threads + 1  # the keepalive thread comes and goes
    assert _open_files() <= files + 2
    assert server_sessions(entry) <= max(sessions, 1)
    assert [info for info in backend.inspect() if info.name and info.name.startswith(name)] == []


@pytest.mark.cold
def test_r23_idle_sessions_close_after_5_seconds(me: Actor, entry: Entry, using: str, name: str, backend: Any) -> None:
    """The clock of the keepalive thread is told, not waited for."""
    assert IDLE == 5
    others = server_sessions(entry)  # what earlier tests left open in other threads
    me.release(me.acquire(advisory_lock(name, using=using)))
    backend.tick(_later(4.4))
    before = server_sessions(entry) - others
    eventually(lambda: not backend.threads._running, "a statement is on its way")
    backend.tick(_later(5.6))
    eventually(lambda: server_sessions(entry) <= others, "a session stays open")
    assert before == (entry.database in ("postgres", "mariadb"))


def _later(seconds: float) -> float:
    return monotonic() + seconds


def test_r23_a_session_that_holds_is_never_idle(me: Actor, using: str, name: str, backend: Any) -> None:
    lease = me.acquire(advisory_lock(name, using=using))
    backend.tick(_later(60))
    assert lease.held
    me.release(lease)


def test_r23_max_held(me: Actor, other: Actor, using: str, name: str, settings: Any) -> None:
    settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "MAX_HELD": 3}}
    leases = [me.acquire(advisory_lock(f"{name}{number}", using=using)) for number in range(3)]
    for actor in (me, other):
        for attempt in (actor.acquire, actor.try_acquire):
            with pytest.raises(DistlockError) as error:
                attempt(advisory_lock(f"{name}x", using=using))
            assert not isinstance(error.value, LockNotAcquired)
            assert str(error.value) == (
                f"This process holds 3 locks of alias {using!r}, which is its MAX_HELD. "
                "Lock something coarser, or raise MAX_HELD in DISTLOCK."
            )
    # re-entry is no further lock, another alias has a count of its own
    me.release(me.acquire(advisory_lock(f"{name}0", using=using)))
    there = advisory_lock(name, using="memory" if using != "memory" else "leasetable")
    me.release(me.acquire(there))
    me.release(leases.pop())
    leases.append(me.acquire(advisory_lock(f"{name}x", using=using)))
    for lease in leases:
        me.release(lease)


def test_r23_max_held_is_1000_if_nothing_is_said(me: Actor, using: str) -> None:
    assert registry.entry(using).config.max_held == 1000


def test_r23_lock_all_beyond_max_held_takes_none(me: Actor, rival: Any, using: str, name: str, settings: Any) -> None:
    settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "MAX_HELD": 2}}
    names = [f"{name}{letter}" for letter in "abc"]
    with pytest.raises(DistlockError, match="MAX_HELD"):
        me.acquire(lock_all(names, using=using))
    assert list(lock_table.everything()) == []
    for each in names:
        rival.release(rival.acquire(using, each, timeout=0))


@pytest.mark.tier2
def test_r23_a_thousand_tasks_on_one_lock(entry: Entry, using: str, name: str, databases: None) -> None:
    """All served, one inside at a time, by at most two sessions of the server and four threads."""
    lock = advisory_lock(name, using=using, timeout=60)
    served: list[int] = []
    inside: list[int] = [0]
    most: list[int] = [0]

    async def task(number: int) -> None:
        async with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            if number % 100 == 0:
                await asyncio.sleep(0)
            inside[0] -= 1
            served.append(number)

    # what earlier tests left open in other threads; this thread keeps no connection, which would count below
    others = _counted(entry)

    async def main() -> tuple[int, int]:
        async with asyncio.TaskGroup() as group:
            for number in range(1000):
                group.create_task(task(number))
            sessions = threads = 0
            while len(served) < 1000:
                await asyncio.sleep(0.02)
                sessions = max(sessions, await asyncio.to_thread(_counted, entry))
                threads = max(threads, sum(thread.name.startswith("distlock-") for thread in threading.enumerate()))
        return sessions, threads

    sessions, threads = asyncio.run(asyncio.wait_for(main(), 60))
    assert served == sorted(served), "not in order of arrival"
    assert (len(served), most[0]) == (1000, 1)
    assert sessions - others <= 2
    assert threads <= 4


def _counted(entry: Entry) -> int:
    try:
        return server_sessions(entry)
    finally:
        connections.close_all()


def test_r23_fifty_threads_on_one_lock(using: str, name: str) -> None:
    lock, served = advisory_lock(name, using=using, timeout=PATIENCE), []

    def work(number: int) -> None:
        with lock:
            served.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(served) == list(range(50))
