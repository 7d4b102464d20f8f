"""R4, R5 and R18 by the clock, once for each engine: what is promised, and a second for the machine."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockTimeout, advisory_lock, lock_all, semaphore
from tests.conftest import PATIENCE, eventually
from tests.contract.actors import Face
from tests.contract.conftest import across_processes, backend, face, me, other, residents, rival, take_away, those
from tests.contract.watching import somebody_waits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.actors import Actor

__all__ = ["backend", "face", "me", "other", "residents", "rival", "take_away"]
pytestmark = pytest.mark.alone
MACHINE = 1.0  # seconds by which a machine that is alone may be late


def seconds(since: float) -> float:
    return time.monotonic() - since


def test_r5_half_a_second_is_half_a_second(me: Actor, rival: Any, using: str, name: str) -> None:
    """Ten threads and ten tasks at locks that another process holds; the first call connects."""
    began = time.monotonic()
    me.release(me.acquire(advisory_lock(f"{name} free", using=using), timeout=0.5))
    assert seconds(began) < 0.5 + MACHINE
    held = [rival.acquire(using, f"{name}{number}") for number in range(5)]
    faces, tries, times = [Face("sync"), Face("async")], [], list[float]()
    try:
        for number in range(20):
            actor, began = faces[number % 2].actor(), time.monotonic()
            tries.append(actor.start(advisory_lock(f"{name}{number % 5}", using=using), "acquire", timeout=0.5))
            tries[-1].add_done_callback(lambda _, began=began: times.append(seconds(began)))  # type: ignore[misc]
        for each in tries:
            with pytest.raises(LockTimeout, match=r"after 0\.5 s"):
                each.result(PATIENCE)
    finally:
        for face in faces:
            face.close()
    for number in held:
        rival.release(number)
    eventually(lambda: len(times) == len(tries), "one is not over")
    assert min(times) >= 0.5
    assert max(times) < 0.5 + MACHINE, sorted(times)


def test_r4_r5_the_next_one_is_in_at_once(me: Actor, rival: Any, using: str, name: str) -> None:
    """None waits until the release, and no longer."""
    held = rival.acquire(using, name)
    waiting = me.start(advisory_lock(name, using=using), "acquire", timeout=None)
    somebody_waits(name)
    began = time.monotonic()
    rival.release(held)
    lease = waiting.result(PATIENCE)
    assert seconds(began) < MACHINE
    me.release(lease)


@those(lambda entry: entry.using in ("memory", "postgres", "mysql", "redis"))
def test_r5_the_deadline_goes_on_when_the_one_ahead_gives_up(face: Face, rival: Any, using: str, name: str) -> None:
    """The time in the queue of this process is a part of it."""
    held = rival.acquire(using, name)
    lock = advisory_lock(name, using=using)
    first, second = face.actors(2)
    assert first.try_acquire(lock) is None  # connects
    impatient = first.start(lock, "acquire", timeout=1.5)
    somebody_waits(name)
    began = time.monotonic()
    follower = second.start(lock, "acquire", timeout=1.8)
    for waiting in (impatient, follower):
        with pytest.raises(LockTimeout):
            waiting.result(PATIENCE)
    assert 1.8 <= seconds(began) < 1.8 + MACHINE
    rival.release(held)


@across_processes
def test_r5_asyncio_goes_on_while_a_task_waits(rival: Any, using: str, name: str) -> None:
    """Waiting does not block the event loop."""
    held = rival.acquire(using, name)
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.005)

    async def main() -> None:
        await advisory_lock(name, using=using).atry_acquire()  # connects
        task = asyncio.create_task(beat())
        with pytest.raises(LockTimeout):
            await advisory_lock(name, using=using).aacquire(timeout=0.5)
        task.cancel()

    asyncio.run(main())
    rival.release(held)
    assert beats > 10  # 100 where nothing else goes on


@pytest.mark.usefixtures("databases")
@pytest.mark.parametrize(
    "recipe",
    [
        lambda name: semaphore(name, 1, using="redis"),
        lambda name: semaphore(name, 1, using="postgres"),
        lambda name: lock_all([name, f"{name}2"], using="postgres"),
    ],
    ids=["semaphore", "slots", "set"],
)
def test_r5_semaphores_and_sets_have_one_deadline(me: Actor, other: Actor, name: str, recipe: Any) -> None:
    held = me.acquire(recipe(name))
    began = time.monotonic()
    with pytest.raises(LockTimeout):
        other.acquire(recipe(name), timeout=0.5)
    assert 0.5 <= seconds(began) < 0.5 + MACHINE
    me.release(held)


def test_r18_the_loss_is_seen_in_time(
    me: Actor, using: str, name: str, backend: Any, take_away: Callable[[str], None]
) -> None:
    """At once where the server hangs up, after a third of the TTL where a renewal is denied."""
    lease = me.acquire(advisory_lock(name, using=using, **({"ttl": 1.2} if backend.supports_ttl else {})))
    take_away(name)
    began = time.monotonic()
    eventually(lambda: lease.lost, "the loss is not noticed")
    assert seconds(began) < 1 + MACHINE
    with pytest.raises(Exception, match="was lost"):
        me.release(lease)


@pytest.mark.usefixtures("databases")
@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_r6_who_waits_behind_others_of_this_process_is_told_what_is_true(
    me: Actor, other: Actor, using: str, name: str
) -> None:
    """Also if that took longer than its timeout: the server has not been asked before, and is well."""
    lease = me.acquire(advisory_lock(name, using=using))
    session = lease._grant.session
    with session.mutex:
        waiting = other.start(advisory_lock(name + "other", using=using), "try_acquire", timeout=0.2)
        threading.Event().wait(0.5)
        assert not waiting.done()
    other.release(waiting.result())
    me.release(lease)
