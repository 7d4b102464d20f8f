"""R2: the same context may take what it holds; counted, without a round trip, and released at the last exit."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from django_distlock import DeadlockDetected, LockLost, advisory_lock
from tests.conformance.actors import PATIENCE, Actor
from tests.conformance.watching import waiting_here
from tests.conftest import eventually

ENGINE_CALLS = (
    "acquire_fast",
    "try_acquire",
    "atry_acquire",
    "release_fast",
    "release",
    "arelease",
    "extend",
    "withdraw",
)


@pytest.fixture
def asked(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the engine was asked for what."""
    calls: Counter[str] = Counter()

    def spy(method: str) -> Any:
        original = getattr(backend, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[method] += 1
            return original(*args, **kwargs)

        return call

    for method in ENGINE_CALLS:
        monkeypatch.setattr(backend, method, spy(method))
    return calls


def test_r2_the_lock_is_free_after_as_many_releases(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    leases = [me.acquire(lock), me.acquire(lock), me.try_acquire(lock)]
    assert len({id(lease) for lease in leases}) == 3
    for lease in leases:
        assert other.try_acquire(lock) is None
        me.release(lease)
    rival.release(rival.acquire(using, name, timeout=0))


def test_r2_another_lock_object_of_the_same_name_is_no_other_lock(
    me: Actor, other: Actor, using: str, name: str
) -> None:
    outer = me.acquire(advisory_lock(name, using=using))
    inner = me.acquire(advisory_lock(name, using=using, timeout=0))
    me.release(outer)
    assert other.try_acquire(advisory_lock(name, using=using)) is None
    assert inner.held
    me.release(inner)


def test_r2_reentry_costs_no_round_trip(me: Actor, using: str, name: str, asked: Counter[str]) -> None:
    lock = advisory_lock(name, using=using)
    outer = me.acquire(lock)
    before = Counter(asked)
    assert before
    inner = me.acquire(lock)
    me.release(inner)
    me.enter(lock)
    me.exit(lock)
    assert asked == before
    me.release(outer)
    assert asked != before


def test_r2_reentry_mints_no_new_fence(me: Actor, using: str, name: str, backend: Any) -> None:
    lock = advisory_lock(name, using=using)
    outer, inner = me.acquire(lock), me.acquire(lock)
    if backend.supports_fencing:
        assert outer.fence == inner.fence
    assert outer.valid_until == inner.valid_until
    me.release(inner)
    me.release(outer)


def test_r2_releasing_one_lease_twice_counts_once(me: Actor, other: Actor, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    outer, inner = me.acquire(lock), me.acquire(lock)
    for _ in range(3):
        me.release(inner)
    assert (inner.held, outer.held) == (False, True)
    assert other.try_acquire(lock) is None
    me.release(outer)
    other.release(other.acquire(lock, timeout=0))


def test_r2_leases_share_one_holding(me: Actor, using: str, name: str, take_away: Any) -> None:
    """Who takes the lock from one of them takes it from all."""
    lock = advisory_lock(name, using=using)
    outer, inner = me.acquire(lock), me.acquire(lock)
    take_away(name)
    with suppress(LockLost):  # the loss may be known by now
        me.release(inner)
    with suppress(LockLost):
        me.release(outer)
    assert outer.lost


def test_r2_with_blocks_nest(me: Actor, other: Actor, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    me.enter(lock)
    me.enter(lock)
    me.exit(lock)
    assert other.try_acquire(lock) is None
    me.exit(lock)
    other.release(other.acquire(lock, timeout=0))


def test_r2_a_thread_started_by_the_holder_is_a_stranger(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    found: list[Any] = []
    with lock:
        thread = threading.Thread(target=lambda: found.append(lock.try_acquire()))
        thread.start()
        thread.join(PATIENCE)
    assert found == [None]


async def _by_create_task(attempt: Any) -> list[Any]:
    return [await asyncio.create_task(attempt()) for _ in range(4)]


async def _by_task_group(attempt: Any) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt()) for _ in range(4)]
    return [task.result() for task in tasks]


async def _by_gather(attempt: Any) -> list[Any]:
    return await asyncio.gather(*[attempt() for _ in range(4)])


@pytest.mark.parametrize("spawn", [_by_create_task, _by_task_group, _by_gather])
def test_r2_child_tasks_are_strangers(using: str, name: str, spawn: Any) -> None:
    """They inherit a copy of the context variables; by those, four of four would get in."""
    lock = advisory_lock(name, using=using)

    async def main() -> list[Any]:
        async with lock:
            again = await lock.atry_acquire()
            assert again is not None
            await again.arelease()
            return await spawn(lock.atry_acquire)

    assert asyncio.run(main()) == [None] * 4


def test_r2_a_child_task_may_get_in_after_its_parent(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using, timeout=PATIENCE)
    order: list[str] = []

    async def child() -> None:
        async with lock:
            order.append("child")

    async def main() -> None:
        async with lock:
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
            order.append("parent")
        await task

    asyncio.run(main())
    assert order == ["parent", "child"]


def test_r2_exclusive_while_shared_is_a_deadlock(me: Actor, using: str, name: str, backend: Any) -> None:
    if not backend.supports_shared:
        return
    reader = me.acquire(advisory_lock(name, using=using, shared=True))
    with pytest.raises(DeadlockDetected, match="held shared by this context"):
        me.acquire(advisory_lock(name, using=using))
    with pytest.raises(DeadlockDetected):
        me.try_acquire(advisory_lock(name, using=using))
    assert reader.held
    me.release(reader)


def test_r2_shared_while_exclusive_is_covered(me: Actor, other: Actor, using: str, name: str, backend: Any) -> None:
    if not backend.supports_shared:
        return
    writer = me.acquire(advisory_lock(name, using=using))
    reader = me.acquire(advisory_lock(name, using=using, shared=True))
    me.release(writer)
    assert other.try_acquire(advisory_lock(name, using=using, shared=True)) is None
    me.release(reader)
    other.release(other.acquire(advisory_lock(name, using=using), timeout=0))


def test_r2_a_waiter_does_not_keep_the_holder_from_reentry(me: Actor, other: Actor, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    outer = me.acquire(lock)
    waiting = other.start(lock, "acquire", timeout=PATIENCE)
    eventually(lambda: waiting_here(name), "the waiter has not arrived")
    inner = me.acquire(lock, timeout=0)
    me.release(inner)
    me.release(outer)
    other.release(waiting.result(PATIENCE))
