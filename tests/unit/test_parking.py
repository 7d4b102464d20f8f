"""FairLock, a mutex that serves threads and tasks in order, whoever of them gives up, is cancelled or interrupted."""

from __future__ import annotations

import asyncio
import random
import types
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency import leftovers, parking
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.parking import FairLock, Parker, Turn
from tests.conftest import PATIENCE, eventually
from tests.support.interrupts import interrupted_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator


async def enter(lock: FairLock, timeout: float, inside: Callable[[], object] = bool) -> bool:
    turn = lock.turn()
    try:
        if await turn.acquire(timeout):
            inside()
            return True
        return False
    finally:
        turn.release()


def free(lock: FairLock) -> bool:
    """Can it be had without a wait?"""
    turn = lock.turn()
    try:
        return turn.arrive()
    finally:
        turn.release()


class Crowd:
    """Threads and tasks, each of which can be made to wait at one lock."""

    def __init__(self) -> None:
        self.lock = FairLock()
        self.order: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.pool = ThreadPoolExecutor(10)
        self.running = self.pool.submit(self.loop.run_forever)

    def waiting(self) -> int:
        return len(self.lock._queue)

    def arrive(self, name: str) -> Any:
        """Returns a future once ``name`` waits."""
        before = self.waiting()
        entering = enter(self.lock, PATIENCE, lambda: self.order.append(name))
        future: Any
        if name.startswith("task"):
            future = asyncio.run_coroutine_threadsafe(entering, self.loop)
        else:
            future = self.pool.submit(run, entering)
        eventually(lambda: self.waiting() == before + 1, f"{name} does not wait")
        return future

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.pool.shutdown()
        self.loop.close()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.close()


def test_r4_threads_and_tasks_are_served_in_order_of_arrival(crowd: Crowd) -> None:
    turn = crowd.lock.turn()
    assert run(turn.acquire(0))
    assert not run(enter(crowd.lock, 0))
    assert not asyncio.run(enter(crowd.lock, 0))
    names = [f"{'task' if number % 2 else 'thread'}{number}" for number in range(8)]
    futures = [crowd.arrive(name) for name in names]
    futures.pop(3).cancel()  # R7: it is passed over
    eventually(lambda: crowd.waiting() == 7, "the cancelled one still waits")
    assert not free(crowd.lock)
    turn.release()
    assert all(future.result(PATIENCE) for future in futures)
    assert crowd.order == [*names[:3], *names[4:]]
    assert free(crowd.lock)


@pytest.mark.parametrize("cancel_first", [True, False])
def test_r7_a_task_that_is_cancelled_and_gets_the_turn_in_one_step_passes_it_on(cancel_first: bool) -> None:
    async def main() -> None:
        lock = FairLock()
        turn = lock.turn()
        assert turn.arrive()
        first, second = (asyncio.create_task(enter(lock, PATIENCE)) for _ in range(2))
        await asyncio.sleep(0)
        if cancel_first:
            first.cancel()
        turn.release()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second

    asyncio.run(main())


@pytest.mark.parametrize("late", [False, True])
def test_r7_a_turn_that_is_gone_without_its_release_leaves_the_lock_free(
    crowd: Crowd, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits gets it, and comes before who is late."""
    monkeypatch.setattr(parking, "LOOK_AGAIN", PATIENCE if late else 0.01)
    lost = crowd.lock.turn()
    assert lost.arrive()
    future = crowd.arrive("thread")
    del lost
    turn = crowd.lock.turn()
    assert not (late and turn.arrive())
    assert future.result(PATIENCE / 2)  # and not only when its time is over
    turn.release()
    assert free(crowd.lock)


class StopsWaiting(Turn):
    """Its wait ends while another thread looks at it."""

    looked_at = False

    def __getattribute__(self, name: str) -> Any:
        if name != "parker" or type(self).looked_at:
            return super().__getattribute__(name)
        type(self).looked_at = True
        return Parker()


def test_r7_a_waiter_that_stops_waiting_as_it_is_served_has_the_turn() -> None:
    lock = FairLock()
    holder, waiter = lock.turn(), StopsWaiting(lock)
    assert holder.arrive()
    assert not waiter.arrive()
    holder.release()
    assert waiter.arrive()


@pytest.mark.parametrize("woken", [False, True], ids=["before", "after"])
def test_r7_a_release_that_is_interrupted_at_the_waiter_gives_it_the_lock(
    monkeypatch: pytest.MonkeyPatch, woken: bool
) -> None:
    """Once, also if it is repeated: there is never a second holder."""
    lock, wake = FairLock(), Parker.wake
    holder, waiter = lock.turn(), lock.turn()
    parker = waiter.parker = Parker()

    def interrupted(parker: Parker) -> bool:
        monkeypatch.setattr(Parker, "wake", wake)
        if woken:
            parker.wake()
        raise KeyboardInterrupt

    assert holder.arrive()
    assert not waiter.arrive()
    monkeypatch.setattr(Parker, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt):
        holder.release()
    assert parker.woken
    assert waiter.arrive()
    holder.release()
    assert not free(lock), "two holders"
    waiter.release()
    assert free(lock), "it is kept for nobody"


def test_r7_an_interrupt_anywhere_leaves_the_lock_free() -> None:
    lock = FairLock()

    def is_free() -> None:
        assert free(lock)

    assert interrupted_everywhere(lambda: run(enter(lock, 0)), is_free, parking) > 10


@types.coroutine
def suspended() -> Generator[None]:
    yield


def test_r7_a_turn_in_a_coroutine_that_is_closed_leaves_the_lock_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: what is left to another thread may be done late, or never, where no lock was had yet."""
    lock, left = FairLock(), []
    monkeypatch.setattr(leftovers, "leave", left.append)

    async def holds() -> None:
        turn = lock.turn()
        try:
            assert await turn.acquire(0)
            await suspended()
        finally:
            turn.release()

    coroutine = holds()
    coroutine.send(None)
    assert not free(lock)
    waiter = lock.turn()
    assert not waiter.arrive()
    coroutine.close()
    (job,) = left
    job()
    assert waiter.arrive(), "who waits is not served"
    waiter.release()
    del job
    coroutine = holds()
    coroutine.send(None)
    coroutine.close()
    assert free(lock)


def test_r1_a_storm_of_threads_and_tasks_with_timeouts_and_cancellations(crowd: Crowd) -> None:
    """Never two inside, nobody waits in vain, and it is free at the end."""
    dice = random.Random()
    lock, inside, most = crowd.lock, [], []

    def enter_and_leave() -> None:
        inside.append(1)
        most.append(len(inside))
        inside.pop()

    def thread() -> None:
        for _ in range(200):
            timeout = dice.choice([0, 0.0001, PATIENCE])
            assert run(enter(lock, timeout, enter_and_leave)) or timeout < PATIENCE

    async def tasks() -> None:
        for _ in range(60):
            batch = [
                asyncio.create_task(enter(lock, dice.choice([0, 0.0001, PATIENCE]), enter_and_leave)) for _ in range(5)
            ]
            await asyncio.sleep(0)
            for victim in dice.sample(batch, 2):
                victim.cancel()
            await asyncio.gather(*batch, return_exceptions=True)

    threads = [crowd.pool.submit(thread) for _ in range(4)]
    asyncio.run_coroutine_threadsafe(tasks(), crowd.loop).result(PATIENCE)
    for future in threads:
        future.result(PATIENCE)
    assert max(most) == 1
    assert free(lock)
