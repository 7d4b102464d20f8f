"""R17, R19, R20: leases and waits on a clock that the test moves: when a lease is renewed, when it ends, and what an
error in the thread that keeps every lock of the process costs; and which clock it is."""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async

from django_distlock import Lease, LockLost, advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from django_distlock.manager.release import lose
from tests.conftest import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.records import Grant
    from tests.support.clock import FakeClock


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """Another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def somebody_waits() -> bool:
    return any(hold.parker is not None for hold in lock_table.all())


def lost(lease: Lease) -> bool:
    with pytest.raises(LockLost):
        lease.release()
    return lease.lost


def test_r20_a_lease_is_renewed_at_a_third_of_its_ttl(fake_clock: FakeClock, name: str) -> None:
    lease = advisory_lock(name, using="memory", ttl=30).acquire()
    end = lease.valid_until
    assert end is not None
    fake_clock.advance(9.5)
    assert lease.valid_until == end
    fake_clock.advance(0.5)
    assert lease.valid_until == pytest.approx(end + 10)
    fake_clock.advance(31)  # the process has slept
    assert lost(lease)


def test_r20_max_hold_counts_from_the_grant(fake_clock: FakeClock, other: ThreadPoolExecutor, name: str) -> None:
    """The wait for the lock does not count, and renewal ends with it."""
    first = advisory_lock(name, using="memory", ttl=30).acquire()
    waiter = other.submit(advisory_lock(name, using="memory", ttl=30, max_hold=40, timeout=None).acquire)
    eventually(somebody_waits, "nobody waits")
    for _ in range(5):
        fake_clock.advance(12)
    first.release()
    lease = waiter.result(PATIENCE)
    for _ in range(3):
        fake_clock.advance(12)
    assert not lease.lost
    fake_clock.advance(5)
    assert lost(lease)


def test_r20_extend_does_not_pass_max_hold(fake_clock: FakeClock, name: str) -> None:
    lease = advisory_lock(name, using="memory", max_hold=10).acquire()
    lease.extend(60)
    assert lease.valid_until is not None
    assert lease.valid_until <= fake_clock.time + 10
    fake_clock.advance(10)
    with pytest.raises(LockLost):
        lease.extend(60)
    advisory_lock(name, using="memory", timeout=0).acquire().release()
    assert lost(lease)


def test_r17_a_lease_that_was_released_is_not_lost_with_another_one(fake_clock: FakeClock, name: str) -> None:
    lock = advisory_lock(name, using="memory", max_hold=10)
    first, second = lock.acquire(), lock.acquire()
    told: list[Lease] = []
    first.on_lost(told.append)
    first.release()
    fake_clock.advance(10)
    assert not first.lost
    assert not told
    assert lost(second)


def test_r20_who_has_ended_needs_no_renewal(fake_clock: FakeClock, other: ThreadPoolExecutor, name: str) -> None:
    """A dead thread cannot do anything any more."""
    lease = other.submit(advisory_lock(name, using="memory", ttl=30).acquire).result(PATIENCE)
    before = lease.valid_until
    fake_clock.advance(10)
    end = lease.valid_until
    assert end > before
    other.shutdown()
    fake_clock.advance(15)
    assert lease.valid_until == end
    fake_clock.advance(end - fake_clock.time)
    assert lost(lease)


class Opaque:
    """Awaits something, and does not say what: nobody finds the task behind it."""

    def __init__(self, awaited: Any) -> None:
        self._steps = awaited.__await__()

    def __await__(self) -> Opaque:
        return self

    def __iter__(self) -> Opaque:
        return self

    def __next__(self) -> Any:
        return next(self._steps)


def test_r20_nor_does_a_call_that_has_returned(fake_clock: FakeClock, other: ThreadPoolExecutor, name: str) -> None:
    """It is its own context where its task cannot be found. Its lease stays while other code has it."""
    lock = advisory_lock(name, using="memory", ttl=30)

    async def acquire() -> Any:
        return await Opaque(sync_to_async(lock.acquire)())

    def free() -> bool:
        lease = other.submit(lock.try_acquire).result(PATIENCE)
        if lease is not None:
            lease.release()
        return lease is not None

    kept = [asyncio.run(acquire())]
    for _ in range(4):
        fake_clock.advance(10)
    assert kept[0].held
    assert not free()
    kept.clear()
    for _ in range(4):
        fake_clock.advance(10)
    assert free()


def test_r20_an_engine_that_cannot_be_looked_after_costs_the_others_nothing(
    fake_clock: FakeClock, databases: None, name: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(registry.entry("redis").backend, "tick", "this cannot be called")
    with advisory_lock(name, using="memory", ttl=30) as lease:
        before = lease.valid_until
        fake_clock.advance(10)
        assert lease.valid_until != before
    assert "could not be looked after" in caplog.text


def test_r20_the_thread_goes_on_after_an_error(name: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    calls: list[float] = []
    tick = keepalive.tick

    def broken_once(now: float) -> float | None:
        calls.append(now)
        if len(calls) == 1:
            raise RuntimeError("broken")
        return tick(now)

    monkeypatch.setattr(keepalive, "tick", broken_once)
    with advisory_lock(name, using="memory"):
        keepalive.wake_at(0)
        eventually(lambda: len(calls) > 1, "it ticks no more")
    assert "met an error and goes on" in caplog.text


@pytest.mark.parametrize("using", ["redis", "memory"])
def test_r20_what_is_extended_while_it_is_lost_is_given_back(
    databases: None, using: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would get the lock until the end of the longer lease."""
    lease = advisory_lock(name, using=using).acquire()
    backend = registry.entry(using).backend
    extend = backend.extend

    def extend_late(grant: Grant, ttl: float) -> Grant | None:
        longer = extend(grant, ttl)
        assert lose(lease._hold, "expired")
        return longer

    monkeypatch.setattr(backend, "extend", extend_late)
    with pytest.raises(LockLost):
        lease.extend(600)
    advisory_lock(name, using=using, timeout=PATIENCE).acquire().release()


def test_r19_it_runs_on_while_the_host_is_suspended() -> None:
    """The kernel says so of these two; only where there is neither may it be another one."""
    runs_on = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}[sys.platform]
    assert monotonic.func is time.clock_gettime
    assert monotonic.args == (getattr(time, runs_on),)
    before = time.clock_gettime(getattr(time, runs_on))
    assert before <= monotonic() <= time.clock_gettime(getattr(time, runs_on))
