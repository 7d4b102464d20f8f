"""The statement budgets of the session engines, counted at the server and not by trust."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from django_distlock import advisory_lock
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere
from tests.engines.statements import counted
from tests.faults.server import SESSION_LOCKS, waiters

if TYPE_CHECKING:
    from collections import Counter

    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)

TRY = {"postgres": "SELECT pg_try_advisory_lock($1)", "mysql": "SELECT GET_LOCK (...)"}
FREE = {"postgres": "SELECT pg_advisory_unlock($1)", "mysql": "SELECT RELEASE_LOCK (?)"}
HEARTBEATS = ("SELECT true", "SELECT $1", "SELECT ?")


def without_heartbeats(found: Counter[str]) -> dict[str, int]:
    return {text: calls for text, calls in found.items() if text not in HEARTBEATS}


@each_engine
def test_r2_one_statement_each_way_and_none_for_who_is_in(using: str, name: str, proxied: Proxied) -> None:
    """For threads and tasks; one round trip each, too: nothing is sent that the server does not count as a
    statement."""
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
def test_busy_without_waiting_costs_one_statement_and_none_behind_this_process(using: str, name: str) -> None:
    """The queue of the process stands in front of the engine: waiters of one process send nothing."""
    lock = advisory_lock(name, using=using)
    with held_elsewhere(using, f"{name}-busy"), ThreadPoolExecutor(1) as pool, lock:
        with counted(using) as found:
            assert pool.submit(lock.try_acquire).result(25) is None
            assert pool.submit(lock.try_acquire, timeout=0.05).result(25) is None
            assert advisory_lock(f"{name}-busy", using=using).try_acquire() is None
        assert without_heartbeats(found) == {TRY[using]: 1}


@each_engine
def test_r4_a_name_that_is_busy_is_tried_once_and_waited_for(using: str, name: str) -> None:
    """R4: the engine queues the waiter."""

    def wait_for(other: str) -> None:
        """Have the lock of ``other`` once it is free."""
        with held_elsewhere(using, other) as let_go, ThreadPoolExecutor(1) as pool:
            with counted(using) as found:
                waiting = pool.submit(lambda: advisory_lock(other, using=using).acquire(timeout=60).release())
                eventually(lambda: waiters(using, other), "nobody waits at the server")
                let_go()
                waiting.result(25)
            tries.append(found[TRY[using]])

    tries: list[int] = []
    for number in range(2):  # the first one opens the session to wait on, which prepares its statement
        wait_for(f"{name}-{number}")
    # MariaDB counts the try and the wait as one statement
    assert tries[1] == {"postgres": 1, "mysql": 2}[using]
