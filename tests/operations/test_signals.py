"""Every signal with its facts. What all engines tell is in the suite for all engines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from django_distlock import (
    BackendUnavailable,
    DeadlockDetected,
    LockTimeout,
    advisory_lock,
    held_locks,
    lock_all,
    semaphore,
)
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.operations.listening import SIGNALS, listening

pytestmark = pytest.mark.usefixtures("databases")
BASIC = {"signal", "sender", "name", "using", "template"}


def test_the_wait_is_no_part_of_the_hold(name: str) -> None:
    """Nor is a hold shorter for having been renewed."""
    lock = advisory_lock(name, using="memory", timeout=60)
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.acquire() as lease:
            taken.set()
            over.wait(60)
            lease.extend(30)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(60)
    threading.Timer(0.2, over.set).start()
    with listening(name) as heard:
        began = monotonic()
        with lock:
            pass
        took = monotonic() - began
        holder.join()
    acquired = heard.facts("acquired")
    assert set(acquired) == BASIC | {"wait", "hold", "fence"}
    released = [facts for kind, facts in heard if kind == "released"]
    assert all(set(facts) == BASIC | {"hold", "fence"} for facts in released)
    ours, theirs = sorted(facts["hold"] for facts in released)
    assert acquired["wait"] > 0
    assert acquired["wait"] + ours <= took + 0.001
    assert theirs >= 0.2


def test_busy_is_told(name: str) -> None:
    lock = advisory_lock(name, using="memory", timeout=0.1)
    with lock, listening(name) as heard:
        assert asyncio.run(lock.atry_acquire()) is None
        for each in (lock, lock_all([name], using="memory", timeout=0.1)):
            with pytest.raises(LockTimeout):
                asyncio.run(each.aacquire())
        assert heard.kinds() == ["timed_out"] * 3
    assert all(set(facts) == BASIC | {"wait"} for kind, facts in heard if kind == "timed_out")
    assert min(facts["wait"] for _, facts in heard[1:3]) >= 0.1


def test_a_semaphore_and_a_set_tell_of_each(name: str) -> None:
    names = [f"{name}-{number}" for number in range(2)]

    async def both() -> None:
        async with lock_all(names, using="memory"):
            pass

    with listening() as heard:
        asyncio.run(both())
        pool = semaphore(name, 1, using="memory")
        with pool:
            assert pool.try_acquire() is None
    assert [(kind, facts["name"]) for kind, facts in heard] == [
        *[("acquired", each) for each in names],
        *[("released", each) for each in reversed(names)],
        ("acquired", name),
        ("timed_out", name),
        ("released", name),
    ]


def test_failures_are_told_with_their_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is cancelled, a deadlock, an engine that fails."""
    lock = advisory_lock(name, using="memory", timeout=None)

    def waited_for() -> bool:
        return any(info.name == name and info.waiters for info in held_locks("memory")[0].locks)

    async def cancelled() -> None:
        async with lock:
            waiter = asyncio.create_task(lock.aacquire())
            await asyncio.to_thread(eventually, waited_for, "nobody waits")
            waiter.cancel()
            await asyncio.wait([waiter])

    def fail(*args: Any) -> None:
        raise BackendUnavailable("down")

    with listening(name) as heard:
        asyncio.run(cancelled())
        with advisory_lock(name, using="memory", shared=True), pytest.raises(DeadlockDetected):
            lock.acquire()
        monkeypatch.setattr(registry.entry("memory").backend, "try_acquire", fail)
        for act in (lock.acquire, lambda: asyncio.run(lock.atry_acquire())):
            with pytest.raises(BackendUnavailable):
                act()
    failed = [facts for kind, facts in heard if kind == "failed"]
    assert [type(facts["error"]) for facts in failed] == [
        asyncio.CancelledError,
        DeadlockDetected,
        *[BackendUnavailable] * 2,
    ]
    assert all(set(facts) == BASIC | {"wait", "error"} for facts in failed)


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
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert all("\n" not in record.getMessage() for record in caplog.records)
