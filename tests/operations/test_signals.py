"""Every signal with its facts; a receiver that fails changes nothing. What engines differ in is tested in contract."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from django.db import transaction

from django_distlock import (
    BackendUnavailable,
    DeadlockDetected,
    LockLost,
    LockTimeout,
    advisory_lock,
    break_lock,
    held_locks,
    lock_all,
    semaphore,
    signals,
)
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.operations.listening import listening

pytestmark = pytest.mark.usefixtures("databases")
BASIC = {"signal", "sender", "name", "using", "template"}


@pytest.mark.parametrize("using", ["leasetable", "postgres"])
def test_a_lock_tells_who_waited_and_held_for_how_long(using: str, name: str) -> None:
    backend = registry.entry(using).backend
    with listening(name) as heard:
        with advisory_lock(name, using=using), advisory_lock(name, using=using):  # the engine is not asked again
            pass
        with advisory_lock(name, using=using).acquire():
            pass
    assert heard.kinds() == ["acquired", "released"] * 2
    acquired, released = heard[0][1], heard[1][1]
    assert set(acquired) == BASIC | {"wait", "hold", "fence"}
    assert set(released) == BASIC | {"hold", "fence"}
    for facts in (acquired, released):
        assert (facts["sender"], facts["using"], facts["template"]) == (type(backend), using, None)
        assert (facts["fence"] is not None) == backend.supports_fencing
    assert acquired["wait"] >= 0
    assert released["hold"] >= acquired["hold"] >= 0


def test_the_wait_is_no_part_of_the_hold(name: str) -> None:
    """Nor is a hold shorter for having been renewed, or asked again."""
    lock = advisory_lock(name, using="memory", timeout=60)
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.acquire() as lease:
            taken.set()
            over.wait(60)
            lease.extend(30)

    with listening(name) as heard:
        thread = threading.Thread(target=hold)
        thread.start()
        taken.wait(60)
        timer = threading.Timer(0.2, over.set)
        timer.start()
        with lock:
            pass
        thread.join()
    waited = heard[-2][1]["wait"] if heard[-2][0] == "acquired" else heard[1][1]["wait"]
    ours, theirs = sorted(facts["hold"] for kind, facts in heard if kind == "released")
    assert ours < waited <= theirs


def test_busy_is_told(name: str) -> None:
    lock = advisory_lock(name, using="leasetable", timeout=1)
    with lock, listening(name) as heard:
        assert asyncio.run(lock.atry_acquire()) is None
        for each in (lock, lock_all([name], using="leasetable", timeout=1)):
            with pytest.raises(LockTimeout):
                asyncio.run(each.aacquire())
    assert heard.kinds() == ["timed_out"] * 3
    assert all(set(facts) == BASIC | {"wait"} for _, facts in heard)
    assert min(facts["wait"] for _, facts in heard[1:]) >= 1


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


def test_the_template_is_what_the_decorator_says(name: str) -> None:
    template = name[-200:].replace("[", "").replace("]", "") + ":{number}"

    @advisory_lock(template, using="memory")
    def plain(number: int) -> None: ...

    @semaphore(template, 2, using="memory")
    def limited(number: int) -> None: ...

    @lock_all([template, name], using="memory")
    async def several(number: int) -> None: ...

    with listening() as heard:
        plain(1)
        limited(2)
        asyncio.run(several(3))
    found = {(facts["name"], facts["template"]) for _, facts in heard}
    assert found == {(template.replace("{number}", str(n)), template) for n in (1, 2, 3)} | {(name, name)}


def test_a_lock_kept_for_a_transaction_is_released_after_it(name: str) -> None:
    with listening(name) as heard:
        with transaction.atomic("postgres"):
            with advisory_lock(name, using="postgres"):
                pass
            assert heard.kinds() == ["acquired"]
        assert heard.kinds() == ["acquired", "released"]


def test_failures_are_told_with_their_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is cancelled, a deadlock, an engine that fails."""
    lock = advisory_lock(name, using="memory", timeout=None)

    async def cancelled() -> None:
        async with lock:
            waiter = asyncio.create_task(lock.aacquire())
            await asyncio.sleep(0)
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


def test_a_broken_lock_is_told_and_lost(name: str) -> None:
    with listening(name) as heard:
        lease = advisory_lock(name, using="postgres").acquire()
        (info,) = (info for info in held_locks("postgres")[0].locks if info.name == name)
        assert break_lock(info, reason="stuck")
        eventually(lambda: lease.lost and "lost" in heard.kinds(), "the holder is not told")
        with pytest.raises(LockLost):
            lease.release()
    assert heard.facts("broken")["reason"] == "stuck"
    assert set(heard.facts("broken")) == BASIC | {"reason"}
    assert set(heard.facts("lost")) == BASIC | {"reason", "hold", "fence"}


async def failing_async(**facts: Any) -> None:
    raise RuntimeError("receiver")


def failing(**facts: Any) -> None:
    raise RuntimeError("receiver")


@pytest.mark.parametrize("receiver", [failing, failing_async])
def test_a_receiver_that_fails_is_logged_and_changes_nothing(
    receiver: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = (signals.lock_acquired, signals.lock_released, signals.lock_timed_out)
    for signal in sent:
        signal.connect(receiver)
    try:
        with caplog.at_level(logging.ERROR), advisory_lock(name, using="memory") as lease:
            assert asyncio.run(advisory_lock(name, using="memory").atry_acquire()) is None
            assert lease.held
    finally:
        for signal in sent:
            signal.disconnect(receiver)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert all("\n" not in record.getMessage() for record in caplog.records)
