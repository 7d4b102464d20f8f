"""R1: at most ``limit`` holders of a semaphore at once, on engines that have it and on those that make it of slots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockNotAcquired, semaphore
from tests.contract.actors import PATIENCE, Inside, turns
from tests.contract.conftest import both_faces

if TYPE_CHECKING:
    from tests.contract.actors import Actor, Face


def test_r1_as_many_as_the_limit(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    pool = semaphore(name, 3, using=using)
    leases = [me.acquire(pool), me.acquire(pool), other.acquire(pool, timeout=PATIENCE)]
    assert {lease.name for lease in leases} == {name}
    assert other.try_acquire(pool) is None
    with pytest.raises(LockNotAcquired, match=r"^Each of the 3 slots of the semaphore .* is held by another caller"):
        me.acquire(pool, timeout=0)
    me.release(leases.pop(0))
    theirs = rival.acquire(using, name, limit=3)
    assert me.try_acquire(pool) is None
    rival.release(theirs)
    leases.append(other.acquire(pool, timeout=PATIENCE))
    for lease in leases:
        me.release(lease)


@both_faces
def test_r1_never_more_inside_than_the_limit(face: Face, using: str, name: str) -> None:
    pool, inside = semaphore(name, 2, using=using, timeout=PATIENCE), Inside()
    for future in [actor.submit(face.critical(pool, inside, 3)) for actor in face.actors(6)]:
        future.result(PATIENCE)
    assert 1 <= inside.most <= 2
    assert inside.now == 0


def test_r7_cancelled_it_leaves_no_slot(using: str, name: str) -> None:
    pool = semaphore(name, 2, using=using, timeout=PATIENCE)

    async def main() -> None:
        held = [await pool.aacquire(), await pool.aacquire()]
        tasks = [asyncio.create_task(pool.aacquire()) for _ in range(4)]
        await turns(20)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)
        for lease in held:
            await lease.arelease()
        for lease in [await pool.aacquire() for _ in range(2)]:
            await lease.arelease()

    asyncio.run(main())
