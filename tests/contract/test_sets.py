"""R7, R8 and R9: several locks at once are all or nothing, and callers of the same set cannot deadlock. R1: a semaphore
has at most ``limit`` holders at once, on engines that have it and on those that make it of slots."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock, lock_all, semaphore
from tests.contract.actors import PATIENCE, Actor, Face, Inside, turns
from tests.contract.conftest import across_processes, both_faces, those


def test_r7_one_that_is_busy_leaves_none_held(me: Actor, rival: Any, using: str, name: str) -> None:
    names = [f"{name}{letter}" for letter in "abc"]
    for busy in names:
        held = rival.acquire(using, busy)
        assert me.try_acquire(lock_all(names, using=using)) is None
        with pytest.raises(LockNotAcquired, match=r"^One of the locks .* is held by another caller") as error:
            me.acquire(lock_all(names, using=using), timeout=0)
        assert type(error.value) is LockNotAcquired
        for each in set(names) - {busy}:
            rival.release(rival.acquire(using, each, timeout=0))
        rival.release(held)


@those(lambda entry: entry.using in ("leasetable", "postgres", "mysql", "redis"))
def test_r8_a_circle_across_processes_ends_at_the_deadline(me: Actor, rival: Any, using: str, name: str) -> None:
    a, b = f"{name}a", f"{name}b"
    mine = me.acquire(advisory_lock(a, using=using))
    theirs = rival.acquire(using, b)
    waiting = rival.start_acquire(using, a)
    with pytest.raises(LockTimeout):
        me.acquire(advisory_lock(b, using=using), timeout=1)
    assert mine.held
    me.release(mine)
    rival.release(rival.result(waiting))
    rival.release(theirs)


@across_processes
def test_r9_processes_with_the_same_set_do_not_deadlock(rival: Any, second_rival: Any, using: str, name: str) -> None:
    names = [f"{name}{letter}" for letter in "abc"]
    tokens = [
        (rival, rival.start("sets", using, names, 10)),
        (second_rival, second_rival.start("sets", using, names[::-1], 10)),
        (rival, rival.start("sets", using, names[1:] + names[:1], 10)),
    ]
    for somebody, token in tokens:
        assert somebody.result(token) == 10


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
