"""The statement budgets of the session engines, counted at the server and not by trust."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock
from tests.conftest import eventually
from tests.engines.actors import alternate, hold, wait
from tests.engines.statements import counted
from tests.faults.server import SESSION_LOCKS, noted, waiters
from tests.support.processes import Child

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
def test_uncontended_costs_one_statement_each_way(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    with lock:
        pass
    with counted(using) as found:
        for _ in range(10):
            with lock:
                pass
    assert without_heartbeats(found) == {TRY[using]: 10, FREE[using]: 10}


@each_engine
def test_uncontended_costs_one_statement_each_way_for_tasks(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)

    async def work(times: int) -> None:
        for _ in range(times):
            async with lock:
                pass

    asyncio.run(work(1))
    with counted(using) as found:
        asyncio.run(work(10))
    assert without_heartbeats(found) == {TRY[using]: 10, FREE[using]: 10}


@each_engine
def test_round_trips_are_statements(using: str, name: str, proxied: Proxied) -> None:
    """One round trip each way on the wire: nothing is sent that the server does not count as a statement."""
    proxy = proxied(using)
    lock = advisory_lock(name, using=using)
    for _ in range(2):  # connects, prepares
        with lock:
            pass
    before = proxy.requests
    for _ in range(10):
        with lock:
            pass
    assert proxy.requests - before == 20


@each_engine
def test_r2_reentry_costs_nothing(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    with lock, counted(using) as found:
        for _ in range(10):
            with lock:
                lock.acquire().release()
    assert without_heartbeats(found) == {}


@each_engine
def test_a_lock_that_is_held_in_this_process_costs_the_server_nothing(using: str, name: str) -> None:
    """The queue of the process stands in front of the engine: waiters of one process send nothing."""
    lock = advisory_lock(name, using=using)
    entered = threading.Event()
    asked: list[bool] = []

    def rival() -> None:
        asked.append(lock.try_acquire() is None)
        with pytest.raises(LockTimeout):
            lock.acquire(timeout=0.05)
        entered.set()

    with lock, counted(using) as found:
        thread = threading.Thread(target=rival)
        thread.start()
        assert entered.wait(10)
        thread.join()
    assert asked == [True]
    assert without_heartbeats(found) == {}


@each_engine
def test_busy_without_waiting_costs_one_statement(using: str, name: str) -> None:
    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        with advisory_lock(name + "-other", using=using):
            pass
        with counted(using) as found, pytest.raises(LockNotAcquired):
            advisory_lock(name, using=using).acquire(timeout=0)
        assert without_heartbeats(found) == {TRY[using]: 1}
        child.say()
        assert child.hear() == "released"


@each_engine
def test_r4_a_busy_wait_is_one_statement_however_long(using: str, name: str, proxied: Proxied) -> None:
    """R4: the engine queues the waiter; nothing is sent while it waits. Counted on the wire, because PostgreSQL does
    not count a statement that ended in lock_timeout. Of three waits the cheapest: the session of one whose reply came
    late is closed, and the next one opens another."""
    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        proxy = proxied(using)
        with pytest.raises(LockTimeout):  # opens the session to wait on
            advisory_lock(name, using=using).acquire(timeout=1)

        def requests() -> int:
            before = proxy.requests
            with pytest.raises(LockTimeout):
                advisory_lock(name, using=using).acquire(timeout=0.7)
            return proxy.requests - before

        # a try and a wait; on PostgreSQL a changed lock_timeout, and after a timeout whatever it came too late for
        most = {"postgres": 4, "mysql": 2}[using]
        assert any(requests() <= most for _ in range(3))
        child.say()
        assert child.hear() == "released"


@each_engine
def test_a_name_that_is_busy_for_the_first_time_is_tried_once_and_waited_for(using: str, name: str) -> None:
    def wait_for(other: str) -> None:
        """Have the lock of ``other`` once it is free."""
        thread = threading.Thread(target=lambda: advisory_lock(other, using=using).acquire(timeout=60).release())
        thread.start()
        eventually(lambda: waiters(using, other), "nobody waits at the server")
        child.say()
        assert child.hear() == "released"
        thread.join(20)
        assert not thread.is_alive()

    with Child(hold, using, f"{name}-1") as child:  # opens the session to wait on, which prepares its statement
        assert child.hear() == "held"
        wait_for(f"{name}-1")
    with Child(hold, using, f"{name}-2") as child:
        assert child.hear() == "held"
        with counted(using) as found:
            wait_for(f"{name}-2")
    # MariaDB counts the try and the wait as one statement
    assert found[TRY[using]] == {"postgres": 1, "mysql": 2}[using], found


def run(children: list[Child]) -> None:
    for child in children:
        child.say("go")
    for child in children:
        assert child.hear() == "done"


@each_engine
def test_a_handover_of_a_hot_name_costs_two_statements(using: str, name: str) -> None:
    """A hand-over between processes costs what the bare driver's costs: one wait, one release."""
    times, rivals = 150, 3
    with ExitStack() as stack:
        children = [stack.enter_context(Child(alternate, using, name, times)) for _ in range(rivals)]
        for child in children:
            assert child.hear() == "ready"
        run(children)  # everybody has found out that the name is busy
        with counted(using) as found:
            run(children)
        for child in children:
            child.say("end")
    counts = without_heartbeats(found)
    sections = times * rivals
    assert counts[FREE[using]] >= sections
    assert sum(counts.values()) <= 2 * sections * 1.05 + 10, counts


@pytest.mark.tier2
@each_engine
def test_r4_fifty_idle_waiters_cost_nothing(using: str, name: str) -> None:
    """R4: 50 waiters of 5 processes, and the server hears nothing of them for a second."""
    names = [f"{name}{number}" for number in range(5)]
    with ExitStack() as stack:
        holder = stack.enter_context(Child(hold, using, *names))
        assert holder.hear() == "held"
        eventually(lambda: all(noted(using, each) for each in names), "the holder does not write the names down")
        crowd = [stack.enter_context(Child(wait, using, names, 2)) for _ in range(5)]
        for child in crowd:
            assert child.hear() == "started"
        eventually(lambda: all(len(waiters(using, each)) == 5 for each in names), "25 do not wait at the server")
        with counted(using) as found:
            threading.Event().wait(1.0)  # the length of the measurement, not a pause for something to happen
        assert without_heartbeats(found) == {}
        holder.say()
        assert holder.hear() == "released"
        for child in crowd:
            assert child.hear() == "done"
