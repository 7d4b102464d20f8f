"""R8 and R9: waiting that would never end is found or ends at the deadline; sets of locks cannot deadlock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import DeadlockDetected, LockNotAcquired, LockTimeout, advisory_lock, lock_all
from tests.conformance.actors import PATIENCE, Inside
from tests.conformance.watching import asking_here, waiting_here
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.conformance.actors import Actor, Face


def _waits(name: str) -> None:
    eventually(lambda: asking_here(name) + waiting_here(name) == 1, f"nobody waits for {name}")


@pytest.mark.parametrize("size", [2, 3, 5])
def test_r8_a_circle_in_one_process_is_found_at_once(face: Face, using: str, name: str, size: int) -> None:
    """Each holds one lock and waits for the next; the last one is told."""
    actors = face.actors(size)
    locks = [advisory_lock(f"{name}{number}", using=using, timeout=PATIENCE) for number in range(size)]
    held = [actor.acquire(lock) for actor, lock in zip(actors, locks, strict=True)]
    waiting = []
    for number in range(size - 1):
        waiting.append(actors[number].start(locks[number + 1], "acquire"))
        _waits(locks[number + 1].name)
    began = time.monotonic()
    with pytest.raises(DeadlockDetected, match=r"Waiting for .* would never end"):
        actors[-1].acquire(locks[0])
    within(time.monotonic() - began, 1)
    # the victim keeps what it held; once it gives it back, the others come through
    assert held[-1].held
    actors[-1].release(held[-1])
    for number in reversed(range(size - 1)):
        actors[number].release(waiting[number].result(PATIENCE))
        actors[number].release(held[number])


def test_r8_one_that_does_not_wait_closes_no_circle(me: Actor, other: Actor, using: str, name: str) -> None:
    mine, theirs = (advisory_lock(f"{name}{letter}", using=using, timeout=PATIENCE) for letter in "ab")
    held = me.acquire(mine)
    other_held = other.acquire(theirs)
    waiting = me.start(theirs, "acquire")
    _waits(theirs.name)
    assert other.try_acquire(mine) is None
    with pytest.raises(LockNotAcquired):
        other.acquire(mine, timeout=0)
    other.release(other_held)
    me.release(waiting.result(PATIENCE))
    me.release(held)


def test_r8_a_queue_without_a_circle_is_none(face: Face, using: str, name: str) -> None:
    """Who holds something may wait for those who wait for something else."""
    first, second, third = face.actors(3)
    a, b = (advisory_lock(f"{name}{letter}", using=using, timeout=PATIENCE) for letter in "ab")
    held = first.acquire(a)
    second_waits = second.start(a, "acquire")
    _waits(a.name)
    other = third.acquire(b)
    third_waits = third.start(a, "acquire")
    eventually(lambda: waiting_here(a.name) == 2, "the third does not wait")
    first.release(held)
    second.release(second_waits.result(PATIENCE))
    third.release(third_waits.result(PATIENCE))
    third.release(other)


def test_r8_a_circle_through_two_aliases_is_found(me: Actor, other: Actor, using: str, name: str) -> None:
    here = advisory_lock(name, using=using, timeout=PATIENCE)
    there = advisory_lock(name, using="memory" if using != "memory" else "postgres", timeout=PATIENCE)
    mine, theirs = me.acquire(here), other.acquire(there)
    waiting = me.start(there, "acquire")
    _waits(name)
    with pytest.raises(DeadlockDetected):
        other.acquire(here)
    other.release(theirs)
    me.release(waiting.result(PATIENCE))
    me.release(mine)


def test_r8_a_victim_of_lock_all_gives_back_what_the_call_had_taken(
    me: Actor, other: Actor, face: Face, using: str, name: str
) -> None:
    a, b, c = (f"{name}{letter}" for letter in "abc")
    mine = me.acquire(advisory_lock(c, using=using))
    theirs = other.acquire(advisory_lock(b, using=using))
    waiting = me.start(advisory_lock(b, using=using, timeout=PATIENCE), "acquire")
    _waits(b)
    with pytest.raises(DeadlockDetected):
        # takes a, has b already, and c is held by one who waits for b
        other.acquire(lock_all([a, b, c], using=using, timeout=PATIENCE))
    third = face.actor()
    third.release(third.acquire(advisory_lock(a, using=using), timeout=0))
    assert theirs.held
    other.release(theirs)
    me.release(waiting.result(PATIENCE))
    me.release(mine)


def test_r8_a_circle_across_processes_ends_at_the_deadline(me: Actor, rival: Any, using: str, name: str) -> None:
    a, b = f"{name}a", f"{name}b"
    mine = me.acquire(advisory_lock(a, using=using))
    theirs = rival.acquire(using, b)
    waiting = rival.start_acquire(using, a)
    began = time.monotonic()
    with pytest.raises(LockTimeout):
        me.acquire(advisory_lock(b, using=using), timeout=0.3)
    within(time.monotonic() - began, 0.35)
    assert mine.held
    me.release(mine)
    rival.release(rival.result(waiting))
    rival.release(theirs)


def test_r9_two_callers_with_the_same_set_do_not_deadlock(face: Face, using: str, name: str) -> None:
    names = [f"{name}{letter}" for letter in "abcd"]
    sets = [lock_all(order, using=using, timeout=PATIENCE) for order in (names, names[::-1], names[2:] + names[:2])]
    inside = Inside()
    for future in [face.actor().submit(face.critical(locks, inside, 5)) for locks in sets]:
        future.result(PATIENCE)
    assert (inside.most, inside.counter) == (1, 15)


def test_r9_nor_do_processes(rival: Any, second_rival: Any, using: str, name: str) -> None:
    names = [f"{name}{letter}" for letter in "abc"]
    tokens = [
        (rival, rival.start("sets", using, names, 10)),
        (second_rival, second_rival.start("sets", using, names[::-1], 10)),
        (rival, rival.start("sets", using, names[1:] + names[:1], 10)),
    ]
    for somebody, token in tokens:
        assert somebody.result(token) == 10


def test_r9_the_order_is_one_across_aliases(using: str, name: str) -> None:
    """A Lock in the set keeps its own alias; the order of taking is that of (alias, name)."""
    locks = [advisory_lock(f"{name}{letter}", using=alias) for letter in "ba" for alias in (using, "memory")]
    expected = sorted({(lock.using, lock.name) for lock in locks})
    with lock_all(locks) as leases:
        assert [(lease.using, lease.name) for lease in leases] == expected
    with lock_all(locks[::-1]) as leases:
        assert [(lease.using, lease.name) for lease in leases] == expected
