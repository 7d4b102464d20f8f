"""R7: an attempt that fails, times out or is cancelled leaves nothing held."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, LockNotAcquired, advisory_lock, lock_all
from django_distlock.manager.lock_table import lock_table
from tests.conformance.actors import PATIENCE
from tests.conformance.watching import asking_here, waiting_at_the_engine, waiting_here
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.conformance.actors import Actor

CANCELS = 500


async def _cancelled(lock: Any, delay: float) -> bool:
    """Take and give back in a task that is cancelled after ``delay`` seconds; was it cancelled?"""

    async def work() -> None:
        async with lock:
            await asyncio.sleep(0)

    task = asyncio.create_task(work())
    await asyncio.sleep(delay)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    except (LockNotAcquired, BackendUnavailable):  # busy; or no answer within 50 ms, on a busy machine
        return False
    return False


async def _until(condition: Any) -> None:
    """Let the event loop run until ``condition()`` is true, not one step longer."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("the condition did not come true")


async def _storm(using: str, names: list[str], dice: random.Random) -> int:
    """CANCELS cancellations, several at once; how many came in time."""
    locks = [advisory_lock(name, using=using, timeout=0.05) for name in names]

    async def line(count: int) -> int:
        return sum(
            [await _cancelled(dice.choice(locks), dice.choice([0, dice.uniform(0, 0.006)])) for _ in range(count)]
        )

    return sum(await asyncio.gather(*[line(CANCELS // 10) for _ in range(10)]))


def test_r7_500_random_cancellations_leave_nothing(rival: Any, using: str, name: str) -> None:
    """Cancelled while it connects, waits here, waits at the engine, holds, or gives back. The last name is busy."""
    seed = random.randrange(2**32)
    print("seed", seed)
    names = [f"{name}{number}" for number in range(3)]
    busy = rival.acquire(using, names[-1])
    in_time = asyncio.run(_storm(using, names, random.Random(seed)))
    assert in_time > CANCELS / 4, "hardly any cancellation came in time"
    assert {hold.key.name for hold in lock_table.everything()} <= {names[-1]}
    rival.release(busy)
    assert list(lock_table.everything()) == []
    for each in names:
        rival.release(rival.acquire(using, each, timeout=3))


def test_r7_a_waiter_that_is_cancelled_leaves_the_queue(rival: Any, using: str, name: str) -> None:
    busy = rival.acquire(using, name)

    async def main() -> None:
        task = asyncio.create_task(advisory_lock(name, using=using).aacquire(timeout=PATIENCE))
        await _until(lambda: asking_here(name) + waiting_here(name))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    eventually(lambda: waiting_at_the_engine(using, name) == 0, "a dead waiter stands at the engine")
    rival.release(busy)
    rival.release(rival.acquire(using, name, timeout=1))


def test_r7_cancelled_in_the_moment_of_the_hand_over(using: str, name: str) -> None:
    """The waiter is woken and cancelled in the same step of the event loop: the next one gets the lock."""
    lock = advisory_lock(name, using=using, timeout=PATIENCE)

    async def main() -> None:
        for _ in range(10):
            holder = await lock.aacquire()
            first, second = asyncio.create_task(lock.aacquire()), asyncio.create_task(lock.aacquire())
            await _until(lambda: waiting_here(name) == 2)
            release = asyncio.create_task(holder.arelease())
            await _until(lambda: waiting_here(name) < 2)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            await release
            lease = await asyncio.wait_for(second, PATIENCE)
            await lease.arelease()

    asyncio.run(main())


def test_r7_a_release_that_is_cancelled_is_a_release(rival: Any, using: str, name: str) -> None:
    """Many give back at once and are cancelled while they do."""

    async def main() -> None:
        for _ in range(5):
            leases = [await advisory_lock(f"{name}{number}", using=using).aacquire() for number in range(10)]
            tasks = [asyncio.create_task(lease.arelease()) for lease in leases]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert not any(lease.held for lease in leases)

    asyncio.run(main())
    assert list(lock_table.everything()) == []
    for number in range(10):
        rival.release(rival.acquire(using, f"{name}{number}", timeout=1))


def test_r7_wait_for_around_an_acquire(rival: Any, using: str, name: str) -> None:
    """asyncio's own timeout is a cancellation."""
    busy = rival.acquire(using, name)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(advisory_lock(name, using=using).aacquire(), 0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), advisory_lock(name, using=using):
                pytest.fail("it is held by somebody else")

    asyncio.run(main())
    rival.release(busy)
    rival.release(rival.acquire(using, name, timeout=1))


def test_r7_a_timeout_leaves_nothing(me: Actor, rival: Any, using: str, name: str) -> None:
    busy = rival.acquire(using, name)
    for timeout in (0, 0.001, 0.01, 0.02):
        # within so short a time the server need not have answered
        with pytest.raises(LockNotAcquired if timeout == 0 else (LockNotAcquired, BackendUnavailable)):
            me.acquire(advisory_lock(name, using=using), timeout=timeout)
    rival.release(busy)
    rival.release(rival.acquire(using, name, timeout=1))


@pytest.mark.tier2
def test_r7_timeouts_that_race_with_the_release(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    """Either the waiter has it and knows, or it does not have it. On a busy machine servers may be silent as long."""
    lock = advisory_lock(name, using=using)
    dice = random.Random(7)
    silent = 0
    for _ in range(15):
        busy = rival.acquire(using, name)
        waiting = me.start(lock, "try_acquire", timeout=0.012)
        threading.Event().wait(dice.uniform(0.006, 0.014))
        rival.release(busy)
        try:
            lease = waiting.result(PATIENCE)
        except BackendUnavailable:
            lease, silent = None, silent + 1
        if lease is not None:
            assert lease.held
            me.release(lease)
    assert silent < 5
    rival.release(rival.acquire(using, name, timeout=1))


def test_r7_lock_all_that_is_cancelled_half_way_gives_back_what_it_had(rival: Any, using: str, name: str) -> None:
    names = [f"{name}{letter}" for letter in "abc"]
    busy = rival.acquire(using, names[-1])

    async def main() -> None:
        task = asyncio.create_task(lock_all(names, using=using, timeout=PATIENCE).aacquire())
        await _until(lambda: asking_here(names[-1]) + waiting_here(names[-1]))
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        within(time.monotonic() - began, 1)

    asyncio.run(main())
    for each in names[:-1]:
        rival.release(rival.acquire(using, each, timeout=1))
    rival.release(busy)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_r7_lock_all_whose_release_is_cancelled_releases_all(rival: Any, using: str, name: str, steps: int) -> None:
    names = [f"{name}{letter}" for letter in "abc"]

    async def main() -> None:
        leases = await lock_all(names, using=using, timeout=PATIENCE).aacquire()
        task = asyncio.create_task(leases.arelease())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not any(lease.held for lease in leases)

    asyncio.run(main())
    for each in names:
        rival.release(rival.acquire(using, each, timeout=1))


def test_r7_an_exception_of_the_body_leaves_nothing(me: Actor, rival: Any, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using, timeout=0)
    me.enter(lock)
    me.exit(lock, KeyError("the body's own"))
    rival.release(rival.acquire(using, name, timeout=0))
