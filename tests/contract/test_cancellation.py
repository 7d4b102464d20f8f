"""R7: an attempt that fails, times out or is cancelled leaves nothing held."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from typing import Any

import pytest

from django_distlock import BackendUnavailable, LockNotAcquired, advisory_lock, lock_all
from django_distlock.manager.lock_table import lock_table
from tests.conftest import eventually
from tests.contract.actors import PATIENCE, Actor, turns
from tests.contract.conftest import those
from tests.contract.watching import waiting_at_the_engine

CANCELS = 500
# Steps of the event loop within which an engine on this machine has answered, more or less.
STEPS = 300


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(condition: Any) -> None:
    """Let the event loop run until ``condition()`` is true, not one step longer."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await turns()


async def _storm(using: str, names: list[str], dice: random.Random) -> int:
    """CANCELS cancellations, several at once; how many came in time."""
    locks = [advisory_lock(name, using=using, timeout=0.05) for name in names]

    async def work(lock: Any) -> None:
        async with lock:
            await turns()

    async def line(count: int) -> int:
        in_time = 0
        for _ in range(count):
            task = asyncio.create_task(work(dice.choice(locks)))
            await turns(dice.choice([0, dice.randrange(STEPS)]))
            task.cancel()
            # busy; or no answer within 50 ms, on a busy machine
            with suppress(LockNotAcquired, BackendUnavailable, asyncio.CancelledError):
                await task
            in_time += task.cancelled()
        return in_time

    return sum(await asyncio.gather(*[line(CANCELS // 10) for _ in range(10)]))


def test_r7_500_random_cancellations_leave_nothing(rival: Any, using: str, name: str) -> None:
    """Cancelled while it connects, waits here, waits at the engine, holds, or gives back. The last name is busy."""
    seed = random.randrange(2**32)
    print("seed", seed)
    names = [f"{name}{number}" for number in range(3)]
    busy = rival.acquire(using, names[-1])
    in_time = asyncio.run(_storm(using, names, random.Random(seed)))
    assert in_time > CANCELS / 10, "hardly any cancellation came in time"
    assert {hold.key.name for hold in lock_table.all()} <= {names[-1]}
    rival.release(busy)
    assert lock_table.all() == []
    for each in names:
        rival.release(rival.acquire(using, each))


@pytest.mark.parametrize("steps", range(4))
def test_r7_a_waiter_that_is_cancelled_as_the_event_loop_ends_leaves_the_queue(
    rival: Any, using: str, name: str, steps: int
) -> None:
    """asyncio.run() cancels all that is left, and so the clean-up, when it begins or in the middle."""
    names = [f"{name}{number}" for number in range(4)]
    busy = [rival.acquire(using, each) for each in names]

    async def main() -> None:
        tasks = [asyncio.create_task(advisory_lock(each, using=using).aacquire(timeout=None)) for each in names]
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(waiting_at_the_engine, using, names[0]):
                await turns()
        for task in tasks:
            task.cancel()
        await turns(steps)

    asyncio.run(main())
    for each, grant in zip(names, busy, strict=True):
        eventually(lambda name=each: not waiting_at_the_engine(using, name), "a dead waiter stands at the engine")
        rival.release(grant)
        rival.release(rival.acquire(using, each))


@pytest.mark.parametrize("ends", [False, True], ids=["loop goes on", "event_loop_ends"])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_r7_a_release_that_is_cancelled_is_a_release(rival: Any, using: str, name: str, steps: int, ends: bool) -> None:
    """Many give back at once, locks and a set, and are cancelled while they do."""
    names = [f"{name}{number}" for number in range(8)]

    async def main() -> None:
        leases = [await advisory_lock(each, using=using).aacquire() for each in names[3:]]
        several = await lock_all(names[:3], using=using, timeout=PATIENCE).aacquire()
        tasks = [asyncio.create_task(lease.arelease()) for lease in (several, *leases)]
        await turns(1 if ends else steps)
        for task in tasks:
            task.cancel()
        if ends:
            await turns(steps - 1)
            return
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(lease.held for lease in (*several, *leases))

    asyncio.run(main())
    eventually(lambda: not lock_table.all(), "something is held")
    for each in names:
        rival.release(rival.acquire(using, each))


@those(lambda entry: entry.using in ("memory", "postgres", "mysql", "redis", "zookeeper"))
def test_r16_release_on_the_loop_does_not_wait_for_a_task_of_it(using: str, name: str) -> None:
    """A task may be in the middle of a statement on the same session; the other locks of that session live on."""

    async def main() -> None:
        kept = await advisory_lock(name + "kept", using=using).aacquire()
        for turn in range(30):
            lease = await advisory_lock(name, using=using).aacquire()
            other = asyncio.ensure_future(advisory_lock(f"{name}{turn}", using=using).aacquire())
            await turns()
            lease.release()
            await (await other).arelease()
            kept.ensure_held()
        await kept.arelease()
        async with asyncio.timeout(PATIENCE):
            again = await advisory_lock(name, using=using).aacquire()
        await again.arelease()

    asyncio.run(main())


@pytest.mark.tier2
def test_r7_timeouts_that_race_with_the_release(me: Actor, rival: Any, using: str, name: str) -> None:
    """Either the waiter has it and knows, or it does not have it. On a busy machine servers may be silent as long."""
    lock = advisory_lock(name, using=using)
    dice = random.Random(7)
    for _ in range(15):
        busy = rival.acquire(using, name)
        waiting = me.start(lock, "try_acquire", timeout=0.012)
        threading.Event().wait(dice.uniform(0.006, 0.014))
        rival.release(busy)
        try:
            lease = waiting.result(PATIENCE)
        except BackendUnavailable:
            lease = None
        if lease is not None:
            assert lease.held
            me.release(lease)
    rival.release(rival.acquire(using, name))
