"""R2: the same context may take what it holds; this is counted, and anybody else is a stranger."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import DeadlockDetected, LockLost, advisory_lock
from tests.conftest import PATIENCE
from tests.contract.watching import somebody_waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.actors import Actor


def test_r2_leases_share_one_holding_and_releasing_one_twice_counts_once(
    me: Actor, other: Actor, lock: Any, take_away: Callable[[str], None]
) -> None:
    """Who takes the lock from one of them takes it from all."""
    outer, inner = me.acquire(lock), me.acquire(lock)
    for _ in range(3):
        me.release(inner)
    assert (inner.held, outer.held) == (False, True)
    assert other.try_acquire(lock) is None
    leases = [outer, me.acquire(lock)]
    take_away(lock.name)
    for lease in leases:
        with pytest.raises(LockLost):
            me.extend(lease, 30)
        with pytest.raises(LockLost):
            me.release(lease)
        me.release(lease)  # it was told once


def test_r2_a_thread_started_by_the_holder_is_a_stranger(lock: Any) -> None:
    found: list[Any] = []
    with lock:
        thread = threading.Thread(target=lambda: found.append(lock.try_acquire()))
        thread.start()
        thread.join(PATIENCE)
    assert found == [None]


def test_r2_child_tasks_are_strangers(lock: Any) -> None:
    """They inherit a copy of the context variables; by those, four of four would get in."""

    async def main() -> list[Any]:
        async with lock:
            again = await lock.atry_acquire()
            assert again is not None
            await again.arelease()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(lock.atry_acquire()) for _ in range(4)]
            gathered = await asyncio.gather(*[lock.atry_acquire() for _ in range(4)])
            return [task.result() for task in tasks] + gathered

    assert asyncio.run(main()) == [None] * 8


def test_r2_exclusive_while_shared_is_a_deadlock(me: Actor, using: str, name: str) -> None:
    reader = me.acquire(advisory_lock(name, using=using, shared=True))
    for attempt in (me.acquire, me.try_acquire):
        with pytest.raises(DeadlockDetected, match="held shared by this context"):
            attempt(advisory_lock(name, using=using))
    assert reader.held
    me.release(reader)


def test_r2_shared_while_exclusive_is_covered(me: Actor, other: Actor, using: str, name: str) -> None:
    reader = advisory_lock(name, using=using, shared=True)
    outer = me.acquire(advisory_lock(name, using=using))
    inner = me.acquire(reader)
    me.release(outer)
    assert other.try_acquire(reader) is None
    me.release(inner)
    other.release(other.acquire(advisory_lock(name, using=using), timeout=0))


@pytest.mark.parametrize("shared", [False, True])
def test_r2_a_waiter_does_not_keep_the_holder_from_reentry(
    me: Actor, other: Actor, using: str, name: str, shared: bool
) -> None:
    """R2 goes before the queue: else a reader would wait for the writer, who waits for it."""
    lock = advisory_lock(name, using=using, shared=shared)
    outer = me.acquire(lock)
    waiting = other.start(advisory_lock(name, using=using), "acquire", timeout=PATIENCE)
    somebody_waits(name)
    me.release(me.acquire(lock, timeout=0))
    me.release(outer)
    other.release(waiting.result(PATIENCE))
