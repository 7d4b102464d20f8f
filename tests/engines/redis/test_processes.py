"""Processes that die, sleep or fork, tasks that are cancelled, and event loops side by side."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.engines.redis.server import free, waiters
from tests.support.processes import Child
from tests.support.timing import within
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"
SLACK = 0.15  # for a machine that has other things to do


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time(monkeypatch.setattr)


@contextmanager
def held_by_another(name: str) -> Iterator[Child]:
    """A process that holds the lock already: one that is started side by side with it could be faster and get it."""
    with Child(hold, USING, name) as holder:
        assert holder.hear() == "held"
        yield holder


def queue(link: Any, name: str) -> None:
    """Wait for the lock until killed."""
    link.say("asking")
    advisory_lock(name, using=USING, timeout=60).acquire()
    link.say("held")
    link.hear()


def test_r4_a_dead_waiter_is_passed_over_at_once(name: str) -> None:
    with held_by_another(name) as holder, Child(queue, name) as dying:
        assert dying.hear() == "asking"
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        got: list[float] = []
        thread = threading.Thread(
            target=lambda: (advisory_lock(name, using=USING).acquire().release(), got.append(time.monotonic()))
        )
        thread.start()
        eventually(lambda: waiters(USING, name) == 2, "there is no waiter")
        dying.kill()
        began = time.monotonic()
        holder.say()
        assert holder.hear() == "released"
        thread.join(10)
    within(got[0] - began, 1.0)
    assert free(USING, name)


def test_the_first_waiter_notices_a_holder_that_died(name: str) -> None:
    with Child(hold_for, name, 0.6) as child:
        assert child.hear() == "held"
        child.kill()
        began = time.monotonic()
        advisory_lock(name, using=USING).acquire(timeout=5).release()
    within(time.monotonic() - began, 0.6 + SLACK)


def test_waiters_that_die_with_the_holder(name: str) -> None:
    """The lock went to a holder with a shorter TTL, and that one and the next in the queue are killed: the one behind
    them has heard of it, and does not sleep until the end of the long lease that it saw first."""
    ttl = 1.5
    got: list[float] = []
    thread = threading.Thread(
        target=lambda: (advisory_lock(name, using=USING).acquire(60).release(), got.append(time.monotonic()))
    )
    with held_by_another(name) as holder, Child(hold_for, name, ttl) as first, Child(hold_for, name, ttl) as second:
        eventually(lambda: waiters(USING, name) == 2, "they do not wait")
        thread.start()
        eventually(lambda: waiters(USING, name) == 3, "it does not wait")
        holder.say()
        assert holder.hear() == "released"
        first.kill()
        second.kill()
        began = time.monotonic()
        thread.join(40)
    within(got[0] - began, ttl + 0.5 + SLACK)  # the second in the queue leaves the first some time


def hold_for(link: Any, name: str, ttl: float) -> None:
    lease = advisory_lock(name, using=USING, ttl=ttl).acquire()
    link.say("held")
    link.hear()
    link.say([lease.lost, lease.fence])
    try:
        lease.release()
    except LockLost:
        link.say("lost")
    else:
        link.say("released")


def test_r17_a_holder_that_sleeps_beyond_its_ttl_knows_when_it_wakes(name: str) -> None:
    with Child(hold_for, name, 0.3) as child:
        assert child.hear() == "held"
        child.signal(signal.SIGSTOP)
        child.say()
        with advisory_lock(name, using=USING).acquire(timeout=5) as lease:
            child.signal(signal.SIGCONT)
            lost, fence = child.hear()
            assert lost is True
            assert fence < lease.fence
            assert child.hear() == "lost"
            lease.ensure_held()


def test_r19_a_waiter_that_sleeps_over_its_grant_knows_it(name: str) -> None:
    """The lock is handed to it while it sleeps, for 0.3 s."""
    with held_by_another(name) as holder, Child(wait_for, name, 0.3) as sleeper:
        assert sleeper.hear() == "asking"
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        sleeper.signal(signal.SIGSTOP)
        holder.say()
        assert holder.hear() == "released"
        with advisory_lock(name, using=USING).acquire(timeout=5) as lease:
            sleeper.signal(signal.SIGCONT)
            eventually(lambda: waiters(USING, name) == 1, "it does not queue again")
            lease.ensure_held()
        assert sleeper.hear() > lease.fence


def wait_for(link: Any, name: str, ttl: float) -> None:
    link.say("asking")
    lease = advisory_lock(name, using=USING, ttl=ttl, timeout=20).acquire()
    link.say(lease.fence)
    with suppress(LockLost):  # it lasts for a moment only, and has been shown
        lease.release()


def test_r22_a_fork_leaves_the_parents_connections_alone(name: str) -> None:
    lock = advisory_lock(name, using=USING)
    with lock as lease:
        pid = os.fork()
        if pid == 0:
            try:
                code = 1
                if not lease.held and lock.try_acquire() is None:
                    advisory_lock(name + "child", using=USING).acquire().release()
                    registry.close()
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        lease.ensure_held()
        lease.extend(20)
    assert free(USING, name)
    assert free(USING, name + "child")


def test_r22_a_child_opens_connections_of_its_own(own: Own, name: str) -> None:
    """On a shared one each would read replies to the other."""
    advisory_lock(name, using=USING).acquire().release()
    before = {each["addr"] for each in own.client.client_list()}
    ready, end = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with advisory_lock(name, using=USING):
                os.write(ready[1], b"x")
                os.read(end[0], 1)
        finally:
            os._exit(0)
    assert os.read(ready[0], 1) == b"x"
    try:
        assert {each["addr"] for each in own.client.client_list()} > before
    finally:
        os.write(end[1], b"x")
        os.waitpid(pid, 0)
        for fd in (*ready, *end):
            os.close(fd)


def test_r7_500_cancellations_leave_no_key(name: str) -> None:
    """At random moments of connecting, asking, waiting, holding and giving back; the name is busy half of the time."""
    rng = random.Random(7)
    lock = advisory_lock(name, using=USING, timeout=5)

    async def one() -> None:
        async with lock:
            await asyncio.sleep(rng.random() / 500)

    async def main() -> int:
        cancelled = 0
        for _ in range(50):
            tasks = [asyncio.create_task(one()) for _ in range(10)]
            for task in tasks:
                await asyncio.sleep(rng.random() / 2000)
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
            cancelled += sum(end is not None for end in ends)
            # connections that nobody waits for any more are opened to the end, and only so many at once
            await asyncio.to_thread(eventually, lambda: not opening(), "still connecting")
        return cancelled

    assert asyncio.run(main()) > 200
    assert free(USING, name)


def opening() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("distlock-redis-open")]


def test_loops_in_several_threads_share_the_connections(name: str) -> None:
    counted = []

    async def count() -> None:
        for _ in range(20):
            async with advisory_lock(name, using=USING, timeout=20):
                before = len(counted)
                await asyncio.sleep(0)
                counted.append(before)

    threads = [threading.Thread(target=lambda: asyncio.run(count())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counted == list(range(80))
