"""FairLock, a mutex that serves threads and tasks in order, whoever of them gives up, is cancelled or interrupted."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency import parking
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.parking import FairLock, Parker
from tests.conftest import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
        future: Any
        if name.startswith("task"):
            future = asyncio.run_coroutine_threadsafe(self._task(name), self.loop)
        else:
            future = self.pool.submit(self._thread, name)
        eventually(lambda: self.waiting() == before + 1, f"{name} does not wait")
        return future

    def _thread(self, name: str) -> bool:
        return run(self.lock.acquire(PATIENCE)) and self._served(name)

    async def _task(self, name: str) -> bool:
        return await self.lock.acquire(PATIENCE) and self._served(name)

    def _served(self, name: str) -> bool:
        self.order.append(name)
        self.lock.release()
        return True

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
    assert run(crowd.lock.acquire(0))
    assert not run(crowd.lock.acquire(0))
    assert not asyncio.run(crowd.lock.acquire(0))
    names = [f"{'task' if number % 2 else 'thread'}{number}" for number in range(8)]
    futures = [crowd.arrive(name) for name in names]
    futures.pop(3).cancel()  # R7: it is passed over
    eventually(lambda: crowd.waiting() == 7, "the cancelled one still waits")
    assert not crowd.lock.try_acquire()
    crowd.lock.release()
    assert all(future.result(PATIENCE) for future in futures)
    assert crowd.order == [*names[:3], *names[4:]]
    assert crowd.lock.try_acquire()


@pytest.mark.parametrize("cancel_first", [True, False])
def test_r7_a_task_that_is_cancelled_and_gets_the_turn_in_one_step_passes_it_on(cancel_first: bool) -> None:
    async def main() -> None:
        lock = FairLock()
        assert lock.try_acquire()
        first, second = (asyncio.create_task(lock.acquire(PATIENCE)) for _ in range(2))
        await asyncio.sleep(0)
        if cancel_first:
            first.cancel()
        lock.release()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await second

    asyncio.run(main())


@pytest.mark.parametrize("woken", [True, False])
def test_r7_an_interrupted_thread_passes_the_turn_on(crowd: Crowd, monkeypatch: Any, woken: bool) -> None:
    """KeyboardInterrupt just after it was woken, and before."""
    go = threading.Event()

    async def interrupted(self: Parker, timeout: float) -> bool:
        assert go.wait(PATIENCE)
        raise KeyboardInterrupt

    run(crowd.lock.acquire(0))
    monkeypatch.setattr(Parker, "park", interrupted)
    future = crowd.arrive("thread")
    if woken:
        crowd.lock.release()
    go.set()
    with pytest.raises(KeyboardInterrupt):
        future.result(PATIENCE)
    if not woken:
        assert not crowd.lock.try_acquire()
        crowd.lock.release()
    assert crowd.lock.try_acquire()


@pytest.mark.parametrize("over", [False, True], ids=["waits", "its_time_is_over"])
def test_r1_r7_a_release_that_was_interrupted_before_it_woke_the_waiter(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    """Who comes then serves the waiter first; and a waiter whose time ended then is the only holder."""
    holder, waiter, wake, told = crowd.lock.turn(), crowd.lock.turn(), Parker.wake, threading.Event()

    async def until_told(parker: Parker, timeout: float) -> bool:
        assert told.wait(PATIENCE)
        return parker.leave()

    def interrupted(parker: Parker) -> bool:
        monkeypatch.setattr(Parker, "wake", wake)
        raise KeyboardInterrupt

    assert holder.try_acquire()
    if over:
        monkeypatch.setattr(Parker, "park", until_told)
    waiting = crowd.pool.submit(lambda: run(waiter.acquire(PATIENCE)))
    eventually(lambda: crowd.waiting() == 1, "nobody waits")
    monkeypatch.setattr(Parker, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt):
        holder.release()
    told.set()
    assert over or crowd.lock.try_turn() is None
    assert waiting.result(PATIENCE)
    assert not crowd.lock.try_acquire(), "two holders"
    waiter.release()
    assert crowd.lock.try_acquire(), "it is kept for nobody"


def test_r7_a_turn_that_is_gone_without_its_release_is_given_back_by_the_next_caller() -> None:
    lock = FairLock()
    assert lock.turn().try_acquire()
    assert lock.try_acquire()
    assert not lock.try_acquire()


def comes_at(place: int, call: Callable[[], object], intruder: Callable[[], object]) -> bool:
    """``intruder`` comes at the n-th place of ``call`` where another thread may run; False: there are not so many."""
    seen = 0

    def look(frame: Any, event: str, argument: object) -> None:
        nonlocal seen
        if frame.f_code.co_filename == parking.__file__ and event in ("call", "c_return"):
            seen += 1
            if seen == place:
                intruder()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen >= place


def test_r1_a_caller_that_comes_in_the_midst_of_a_repeated_release_keeps_the_lock() -> None:
    """A release is repeated where an interrupt may have cut it off. Most often nothing is left to be done."""
    place, there = 0, True
    while there:
        place += 1
        lock = FairLock()
        turn, other = lock.turn(), lock.turn()
        assert turn.try_acquire()
        turn.release()
        there = comes_at(place, turn.release, other.try_acquire)
        assert lock.try_acquire() is not there, f"two holders, place {place}"
        other.release()
    assert place > 3


def test_r1_a_storm_of_threads_and_tasks_with_timeouts_and_cancellations(crowd: Crowd) -> None:
    """Never two inside, nobody waits in vain, and it is free at the end."""
    dice = random.Random()
    lock, inside, most = crowd.lock, [], []

    def enter_and_leave() -> None:
        inside.append(1)
        most.append(len(inside))
        inside.pop()
        lock.release()

    def thread() -> None:
        for _ in range(200):
            timeout = dice.choice([0, 0.0001, PATIENCE])
            if run(lock.acquire(timeout)):
                enter_and_leave()
            else:
                assert timeout < PATIENCE

    async def task() -> None:
        if await lock.acquire(dice.choice([0, 0.0001, PATIENCE])):
            enter_and_leave()

    async def tasks() -> None:
        for _ in range(60):
            batch = [asyncio.create_task(task()) for _ in range(5)]
            await asyncio.sleep(0)
            for victim in dice.sample(batch, 2):
                victim.cancel()
            await asyncio.gather(*batch, return_exceptions=True)

    threads = [crowd.pool.submit(thread) for _ in range(4)]
    asyncio.run_coroutine_threadsafe(tasks(), crowd.loop).result(PATIENCE)
    for future in threads:
        future.result(PATIENCE)
    assert max(most) == 1
    assert lock.try_acquire()
