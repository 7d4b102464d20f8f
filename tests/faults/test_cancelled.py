"""R7: cancelled tasks, closed event loops and interrupted threads leave nothing held, wherever they were."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from django_distlock import BackendUnavailable, LockNotAcquired, LockTimeout, advisory_lock
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.faults.server import SESSION_LOCKS, ask, holders, is_mariadb, lock_sessions, waiters
from tests.support.processes import Child
from tests.support.timing import within

pytestmark = pytest.mark.usefixtures("databases")
each_engine = pytest.mark.parametrize("using", SESSION_LOCKS)


def all_locks(using: str) -> list[Any]:
    """Every user-level lock on the sessions of this test's database, whoever holds or awaits it."""
    sessions = lock_sessions(using) or {0}
    if using == "postgres":
        return ask(using, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND pid = ANY(%s)", list(sessions))
    if is_mariadb():
        locks = "SELECT THREAD_ID AS id FROM information_schema.METADATA_LOCK_INFO WHERE LOCK_TYPE = 'User lock'"
    else:
        locks = (
            "SELECT PROCESSLIST_ID AS id FROM performance_schema.metadata_locks JOIN performance_schema.threads"
            " ON THREAD_ID = OWNER_THREAD_ID WHERE OBJECT_TYPE = 'USER LEVEL LOCK'"
        )
    return list(ask(using, f"SELECT id FROM ({locks}) l WHERE id IN ({', '.join(map(str, sessions))})"))


@each_engine
def test_r7_a_cancel_while_releasing_releases(using: str, name: str) -> None:
    """40 tasks share one session; each is cancelled at a random moment of many acquires and releases."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)

    async def one(number: int) -> None:
        while True:
            async with advisory_lock(f"{name}{number}", using=using):
                await asyncio.sleep(0)

    async def work() -> None:
        for _ in range(6):
            tasks = [asyncio.create_task(one(number)) for number in range(40)]
            for task in chance.sample(tasks, len(tasks)):
                await asyncio.sleep(chance.random() * 0.004)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)
            assert not list(lock_table.everything())
            # a session that was ended for want of an answer has its locks until the server hears of it
            await sync_to_async(eventually)(lambda: not all_locks(using), "a cancelled task left a lock", patience=1)

    asyncio.run(work())


@each_engine
def test_r7_a_cancel_of_a_wait_is_heard_at_once(using: str, name: str) -> None:
    """Also while the session to wait on is being opened, and on a lock that is never free. Nothing is held, nobody is
    left in the queue of the server, and the task does not hang on to its timeout."""

    async def work() -> float:
        slowest = 0.0
        for number in range(40):
            task = asyncio.create_task(advisory_lock(name, using=using).aacquire(timeout=None))
            await asyncio.sleep(number * 0.0005)
            began = time.monotonic()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            slowest = max(slowest, time.monotonic() - began)
            assert not await sync_to_async(waiters)(using, name)
        return slowest

    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        within(asyncio.run(work()), 1.0)
        child.say()
        assert child.hear() == "released"
    eventually(lambda: not holders(using, name), "a cancelled wait got the lock")


@each_engine
def test_r7_a_cancel_that_comes_before_the_wait_is_sent_again(
    using: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has not yet begun with the statement, and forgets the cancel."""
    backend: Any = registry.entry(using).backend
    cancels = []

    async def work() -> float:
        task = asyncio.create_task(advisory_lock(name, using=using).aacquire(timeout=None))
        await asyncio.to_thread(until_one_waits, using, name)
        cancel = type(backend.sessions.all()[0]).cancel

        def forgotten(self: Any, other: Any, until: float) -> Any:
            cancels.append(other)
            if len(cancels) > 1:
                yield from cancel(self, other, until)

        monkeypatch.setattr(type(backend.sessions.all()[0]), "cancel", forgotten)
        began = time.monotonic()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        within(asyncio.run(work()), 0.5)
        assert not waiters(using, name)
        assert 2 <= len(cancels) <= 5  # and again, where the answer to the second one is late
        child.say()
        assert child.hear() == "released"


def test_r7_a_wait_that_was_prepared_for_somebody_who_has_gone(name: str) -> None:
    """The server has the statement, and we have not heard of it."""
    lock = advisory_lock(name, using="postgres", timeout=0.1)
    with Child(hold, "postgres", name) as child:
        assert child.hear() == "held"
        assert lock.try_acquire(timeout=1) is None  # opens the sessions
        for _ in range(2):
            with pytest.raises(LockTimeout):
                lock.acquire()
            for session in registry.entry("postgres").backend.sessions.all():  # type: ignore[attr-defined]
                session._prepared.discard(b"wait_x")
                session._preparing = True
        child.say()
        assert child.hear() == "released"


def test_r7_the_naive_cancel_is_granted_later(name: str) -> None:
    """The fault that is guarded against: a cancelled task lets go of a thread that waits on, and gets the lock."""
    parameters = connections["postgres"].get_connection_params()
    known = {key: parameters[key] for key in ("host", "port", "user", "password", "dbname")}
    number = abs(hash(name)) % 2**31
    with psycopg.connect(**known, autocommit=True) as holder, psycopg.connect(**known, autocommit=True) as waiter:
        holder.execute("SELECT pg_advisory_lock(%s)", [number])

        async def work() -> None:
            waiting = asyncio.to_thread(waiter.execute, "SELECT pg_advisory_lock(%s)", [number])
            task = asyncio.create_task(waiting)
            await asyncio.sleep(0.05)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            holder.execute("SELECT pg_advisory_unlock(%s)", [number])

        asyncio.run(work())
        sql = "SELECT granted FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
        assert holder.execute(sql, [waiter.info.backend_pid]).fetchall() == [(True,)]


@each_engine
def test_r7_a_loop_that_is_closed_under_its_waiters(using: str, name: str) -> None:
    """The tasks are never run again, not even to be cancelled. What they waited for is not held by anybody."""
    with Child(hold, using, name) as child:
        assert child.hear() == "held"
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(advisory_lock(name, using=using).aacquire(timeout=30)) for _ in range(3)]

        loop.run_until_complete(asyncio.to_thread(until_one_waits, using, name))
        for task in tasks:
            task._log_destroy_pending = False  # a warning of asyncio's, meant for others
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        del tasks, task, loop
        gc.collect()
        child.say()
        assert child.hear() == "released"
    eventually(lambda: not holders(using, name), "held by a task of a closed loop")
    with advisory_lock(name, using=using, timeout=5):
        pass
    assert not list(lock_table.everything())


def until_one_waits(using: str, name: str) -> None:
    try:
        eventually(lambda: waiters(using, name), "nobody waits")
    finally:
        connections.close_all()


@each_engine
def test_r7_a_loop_that_is_closed_in_the_middle_of_a_release(using: str, name: str) -> None:
    """The session is shared with threads, which go on."""
    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(advisory_lock(name, using=using).aacquire())
    session = lease._hold.grant.session
    assert session.mutex.try_acquire()  # somebody else is talking
    task = loop.create_task(lease.arelease())
    loop.run_until_complete(asyncio.sleep(0.01))
    task._log_destroy_pending = False
    loop.close()
    del task
    session.mutex.release()
    gc.collect()
    eventually(lambda: not holders(using, name), "held by a task of a closed loop")
    with advisory_lock(name, using=using, timeout=5):
        pass


@pytest.mark.tier2
@each_engine
def test_r7_cancelled_attempts_raced_with_the_grant(using: str, name: str) -> None:
    """Two processes pass a lock to and fro while tasks of this one are cancelled after about the time of a grant."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    outcomes = {"held": 0, "gone": 0}
    lock = advisory_lock(name, using=using)
    longest = 0.02  # follows the time of a grant, which depends on how busy the machine is

    async def one() -> None:
        nonlocal longest
        try:
            lease = await asyncio.wait_for(lock.aacquire(timeout=5), chance.random() * longest)
        except (TimeoutError, LockNotAcquired, BackendUnavailable):
            outcomes["gone"] += 1
            longest *= 1.05
        else:
            outcomes["held"] += 1
            longest *= 0.95
            await lease.arelease()

    async def work() -> None:
        ends = time.monotonic() + 2.5
        while time.monotonic() < ends:
            await asyncio.gather(*(one() for _ in range(4)))
            assert not list(lock_table.everything())

    with Child(pass_on, using, name, 3.0) as first, Child(pass_on, using, name, 3.0) as second:
        assert first.hear() == second.hear() == "passing"
        asyncio.run(work())
        assert first.hear() == second.hear() == "done"
    assert outcomes["held"] > 20, outcomes
    assert outcomes["gone"] > 20, outcomes
    eventually(lambda: not holders(using, name), "held after a cancel")


def pass_on(link: Any, using: str, name: str, seconds: float) -> None:
    """In a child: take the lock and give it back for some seconds."""
    lock = advisory_lock(name, using=using, timeout=20)
    link.say("passing")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with lock:
            pass
    link.say("done")
