"""lock_all(), semaphores and R8: all or nothing, and circles of waiters in one process are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import (
    DeadlockDetected,
    LockLost,
    LockNotAcquired,
    LockTimeout,
    advisory_lock,
    lock_all,
    semaphore,
)
from tests.conftest import PATIENCE
from tests.contract.actors import Actor, Face
from tests.contract.conftest import both_faces
from tests.contract.watching import somebody_waits

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def names(name: str) -> list[str]:
    return [f"{name}{letter}" for letter in "abc"]


@pytest.fixture
def locks(names: list[str], using: str) -> list[Any]:
    return [advisory_lock(name, using=using, timeout=PATIENCE) for name in names]


@pytest.fixture
def elsewhere(settings: Any) -> str:
    """Another alias."""
    settings.DISTLOCK = {**settings.DISTLOCK, "elsewhere": settings.DISTLOCK["memory"]}
    return "elsewhere"


def test_all_of_them_are_held_and_given_back(me: Actor, other: Actor, using: str, names: list[str]) -> None:
    several = lock_all([*names, names[0]], using=using)
    leases = me.acquire(several)
    assert [lease.name for lease in leases] == names
    with pytest.raises(KeyError):
        leases["another"]
    leases.ensure_held()
    assert not leases.lost
    assert other.try_acquire(several) is None
    inner = me.acquire(lock_all(names[:2], using=using), timeout=0)  # R2
    for _ in range(2):
        me.release(leases)
    assert other.try_acquire(several) is None
    other.release(other.acquire(advisory_lock(names[2], using=using), timeout=0))
    me.release(inner)
    assert len(other.enter(several)) == 3
    other.exit(several)


def test_one_name_on_two_aliases(elsewhere: str) -> None:
    """The leases of lock_all: a name alone does not say which of the two. R9: the order is that of (alias, name)."""
    both = [advisory_lock("one name", using=alias) for alias in ("memory", elsewhere)]
    with lock_all([*both, advisory_lock("another", using="memory")]) as leases:
        assert [(lease.using, lease.name) for lease in leases] == [
            (elsewhere, "one name"),
            ("memory", "another"),
            ("memory", "one name"),
        ]
        with pytest.raises(ValueError, match=r"leases\['elsewhere', 'one name'\] or leases\['memory', 'one name'\]"):
            leases["one name"]
        assert [leases[alias, "one name"].using for alias in ("memory", elsewhere)] == ["memory", elsewhere]
        assert leases["another"] is leases["memory", "another"]
        for missing in ("one", (elsewhere, "another")):
            with pytest.raises(KeyError):
                leases[missing]


def test_r17_the_others_are_given_back_although_one_was_lost(
    me: Actor, other: Actor, using: str, names: list[str], take_away: Callable[[str], None]
) -> None:
    leases = me.acquire(lock_all(names, using=using))
    take_away(names[1])
    with pytest.raises(LockLost):
        me.release(leases)
    assert leases.lost
    other.release(other.acquire(lock_all(names, using=using)))


def test_an_exclusive_one_covers_a_shared_one(me: Actor, other: Actor, using: str, name: str) -> None:
    reader, writer = (advisory_lock(name, using=using, shared=shared) for shared in (True, False))
    for locks in ([reader, writer], [writer, reader]):
        leases = me.acquire(lock_all(locks))
        assert [lease.shared for lease in leases] == [False]
        assert other.try_acquire(reader) is None
        me.release(leases)
    together = [actor.acquire(lock_all([name], using=using, shared=True), timeout=0) for actor in (me, other)]
    me.release(together[0])
    other.release(together[1])


def test_a_semaphore_is_neither_the_lock_of_that_name_nor_reentrant(me: Actor, using: str, name: str) -> None:
    """Each acquire takes a slot of its own; also as a decorator."""
    pool = semaphore(name, 1, using=using)
    me.enter(pool)
    me.release(me.acquire(advisory_lock(name, using=using), timeout=0))
    assert me.try_acquire(pool) is None
    with pytest.raises(LockTimeout):
        me.acquire(pool, timeout=0.1)
    me.exit(pool)

    @semaphore(name + "{number}", 1, using=using, timeout=0)
    def work(number: int) -> int:
        with pytest.raises(LockNotAcquired):
            work(number)
        return number

    assert work(7) == 7


@both_faces
@pytest.mark.parametrize("size", [2, 3, 5])
def test_r8_a_circle_in_one_process_is_found_at_once(face: Face, elsewhere: str, name: str, size: int) -> None:
    """Also one through two aliases. Each holds one lock and waits for the next; the last one is told, and keeps what
    it held."""
    actors = face.actors(size)
    aliases = [("memory", elsewhere)[number % 2] for number in range(size)]
    locks = [advisory_lock(f"{name}{number}", using=alias, timeout=None) for number, alias in enumerate(aliases)]
    held = [actor.acquire(lock) for actor, lock in zip(actors, locks, strict=True)]
    waiting = []
    for number in range(size - 1):
        waiting.append(actors[number].start(locks[number + 1], "acquire"))
        somebody_waits(locks[number + 1].name)
    with pytest.raises(DeadlockDetected, match=r"Waiting for .* would never end"):
        actors[-1].acquire(locks[0])
    assert held[-1].held
    actors[-1].release(held[-1])
    for number in reversed(range(size - 1)):
        actors[number].release(waiting[number].result(PATIENCE))
        actors[number].release(held[number])


def test_r8_one_that_does_not_wait_closes_no_circle(me: Actor, other: Actor, locks: list[Any]) -> None:
    mine, theirs, _ = locks
    held, other_held = me.acquire(mine), other.acquire(theirs)
    waiting = me.start(theirs, "acquire")
    somebody_waits(theirs.name)
    assert other.try_acquire(mine) is None
    with pytest.raises(LockNotAcquired):
        other.acquire(mine, timeout=0)
    other.release(other_held)
    me.release(waiting.result(PATIENCE))
    me.release(held)


def test_r8_a_victim_of_lock_all_gives_back_what_the_call_had_taken(face: Face, locks: list[Any]) -> None:
    a, b, c = locks
    me, other, third = face.actors(3)
    mine, theirs = me.acquire(c), other.acquire(b)
    waiting = me.start(b, "acquire")
    somebody_waits(b.name)
    with pytest.raises(DeadlockDetected):
        # takes a, has b already, and c is held by one who waits for b
        other.acquire(lock_all(locks, timeout=PATIENCE))
    third.release(third.acquire(a, timeout=0))
    assert theirs.held
    other.release(theirs)
    me.release(waiting.result(PATIENCE))
    me.release(mine)


def test_r8_another_holder_may_open_the_circle(face: Face, using: str, name: str) -> None:
    """No deadlock is called where the semaphore has a further holder, who will leave."""
    first, second, third = face.actors(3)
    pool, lock = semaphore(name, 2, using=using, timeout=PATIENCE), advisory_lock(name, using=using)
    held, seat, other_seat = first.acquire(lock), second.acquire(pool), third.acquire(pool)
    waiting = first.start(pool, "acquire")
    somebody_waits(name)
    with pytest.raises(LockTimeout):
        second.acquire(lock, timeout=0.1)
    third.release(other_seat)
    for lease in (waiting.result(PATIENCE), held):
        first.release(lease)
    second.release(seat)


@pytest.mark.parametrize("slots", [0, 2], ids=["lock", "semaphore"])
def test_r4_threads_and_tasks_stand_in_one_queue(face: Face, using: str, name: str, slots: int) -> None:
    """Six contexts come to wait, one after the other, and are served in that order."""
    lock: Any = semaphore(name, slots, using=using) if slots else advisory_lock(name, using=using)
    held = [face.actor().acquire(lock) for _ in range(slots or 1)]
    tasks = Face("async")
    try:
        waiting = []
        for number in range(6):
            waiting.append((face, tasks)[number % 2].actor().start(lock, "acquire", timeout=PATIENCE))
            somebody_waits(name, number + 1)
        while waiting:
            held.pop().release()
            held.append(waiting.pop(0).result(PATIENCE))
            assert not any(future.done() for future in waiting)
    finally:
        tasks.close()
    for lease in held:
        lease.release()
