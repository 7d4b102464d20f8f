"""Every signal with its facts, for every kind of lock on every backend; a receiver that fails changes nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

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
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.matrix import Entry

BASIC = {"signal", "sender", "name", "using", "template"}


def hold_in_thread(recipe: Any) -> Iterator[None]:
    """Held by another thread while the generator is suspended."""
    taken, done = threading.Event(), threading.Event()

    def run() -> None:
        with recipe:
            taken.set()
            done.wait(30)

    thread = threading.Thread(target=run)
    thread.start()
    assert taken.wait(30)
    yield
    done.set()
    thread.join()


def test_a_lock_tells_who_waited_and_held_for_how_long(using: str, name: str) -> None:
    backend = registry.entry(using).backend
    with listening(name) as heard:
        with advisory_lock(name, using=using):
            time.sleep(0.05)
            with advisory_lock(name, using=using):  # the engine is not asked: nothing is told
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
    assert 0 <= acquired["wait"] < 5
    assert released["hold"] >= 0.05


def test_the_wait_is_no_part_of_the_hold(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    holder = hold_in_thread(lock)
    next(holder)
    timer = threading.Timer(0.5, lambda: next(holder, None))
    timer.start()
    with listening(name) as heard:
        asked = time.monotonic()
        with lock:
            took = time.monotonic() - asked  # it may begin later than the timer
            within(took - heard.facts("acquired")["wait"], 0.25, least=0)
            within(heard.facts("acquired")["hold"], 0.25)
        timer.join()  # who lets go may tell it after us
    ours, theirs = sorted(facts["hold"] for kind, facts in heard if kind == "released")
    within(ours, 0.25)
    assert theirs >= 0.5


def test_a_renewed_lease_was_held_from_the_beginning(entry: Entry, name: str) -> None:
    if not registry.entry(entry.using).backend.supports_ttl:
        return
    with listening(name) as heard, advisory_lock(name, using=entry.using, ttl=5) as lease:
        time.sleep(0.1)
        lease.extend(5)
    assert heard.facts("released")["hold"] >= 0.1


def test_busy_to_the_end_is_told_sync_and_async(using: str, name: str) -> None:
    holder = hold_in_thread(advisory_lock(name, using=using))
    next(holder)
    with listening(name) as heard:
        asked = time.monotonic()
        assert advisory_lock(name, using=using).try_acquire() is None
        took = time.monotonic() - asked
        with pytest.raises(LockTimeout):
            asyncio.run(advisory_lock(name, using=using).aacquire(timeout=0.1))
        with pytest.raises(LockTimeout):
            lock_all([name], using=using, timeout=0.1).acquire()
        assert heard.kinds() == ["timed_out"] * 3
        assert all(set(facts) == BASIC | {"wait"} for _, facts in heard)
        first, *others = (facts["wait"] for _, facts in heard)
        assert first <= took  # it may have had to connect
        assert min(others) >= 0.1
        next(holder, None)


def test_a_semaphore_tells_the_same(using: str, name: str) -> None:
    def pool() -> Any:
        return semaphore(name, 1, using=using, timeout=0.5)

    with listening(name) as heard:
        with pool(), pytest.raises(LockTimeout):
            pool().acquire()
        assert heard.kinds() == ["acquired", "timed_out", "released"]
        assert heard.facts("timed_out")["wait"] >= 0.5


def test_all_or_nothing_tells_of_each(using: str, name: str) -> None:
    names = [f"{name}-{number}" for number in range(2)]

    async def both() -> None:
        async with lock_all(names, using=using):
            pass

    with listening() as heard:
        asyncio.run(both())
    assert [(kind, facts["name"]) for kind, facts in heard] == [
        ("acquired", names[0]),
        ("acquired", names[1]),
        ("released", names[1]),
        ("released", names[0]),
    ]


def test_the_template_is_what_the_decorator_says(using: str, name: str) -> None:
    template = name[-200:] + ":{number}"

    @advisory_lock(template, using=using)
    def plain(number: int) -> None: ...

    @semaphore(template, 2, using=using)
    def limited(number: int) -> None: ...

    @lock_all([template, name], using=using)
    async def several(number: int) -> None: ...

    @advisory_lock(name, using=using)
    async def literal() -> None: ...

    with listening() as heard:
        plain(1)
        limited(2)
        asyncio.run(several(3))
        asyncio.run(literal())
    found = {(facts["name"], facts["template"]) for _, facts in heard}
    assert found == {(template.replace("{number}", str(n)), template) for n in (1, 2, 3)} | {(name, name)}


def test_a_lock_kept_for_a_transaction_is_released_after_it(entry: Entry, name: str) -> None:
    if entry.database is None:
        return
    with listening(name) as heard:
        with transaction.atomic(entry.database):
            with advisory_lock(name, using=entry.using):
                pass
            time.sleep(0.05)
            assert heard.kinds() == ["acquired"]
        assert heard.kinds() == ["acquired", "released"]
    assert heard.facts("released")["hold"] >= 0.05


def test_a_deadlock_and_a_cancelled_wait_are_told(using: str, name: str) -> None:
    async def cancelled() -> None:
        async with advisory_lock(name, using=using):
            waiter = asyncio.create_task(advisory_lock(name, using=using).aacquire(timeout=None))
            await asyncio.sleep(0.05)
            waiter.cancel()
            await asyncio.wait([waiter])

    with listening(name) as heard:
        asyncio.run(cancelled())
        facts = heard.facts("failed")
        assert set(facts) == BASIC | {"wait", "error"}
        assert isinstance(facts["error"], asyncio.CancelledError)
    if registry.entry(using).backend.supports_shared:
        with listening(name) as heard, advisory_lock(name, using=using, shared=True):
            with pytest.raises(DeadlockDetected):
                advisory_lock(name, using=using).acquire()
            assert isinstance(heard.facts("failed")["error"], DeadlockDetected)


@pytest.mark.usefixtures("databases")
def test_an_engine_that_fails_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise BackendUnavailable("down")

    backend = registry.entry("memory").backend
    monkeypatch.setattr(backend, "try_acquire", fail)
    with listening(name) as heard:
        with pytest.raises(BackendUnavailable):
            advisory_lock(name, using="memory").acquire()
        with pytest.raises(BackendUnavailable):
            asyncio.run(advisory_lock(name, using="memory").atry_acquire())
    assert heard.kinds() == ["failed", "failed"]


def test_a_broken_lock_is_told_and_lost(using: str, name: str) -> None:
    backend = registry.entry(using).backend
    if not backend.supports_break:
        return
    options: dict[str, Any] = {"ttl": 2.0} if backend.supports_ttl else {}
    with listening(name) as heard:
        lease = advisory_lock(name, using=using, **options).acquire()
        (report,) = held_locks(using)
        (info,) = (info for info in report.locks if info.name == name)
        assert break_lock(info, reason="stuck")
        eventually(lambda: lease.lost and "lost" in heard.kinds(), "the holder is not told")
        with pytest.raises(LockLost):
            lease.release()
    assert heard.facts("broken")["reason"] == "stuck"
    assert set(heard.facts("broken")) == BASIC | {"reason"}
    assert set(heard.facts("lost")) == BASIC | {"reason", "hold", "fence"}


def failing(**facts: Any) -> None:
    raise RuntimeError("receiver")


async def failing_async(**facts: Any) -> None:
    raise RuntimeError("receiver")


@pytest.mark.parametrize("receiver", [failing, failing_async])
@pytest.mark.parametrize("using", ["memory", "leasetable"])
def test_a_receiver_that_fails_is_logged_and_changes_nothing(
    using: str, receiver: Any, name: str, databases: None, caplog: pytest.LogCaptureFixture
) -> None:
    sent = (signals.lock_acquired, signals.lock_released, signals.lock_timed_out)
    for signal in sent:
        signal.connect(receiver)
    try:
        with advisory_lock(name, using=using) as lease:
            assert lease.held
        assert not lease.lost
        with caplog.at_level(logging.ERROR), advisory_lock(name, using=using):
            assert asyncio.run(advisory_lock(name, using=using).atry_acquire()) is None
    finally:
        for signal in sent:
            signal.disconnect(receiver)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 5
    assert all("\n" not in record.getMessage() for record in caplog.records)
