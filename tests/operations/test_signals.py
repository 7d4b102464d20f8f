"""Every signal with its facts; and the warning about a lock that is held for long, which says where its holder is."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async

from django_distlock import BackendUnavailable, DeadlockDetected, advisory_lock, held_locks, lock_all, semaphore
from django_distlock.concurrency import clock
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.registry import registry
from tests.conftest import PATIENCE, eventually
from tests.operations.world import MEMORY, SIGNALS, listening

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.clock import FakeClock

pytestmark = pytest.mark.usefixtures("databases")
BASIC = {"signal", "sender", "name", "namespace", "using", "template"}
FACTS = {
    "acquired": {"wait", "hold", "fence"},
    "released": {"hold", "fence"},
    "timed_out": {"wait"},
    "failed": {"wait", "error"},
}


def waited_for(name: str) -> bool:
    return any(info.name == name and info.waiters for info in held_locks("memory")[0].locks)


def test_the_wait_is_no_part_of_the_hold(name: str, fake_clock: FakeClock) -> None:
    """Nor is a hold shorter for having been renewed."""
    lock = advisory_lock(name, using="memory", timeout=60)
    with listening(name) as heard, ThreadPoolExecutor(1) as pool:
        first = lock.acquire()
        lock.acquire().release()  # of a re-entry nothing is told
        waiting = pool.submit(lock.acquire)
        eventually(lambda: waited_for(name), "nobody waits")
        fake_clock.advance(5)
        first.extend(30)
        first.release()
        second = waiting.result(PATIENCE)
        fake_clock.advance(2)
        second.release()
    assert sorted(facts["wait"] for kind, facts in heard if kind == "acquired") == [0, 5]
    assert [facts["hold"] for kind, facts in heard if kind == "released"] == [5, 2]
    fences = [first.fence, first.fence, second.fence, second.fence]
    assert sorted(facts["fence"] for _, facts in heard) == fences


def misfortunes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadlock, a busy lock, a wait that is cancelled, an engine that fails."""
    lock = advisory_lock(name, using="memory")

    def fail(*args: Any) -> None:
        raise BackendUnavailable(f"{name} down")

    async def others() -> None:
        assert await lock.atry_acquire(0.2) is None
        waiter = asyncio.create_task(lock.aacquire(timeout=None))
        await asyncio.to_thread(eventually, lambda: waited_for(name), "nobody waits")
        waiter.cancel()
        await asyncio.wait([waiter])

    with advisory_lock(name, using="memory", shared=True):
        with pytest.raises(DeadlockDetected):
            lock.acquire()
        asyncio.run(others())
    monkeypatch.setattr(registry.entry("memory").backend, "try_acquire", fail)
    for act in (lock.acquire, lambda: asyncio.run(lock.atry_acquire())):
        with pytest.raises(BackendUnavailable):
            act()


def test_what_happens_is_told_of_each_lock_with_its_facts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a set, and of a semaphore."""
    one, two = names = [f"{name}-{number}" for number in range(2)]
    pool = semaphore(name, 1, using="memory")

    async def both() -> None:
        async with lock_all(names, using="memory"):
            assert await asyncio.create_task(lock_all([two], using="memory").atry_acquire()) is None

    with listening() as heard:
        asyncio.run(both())
        with pool:
            assert pool.try_acquire() is None
        misfortunes(one, monkeypatch)
    assert [(kind, facts["name"]) for kind, facts in heard] == [
        *[("acquired", one), ("acquired", two), ("timed_out", two), ("released", two), ("released", one)],
        *[("acquired", name), ("timed_out", name), ("released", name)],
        *[(kind, one) for kind in ("acquired", "failed", "timed_out", "failed", "released", "failed", "failed")],
    ]
    assert all(set(facts) == BASIC | FACTS[kind] for kind, facts in heard)
    assert {(facts["sender"].__name__, facts["using"]) for _, facts in heard} == {("MemoryBackend", "memory")}
    assert max(facts["wait"] for kind, facts in heard if kind == "timed_out") >= 0.2
    errors = [DeadlockDetected, asyncio.CancelledError, BackendUnavailable, BackendUnavailable]
    assert [type(facts["error"]) for kind, facts in heard if kind == "failed"] == errors


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_receiver_that_fails_is_logged_and_changes_nothing(coroutine: bool, name: str, caplog: Any) -> None:
    def failing(**facts: Any) -> None:
        raise RuntimeError("receiver")

    async def failing_async(**facts: Any) -> None:
        raise RuntimeError("receiver")

    receiver = failing_async if coroutine else failing
    for signal in SIGNALS.values():
        signal.connect(receiver)
    lock = advisory_lock(name, using="memory")
    with lock as lease:
        assert asyncio.run(lock.atry_acquire()) is None
        assert lease.held
    for signal in SIGNALS.values():
        signal.disconnect(receiver)
    assert not lease.held
    assert [(record.levelname, "\n" in record.getMessage()) for record in caplog.records] == [("ERROR", False)] * 3


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, settings: Any) -> Callable[[], str]:
    """What is said of the locks that are held now, as if ten seconds were over."""
    settings.DISTLOCK = {"slow": {**MEMORY, "WARN_HOLD_SECONDS": 10}}

    def look() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "django_distlock.locks"):
            keepalive.tick(clock.now() + 10.1)
        (record,) = caplog.records  # of one: to wait is not to hold
        return record.getMessage()

    return look


def test_the_warning_of_a_slow_hold_says_where_its_thread_is(warned: Callable[[], str], name: str) -> None:
    """On one line, beside another thread that waits."""
    gate, entered = threading.Event(), threading.Event()

    def stuck_in_this_function() -> None:
        entered.set()
        gate.wait(60)

    def hold() -> None:
        with advisory_lock(name, using="slow", timeout=60):
            stuck_in_this_function()

    with ThreadPoolExecutor(2) as pool:
        holds = [pool.submit(hold) for _ in range(2)]
        assert entered.wait(60)
        said = warned()
        gate.set()
    assert [hold.result() for hold in holds] == [None, None]
    assert f"{name!r} of alias 'slow'" in said
    where = r" for 1\d\.\d s\. Its holder is at [^\n]*test_signals\.py:\d+ in stuck_in_this_function < [^\n]* in hold"
    assert re.search(where, said)
    assert "\n" not in said


def test_the_warning_of_a_slow_hold_says_where_its_task_is(warned: Callable[[], str], name: str) -> None:
    """Which awaits code in a thread."""

    async def hold() -> str:
        async with advisory_lock(name, using="slow"):
            return await sync_to_async(warned)()

    assert " in hold" in asyncio.run(hold())
