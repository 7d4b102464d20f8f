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
BASIC = {"signal", "sender", "name", "using", "template"}
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


def test_what_happens_is_told_of_each_lock_with_its_facts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set and a semaphore, busy locks, a wait that is cancelled, a deadlock, an engine that fails."""
    one, two = names = [f"{name}-{number}" for number in range(2)]
    lock, pool = advisory_lock(one, using="memory", timeout=None), semaphore(name, 1, using="memory")

    async def both() -> None:
        async with lock_all(names, using="memory"):
            pass
        async with lock:
            waiter = asyncio.create_task(lock.aacquire())
            await asyncio.to_thread(eventually, lambda: waited_for(one), "nobody waits")
            waiter.cancel()
            await asyncio.wait([waiter])

    def fail(*args: Any) -> None:
        raise BackendUnavailable("down")

    with listening() as heard:
        asyncio.run(both())
        with pool:
            assert pool.try_acquire() is None
        with advisory_lock(one, using="memory", shared=True):
            assert asyncio.run(lock.atry_acquire()) is None
            assert asyncio.run(lock_all([one], using="memory").atry_acquire()) is None
            with pytest.raises(DeadlockDetected):
                lock.acquire()
        monkeypatch.setattr(registry.entry("memory").backend, "try_acquire", fail)
        for act in (lock.acquire, lambda: asyncio.run(lock.atry_acquire())):
            with pytest.raises(BackendUnavailable):
                act()
    assert [(kind, facts["name"]) for kind, facts in heard] == [
        *[("acquired", one), ("acquired", two), ("released", two), ("released", one)],
        *[("acquired", one), ("failed", one), ("released", one)],
        *[("acquired", name), ("timed_out", name), ("released", name)],
        *[("acquired", one), ("timed_out", one), ("timed_out", one), ("failed", one), ("released", one)],
        *[("failed", one)] * 2,
    ]
    assert all(set(facts) == BASIC | FACTS[kind] for kind, facts in heard)
    errors = [asyncio.CancelledError, DeadlockDetected, BackendUnavailable, BackendUnavailable]
    assert [type(facts["error"]) for kind, facts in heard if kind == "failed"] == errors


def test_an_async_receiver_that_fails_is_logged_and_changes_nothing(name: str, caplog: Any) -> None:
    """Plain receivers that fail are in tests/unit/shared/test_holding.py."""

    async def receiver(**facts: Any) -> None:
        raise RuntimeError("receiver")

    for signal in SIGNALS.values():
        signal.connect(receiver)
    lock = advisory_lock(name, using="memory")
    with lock as lease:
        assert asyncio.run(lock.atry_acquire()) is None
        assert lease.held
    for signal in SIGNALS.values():
        signal.disconnect(receiver)
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
