"""R23: after everything all is as it was."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from django.db import connections

from django_distlock import advisory_lock
from django_distlock.backends.sessions.pool import IDLE
from django_distlock.concurrency import clock
from django_distlock.manager.lock_table import lock_table
from tests.conftest import eventually
from tests.contract.actors import PATIENCE, Actor, TaskActor, turns
from tests.contract.conftest import both_faces, those

if TYPE_CHECKING:
    from tests.matrix import Entry

PAIRS = 200
with_sessions = those(lambda entry: entry.database not in (None, "default"))


def server_sessions(entry: Entry) -> int:
    """How many lock sessions of this process the server counts. This thread keeps no connection, which would count."""
    if entry.database in (None, "default"):
        return 0
    ports = [each.laddr.port for each in psutil.Process().net_connections("tcp") if each.status == "ESTABLISHED"]
    try:
        with connections[entry.database].cursor() as cursor:
            if entry.database == "postgres":
                cursor.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND client_port = ANY(%s)",
                    [ports],
                )
            else:
                cursor.execute(
                    "SELECT count(*) FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()"
                    f" AND SUBSTRING_INDEX(HOST, ':', -1) IN ({', '.join(map(str, ports)) or '0'})"
                )
            return int(cursor.fetchone()[0])
    finally:
        connections.close_all()


@both_faces
def test_r23_many_times_leave_nothing(me: Actor, entry: Entry, using: str, name: str, backend: Any) -> None:
    locks = [advisory_lock(f"{name}{number}", using=using) for number in range(20)]
    me.release(me.acquire(locks[0]))
    threads, files, sessions = threading.active_count(), len(os.listdir("/proc/self/fd")), server_sessions(entry)

    def pairs() -> Any:
        for number in range(PAIRS):
            with locks[number % len(locks)]:
                pass

    async def apairs() -> Any:
        for number in range(PAIRS):
            async with locks[number % len(locks)]:
                pass

    me.submit(apairs if isinstance(me, TaskActor) else pairs).result(PATIENCE)
    assert lock_table.all() == []
    assert threading.active_count() <= threads + 1  # the keepalive thread comes and goes
    assert len(os.listdir("/proc/self/fd")) <= files + 2
    assert server_sessions(entry) <= max(sessions, 1)
    assert [info for info in backend.inspect() if info.name and info.name.startswith(name)] == []


@with_sessions
@pytest.mark.cold
def test_r23_idle_sessions_close_after_5_seconds(me: Actor, entry: Entry, using: str, name: str, backend: Any) -> None:
    """The clock of the keepalive thread is told, not waited for. One that holds is never idle."""
    assert IDLE == 5
    others = server_sessions(entry)  # what earlier tests left open in other threads
    lease = me.acquire(advisory_lock(name, using=using))
    backend.tick(clock.now() + 60)
    assert lease.held
    me.release(lease)
    backend.tick(clock.now() + 4.4)
    assert server_sessions(entry) - others == 1
    eventually(backend.threads.idle, "a statement is on its way")
    backend.tick(clock.now() + 5.6)
    eventually(lambda: server_sessions(entry) <= others, "a session stays open")


@pytest.mark.tier2
@those(lambda entry: entry.using in ("leasetable", "postgres", "mysql", "redis"))
def test_r23_a_thousand_tasks_on_one_lock(entry: Entry, using: str, name: str) -> None:
    """All are served, in order, on one session, by a few threads."""
    served: list[int] = []
    inside: list[int] = []

    async def task(number: int) -> None:
        async with advisory_lock(name, using=using, timeout=100):
            inside.append(number)
            if number % 100 == 0:
                await turns()
            assert inside.pop() == number
            assert not inside
            served.append(number)

    others = server_sessions(entry)  # what earlier tests left open in other threads

    async def main() -> tuple[int, int]:
        sessions = threads = 0
        async with asyncio.TaskGroup() as group:
            for number in range(1000):
                group.create_task(task(number))
            while len(served) < 1000:
                await turns(50)
                sessions = max(sessions, await asyncio.to_thread(server_sessions, entry))
                threads = max(threads, sum(thread.name.startswith("distlock-") for thread in threading.enumerate()))
        return sessions, threads

    sessions, threads = asyncio.run(asyncio.wait_for(main(), 4 * PATIENCE))
    assert served == list(range(1000)), "not in order of arrival"
    assert sessions - others <= 2
    assert threads <= 4
