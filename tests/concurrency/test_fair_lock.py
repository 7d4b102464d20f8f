"""FairLock: a mutex for threads and tasks side by side, in order, on time, and never lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_distlock.concurrency import parking
from django_distlock.concurrency.parking import FairLock, Parker
from tests.support.interrupts import Interrupter, interrupted_everywhere
from tests.support.timing import within

PATIENCE = 10.0


def _until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0)


def test_one_at_a_time_with_try_acquire() -> None:
    turnstile = FairLock()
    assert turnstile.try_acquire()
    assert not turnstile.try_acquire()
    assert not turnstile.acquire(0)
    turnstile.release()
    assert turnstile.acquire(0)
    turnstile.release()


def test_r5_the_turnstile_keeps_its_time() -> None:
    turnstile = FairLock()
    turnstile.acquire(0)
    began = time.monotonic()
    assert not turnstile.acquire(0.05)
    within(time.monotonic() - began, 0.1, least=0.05)
    assert not turnstile._queue

    async def main() -> None:
        assert not await turnstile.aacquire(0.05)

    asyncio.run(main())
    assert not turnstile._queue
    turnstile.release()
    assert turnstile.try_acquire()


class Crowd:
    """Threads and tasks, each of which can be made to wait at one turnstile."""

    def __init__(self) -> None:
        self.turnstile = FairLock()
        self.order: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.pool = ThreadPoolExecutor(10)

    def arrive(self, name: str, timeout: float = PATIENCE) -> Any:
        """Returns a future once ``name`` is queued."""
        before = len(self.turnstile._queue)
        future: Any
        if name.startswith("task"):
            future = asyncio.run_coroutine_threadsafe(self._task(name, timeout), self.loop)
        else:
            future = self.pool.submit(self._thread, name, timeout)
        _until(lambda: len(self.turnstile._queue) == before + 1)
        return future

    def _thread(self, name: str, timeout: float) -> bool:
        if not self.turnstile.acquire(timeout):
            return False
        self.order.append(name)
        self.turnstile.release()
        return True

    async def _task(self, name: str, timeout: float) -> bool:
        if not await self.turnstile.aacquire(timeout):
            return False
        self.order.append(name)
        self.turnstile.release()
        return True

    def close(self) -> None:
        self.pool.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()


@pytest.fixture
def crowd() -> Any:
    crowd = Crowd()
    yield crowd
    crowd.close()


def test_r4_threads_and_tasks_are_served_in_order_of_arrival(crowd: Crowd) -> None:
    crowd.turnstile.acquire(0)
    names = [f"{'task' if number % 2 else 'thread'}{number}" for number in range(8)]
    futures = [crowd.arrive(name) for name in names]
    assert not crowd.turnstile.try_acquire()
    crowd.turnstile.release()
    assert all(future.result(PATIENCE) for future in futures)
    assert crowd.order == names


def test_r7_a_cancelled_task_is_passed_over(crowd: Crowd) -> None:
    crowd.turnstile.acquire(0)
    futures = [crowd.arrive(name) for name in ("task1", "thread2", "task3")]
    futures[0].cancel()
    _until(lambda: len(crowd.turnstile._queue) == 2)
    crowd.turnstile.release()
    assert [future.result(PATIENCE) for future in futures[1:]] == [True, True]
    assert crowd.order == ["thread2", "task3"]
    assert crowd.turnstile.try_acquire()


def test_r7_cancelled_in_the_step_in_which_it_was_given_the_turn(crowd: Crowd) -> None:
    """It passes the turn on; nothing is lost."""

    async def main() -> None:
        turnstile = FairLock()
        for _ in range(20):
            assert turnstile.try_acquire()
            first, second = (asyncio.create_task(turnstile.aacquire(PATIENCE)) for _ in range(2))
            await asyncio.sleep(0)
            turnstile.release()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert await second
            turnstile.release()

    asyncio.run(main())


def test_r7_an_interrupted_thread_passes_the_turn_on(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt just after it was woken, and before."""
    original = Parker.park

    def interrupted(self: Parker, timeout: float) -> bool:
        original(self, timeout)
        raise KeyboardInterrupt

    turnstile = crowd.turnstile
    for woken in (True, False):
        turnstile.acquire(0)
        with monkeypatch.context() as patch:
            patch.setattr(Parker, "park", interrupted)
            future = crowd.pool.submit(turnstile.acquire, PATIENCE if woken else 0.02)
            if woken:
                _until(lambda: turnstile._queue)
                turnstile.release()
            with pytest.raises(KeyboardInterrupt):
                future.result(PATIENCE)
        if not woken:
            assert not turnstile.try_acquire()
            turnstile.release()
        assert turnstile.try_acquire()
        turnstile.release()


def test_a_storm_of_threads_and_tasks_with_timeouts_and_cancellations(crowd: Crowd) -> None:
    """Never two inside, and free at the end."""
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    turnstile, inside, most = crowd.turnstile, deque[int](), []

    def enter() -> None:
        inside.append(1)
        most.append(len(inside))

    def thread(times: list[float]) -> None:
        for timeout in times:
            if turnstile.acquire(timeout):
                enter()
                inside.pop()
                turnstile.release()

    async def task(timeout: float) -> None:
        if await turnstile.aacquire(timeout):
            try:
                enter()
                await asyncio.sleep(0)
            finally:
                inside.pop()
                turnstile.release()

    async def tasks() -> None:
        for _ in range(60):
            batch = [asyncio.create_task(task(dice.choice([0, 0.0001, 1]))) for _ in range(5)]
            await asyncio.sleep(0)
            for victim in dice.sample(batch, 2):
                victim.cancel()
            await asyncio.gather(*batch, return_exceptions=True)

    threads = [crowd.pool.submit(thread, [dice.choice([0, 0.0001, 1]) for _ in range(200)]) for _ in range(4)]
    asyncio.run_coroutine_threadsafe(tasks(), crowd.loop).result(30)
    for future in threads:
        future.result(30)
    assert max(most) == 1
    assert not turnstile._queue
    assert turnstile.try_acquire()


def test_a_turn_is_given_back_once_and_only_if_it_was_held() -> None:
    lock = FairLock()
    first, second = lock.turn(), lock.turn()
    assert first.acquire(0.0)
    assert not second.acquire(0.0)
    second.release()
    assert not lock.try_acquire(), "the second one had nothing to give back"
    first.release()
    first.release()
    assert asyncio.run(second.aacquire(0.0))
    second.release()
    assert lock.try_acquire()


def test_an_interrupted_turn_is_given_back() -> None:
    """R7"""
    lock = FairLock()

    def take() -> None:
        turn = lock.turn()
        try:
            turn.acquire(0.0)
        finally:
            turn.release()

    def clean() -> None:
        assert lock.try_acquire()
        lock.release()

    assert interrupted_everywhere(take, clean, parking) > 1


def test_an_interrupted_release_reaches_the_next_waiter() -> None:
    """R7"""
    lock = FairLock()
    waiters: list[threading.Thread] = []

    def start() -> None:
        def wait() -> None:
            assert lock.acquire(PATIENCE)
            lock.release()

        waiter = threading.Thread(target=wait)
        waiter.start()
        waiters.append(waiter)
        _until(lambda: lock._queue)

    def clean() -> None:
        lock.try_acquire() and lock.release()  # the next caller
        waiters.pop().join(PATIENCE)
        assert lock.try_acquire()
        lock.release()

    def release() -> None:
        turn = turns.pop()
        turn.release()

    turns: list[Any] = []
    at = 0
    while True:
        turns.append(lock.turn())
        assert turns[0].acquire(0.0)
        start()
        interrupter = Interrupter(at, parking)
        with contextlib.suppress(KeyboardInterrupt):
            interrupter.run(release)
        clean()
        if interrupter.place is None:
            break
        at += 1
    assert at > 5


class Sneaky(deque[Any]):
    """The queue of a lock. Before it is asked whether it is empty, or gets an entry, ``first`` is done, once."""

    def __init__(self, **first: Any) -> None:
        super().__init__()
        self.first = first

    def __bool__(self) -> bool:
        empty = not len(self)
        self.first.pop("bool", bool)()
        return not empty

    def append(self, entry: Any) -> None:
        self.first.pop("append", bool)()
        super().append(entry)


def test_a_waiter_that_comes_between_the_two_looks_of_a_release_is_served(crowd: Crowd) -> None:
    """The holder sees no queue, then the waiter sees a holder, then the holder leaves."""
    lock, turn = crowd.turnstile, crowd.turnstile.turn()
    assert turn.acquire(0)
    waiters: list[Any] = []

    def wait() -> None:
        waiters.append(crowd.pool.submit(lock.acquire, PATIENCE))
        _until(lambda: len(lock._queue))

    lock._queue = Sneaky(bool=wait)
    turn.release()
    assert waiters[0].result(PATIENCE)
    assert not len(lock._queue)
    assert not lock.try_acquire()
    lock.release()
    assert lock.try_acquire()


@pytest.mark.parametrize("barging", [False, True])
def test_a_waiter_whose_holder_leaves_before_it_is_queued_is_served(crowd: Crowd, barging: bool) -> None:
    """The waiter sees a holder, the holder sees no queue and leaves, and another caller may come in between."""
    lock, turn = crowd.turnstile, crowd.turnstile.turn()
    assert turn.acquire(0)
    others: list[Any] = []

    def leave() -> None:
        turn.release()
        if barging:
            others.append(lock.try_turn())

    lock._queue = Sneaky(append=leave)
    waiter = crowd.pool.submit(lock.acquire, PATIENCE)
    if barging:
        _until(lambda: len(lock._queue))
        others.pop().release()
    assert waiter.result(PATIENCE)
    assert not len(lock._queue)
    assert not lock.try_acquire()


def test_a_waiter_that_an_interrupted_release_has_left_behind_is_found() -> None:
    """R7: the lock is free, and somebody waits for it. The next caller serves the waiter first."""
    lock = FairLock()
    place = parking._Place(turn := lock.turn())
    lock._queue.append(place)
    assert not lock.try_acquire()
    assert place.parker.woken
    assert lock._settle(place)
    turn._place = place
    turn.release()
    assert lock.try_acquire()
