"""lock_all(), semaphores and R8: all or nothing, and circles of waiters in one process are found."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
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
from django_distlock.manager.keepalive import keepalive
from tests.conftest import PATIENCE, eventually
from tests.contract.actors import Actor, Face
from tests.contract.conftest import both_faces
from tests.contract.watching import somebody_waits, waiting_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


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


# Who holds what, who waits for what then, and whose wait would never end. "~" is shared, y is a lock of another alias.
CIRCLES: dict[str, tuple[str, str, str]] = {
    "two": ("ax by", "ay", "bx"),
    "four": ("ax by cz du", "ay bz cu", "dx"),
    # o stands behind c in the queue for x, and c waits, over the holder of x, for what o holds
    "a place in the queue": ("hx oy", "cx hy", "ox"),
    # behind w, who waits for t
    "a reader behind a writer": ("tx~ oy", "ty wx", "ox~"),
}


@both_faces
@pytest.mark.parametrize("circle", CIRCLES)
def test_r8_a_circle_in_one_process_is_found_at_once(face: Face, elsewhere: str, name: str, circle: str) -> None:
    """The last one is told, and keeps what it held; then all get what they wait for."""
    actors = defaultdict(face.actor)
    holding, waiting, last = CIRCLES[circle]

    def start(step: str) -> Future[Any]:
        using = elsewhere if step[1] == "y" else "memory"
        lock = advisory_lock(f"{name}{step[1]}", using=using, timeout=None, shared=step[2:] == "~")
        return actors[step[0]].start(lock, "acquire")

    leases, waits = [start(step).result(PATIENCE) for step in holding.split()], []
    for step in waiting.split():
        waits.append(start(step))
        somebody_waits(f"{name}{step[1]}")
    with pytest.raises(DeadlockDetected, match=r"Waiting for .* would never end"):
        start(last).result(PATIENCE)
    for lease in leases:
        lease.ensure_held()
        lease.release()
    while waits:
        eventually(lambda: any(wait.done() for wait in waits), "these wait for ever")
        waits.pop([wait.done() for wait in waits].index(True)).result().release()


def test_r8_one_that_does_not_wait_closes_no_circle(me: Actor, other: Actor, locks: list[Any]) -> None:
    mine, theirs, _ = locks
    held, other_held = me.acquire(mine), other.acquire(theirs)
    waiting = me.start(theirs, "acquire")
    somebody_waits(theirs.name)
    assert other.try_acquire(mine) is None
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


def test_r8_waiting_for_what_is_being_given_back_closes_no_circle(
    face: Face, locks: list[Any], backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread gives the lease back (R16) while its owner asks anew: that ends by itself."""
    first, second, giver = face.actors(3)
    mine, theirs, _ = locks
    asked, answer, release = threading.Event(), threading.Event(), backend.release

    def slow(grant: Any) -> bool:
        asked.set()
        assert answer.wait(PATIENCE)
        return bool(release(grant))

    held, other_held = first.acquire(mine), second.acquire(theirs)
    waiting = first.start(theirs, "acquire")
    somebody_waits(theirs.name)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "release", slow)
        given = giver.start(held, "release")
        assert asked.wait(PATIENCE)
        again = second.start(mine, "acquire")
        somebody_waits(mine.name)
        answer.set()
        given.result(PATIENCE)
        second.release(again.result(PATIENCE))
    second.release(other_held)
    first.release(waiting.result(PATIENCE))


def test_r4_thousands_of_waiters_of_a_closed_event_loop_do_not_break_a_release(
    name: str, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next tick would end them; the release comes before that."""
    monkeypatch.setattr(keepalive, "_end_closed_loops", lambda: None)
    lock = advisory_lock(name, using="memory", timeout=None)
    lease, loop = lock.acquire(), asyncio.new_event_loop()

    async def queue() -> list[asyncio.Task[Any]]:
        tasks = [asyncio.create_task(lock.aacquire()) for _ in range(2000)]
        await asyncio.sleep(0)
        assert waiting_here(name) == len(tasks)
        return tasks

    for task in loop.run_until_complete(queue()):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio would tell of each
    loop.close()
    lease.release()  # not RecursionError
    again = lock.try_acquire()
    assert again is not None
    again.release()
