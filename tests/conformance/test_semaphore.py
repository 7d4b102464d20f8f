"""semaphore: at most ``limit`` holders at once, on every backend."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock, semaphore
from django_distlock.manager.registry import registry
from tests.conformance.actors import PATIENCE, Inside
from tests.conformance.watching import waiting_here
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.conformance.actors import Actor, Face


def test_as_many_as_the_limit(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    pool = semaphore(name, 3, using=using)
    leases = [me.acquire(pool), me.acquire(pool), other.acquire(pool, timeout=1)]
    assert {lease.name for lease in leases} == {name}
    assert other.try_acquire(pool) is None
    with pytest.raises(LockNotAcquired, match=r"^Each of the 3 slots of the semaphore .* is held by another caller"):
        me.acquire(pool, timeout=0)
    me.release(leases.pop(0))
    leases.append(other.acquire(pool, timeout=1))
    for lease in leases:
        me.release(lease)


def test_the_slots_are_not_the_lock_of_that_name(me: Actor, using: str, name: str) -> None:
    slot = me.acquire(semaphore(name, 1, using=using))
    lock = me.acquire(advisory_lock(name, using=using), timeout=0)
    me.release(lock)
    me.release(slot)


def test_it_is_not_reentrant(me: Actor, using: str, name: str) -> None:
    """Each acquire takes a slot of its own."""
    pool = semaphore(name, 1, using=using)
    lease = me.acquire(pool)
    assert me.try_acquire(pool) is None
    with pytest.raises(LockTimeout):
        me.acquire(pool, timeout=0.1)
    me.release(lease)


def test_processes_share_it(me: Actor, rival: Any, using: str, name: str) -> None:
    pool = semaphore(name, 2, using=using)
    mine = me.acquire(pool)
    theirs = rival.call("semaphore", using, name, 2)
    assert me.try_acquire(pool) is None
    rival.release(theirs)
    me.release(me.acquire(pool, timeout=1))
    me.release(mine)


def test_never_more_inside_than_the_limit(face: Face, using: str, name: str) -> None:
    pool, inside = semaphore(name, 2, using=using, timeout=PATIENCE), Inside()
    for future in [actor.submit(face.critical(pool, inside, 3)) for actor in face.actors(6)]:
        future.result(PATIENCE)
    assert 1 <= inside.most <= 2
    assert inside.now == 0


def test_r5_the_deadline(me: Actor, rival: Any, using: str, name: str) -> None:
    taken = [rival.call("semaphore", using, name, 2) for _ in range(2)]
    assert me.try_acquire(semaphore(name, 2, using=using)) is None  # connects
    began = time.monotonic()
    with pytest.raises(LockTimeout):
        me.acquire(semaphore(name, 2, using=using), timeout=0.5)
    within(time.monotonic() - began, 0.55, least=0.5)
    for number in taken:
        rival.release(number)


def test_r8_another_holder_may_open_the_circle(face: Face, using: str, name: str) -> None:
    """No deadlock is called where the semaphore has a further holder, who will leave."""
    first, second, third = face.actors(3)
    pool, lock = semaphore(name, 2, using=using, timeout=PATIENCE), advisory_lock(name, using=using)
    held, seat, other_seat = first.acquire(lock), second.acquire(pool), third.acquire(pool)
    waiting = first.start(pool, "acquire")
    if registry.entry(using).backend.supports_semaphore:
        eventually(lambda: waiting_here(name) == 1, "the waiter did not arrive")
    with pytest.raises(LockTimeout):
        second.acquire(lock, timeout=0.1)
    third.release(other_seat)
    for lease in (waiting.result(PATIENCE), held):
        first.release(lease)
    second.release(seat)


def test_r7_cancelled_it_leaves_no_slot(using: str, name: str) -> None:
    pool = semaphore(name, 2, using=using, timeout=PATIENCE)

    async def main() -> None:
        held = [await pool.aacquire(), await pool.aacquire()]
        tasks = [asyncio.create_task(pool.aacquire()) for _ in range(4)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
        )
        for lease in held:
            await lease.arelease()
        for lease in [await pool.aacquire(timeout=1) for _ in range(2)]:
            await lease.arelease()

    asyncio.run(main())


def test_in_a_with_block_and_as_a_decorator(me: Actor, other: Actor, using: str, name: str) -> None:
    pool = semaphore(name, 1, using=using)
    me.enter(pool)
    assert other.try_acquire(pool) is None
    me.exit(pool)

    @semaphore(name + "{number}", 1, using=using, timeout=0)
    def work(number: int) -> int:
        with pytest.raises(LockNotAcquired):
            work(number)
        return number

    assert work(7) == 7
