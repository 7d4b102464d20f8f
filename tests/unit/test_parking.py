"""Where threads and tasks wait side by side: Parker, one waiter, and FairLock, a mutex that serves them in order."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency.parking import HOLDER, FairLock, Parker
from tests.conftest import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize("timeout", [-1, 0, 0.01])
def test_r5_a_parker_that_nobody_wakes(timeout: float) -> None:
    """It cannot be woken afterwards, so the one who wakes knows that the next one is to be woken."""
    thread, task = Parker(), Parker()
    assert not thread.park(timeout)
    assert not asyncio.run(task.apark(timeout))
    for parker in (thread, task):
        assert not parker.wake()
        assert not parker.woken


@pytest.mark.parametrize("early", [True, False])
def test_r5_a_parker_that_is_woken(early: bool) -> None:
    """Before it sleeps, and while it does; with more time than the clock of the system can count."""
    parker = Parker()
    with ThreadPoolExecutor(1) as pool:
        woken = early and parker.wake()
        parked = pool.submit(parker.park, 1e12)
        assert woken or parker.wake()
        assert parked.result(PATIENCE)

    async def main() -> bool:
        parker = Parker()
        wake = (lambda call: call()) if early else asyncio.get_running_loop().call_soon
        for _ in range(2):  # waking twice is harmless
            wake(parker.wake)
        return await parker.apark(math.inf)

    assert asyncio.run(main())


def test_r7_a_closed_event_loop_wakes_nobody() -> None:
    """The next one is to be woken then."""
    loop, parker = asyncio.new_event_loop(), Parker()
    coroutine = parker.apark(PATIENCE)
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.close()
    assert not parker.wake()
    assert not parker.woken
    coroutine.close()


@pytest.mark.parametrize("cancel_first", [True, False])
def test_r7_cancelled_and_woken_in_one_step(cancel_first: bool) -> None:
    """In both orders exactly one side knows: wake() is true and leave() is, or neither."""

    async def main() -> None:
        parker = Parker()
        task = asyncio.create_task(parker.apark(PATIENCE))
        await asyncio.sleep(0)
        if cancel_first:
            task.cancel()
        woken = parker.wake()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert woken is parker.leave() is True

    asyncio.run(main())


class Crowd:
    """Threads and tasks, each of which can be made to wait at one lock."""

    def __init__(self) -> None:
        self.lock = FairLock()
        self.order: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.pool = ThreadPoolExecutor(10)

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
        return self.lock.acquire(PATIENCE) and self._served(name)

    async def _task(self, name: str) -> bool:
        return await self.lock.aacquire(PATIENCE) and self._served(name)

    def _served(self, name: str) -> bool:
        self.order.append(name)
        self.lock.release()
        return True

    def close(self) -> None:
        self.pool.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.close()


def test_r4_threads_and_tasks_are_served_in_order_of_arrival(crowd: Crowd) -> None:
    assert crowd.lock.acquire(0)
    assert not crowd.lock.acquire(0)
    assert not asyncio.run(crowd.lock.aacquire(0))
    names = [f"{'task' if number % 2 else 'thread'}{number}" for number in range(8)]
    futures = [crowd.arrive(name) for name in names]
    futures.pop(3).cancel()  # R7: it is passed over
    eventually(lambda: crowd.waiting() == 7, "the cancelled one still waits")
    assert not crowd.lock.try_acquire()
    crowd.lock.release()
    assert all(future.result(PATIENCE) for future in futures)
    assert crowd.order == [*names[:3], *names[4:]]
    assert crowd.lock.try_acquire()


def test_r7_a_task_that_is_cancelled_when_it_has_just_got_the_turn_passes_it_on() -> None:
    async def main() -> None:
        lock = FairLock()
        assert lock.try_acquire()
        first, second = (asyncio.create_task(lock.aacquire(PATIENCE)) for _ in range(2))
        await asyncio.sleep(0)
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

    def interrupted(self: Parker, timeout: float) -> bool:
        assert go.wait(PATIENCE)
        raise KeyboardInterrupt

    crowd.lock.acquire(0)
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


def test_r7_the_next_caller_finishes_a_release_that_was_interrupted(crowd: Crowd, monkeypatch: Any) -> None:
    """The lock is handed over, and the waiter was not woken. Who comes then serves the waiter first."""
    wake, turn = Parker.wake, crowd.lock.turn()
    assert turn.acquire(0)
    waiter = crowd.arrive("thread")

    def interrupted(parker: Parker) -> bool:
        monkeypatch.setattr(Parker, "wake", wake)
        raise KeyboardInterrupt

    monkeypatch.setattr(Parker, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt):
        turn.release()
    crowd.lock.try_turn()  # is gone at once, if it has come so late that the lock was free again
    assert waiter.result(PATIENCE)
    assert crowd.lock.try_acquire()


def test_r7_a_waiter_whose_holder_leaves_before_it_is_queued_is_served(crowd: Crowd) -> None:
    """The waiter sees a holder; the holder sees no queue and leaves."""
    turn = crowd.lock.turn()
    assert turn.acquire(0)

    class Late(deque[Any]):
        def append(self, entry: Any) -> None:
            turn.release()
            super().append(entry)

    crowd.lock._queue = Late()
    assert crowd.pool.submit(crowd.lock.acquire, PATIENCE).result(PATIENCE)
    assert not crowd.lock.try_acquire()


def test_r7_a_turn_is_given_back_once_and_one_that_is_gone_by_the_next_caller() -> None:
    """Its release may have been interrupted, or never begun."""
    lock = FairLock()
    turn, other = lock.turn(), lock.turn()
    assert turn.acquire(0)
    other.release()
    assert not lock.try_acquire(), "the other one had nothing to give back"
    turn.release()
    turn.release()
    assert lock.turn().try_acquire()
    assert lock.try_acquire()


def test_r1_a_storm_of_threads_and_tasks_with_timeouts_and_cancellations(crowd: Crowd) -> None:
    """Never two inside, and free at the end."""
    dice = random.Random()
    lock, inside, most = crowd.lock, [], []

    def enter_and_leave() -> None:
        inside.append(1)
        most.append(len(inside))
        inside.pop()
        lock.release()

    def thread() -> None:
        for _ in range(200):
            if lock.acquire(dice.choice([0, 0.0001, PATIENCE])):
                enter_and_leave()

    async def task() -> None:
        if await lock.aacquire(dice.choice([0, 0.0001, PATIENCE])):
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


class Intruded(dict[str, Any]):
    """The holder of a lock. The first time that there is none, ``intruder`` comes just after the look."""

    def __init__(self, intruder: Callable[[], object]) -> None:
        super().__init__()
        self.intruders = [intruder]

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        if found is None and self.intruders:
            self.intruders.pop()()
        return found


@pytest.mark.parametrize("lost", [False, True])
def test_r1_a_caller_that_comes_while_a_release_is_repeated_keeps_the_lock(lost: bool) -> None:
    """A release is repeated where an interrupt may have cut it off, by its caller or by the next one, who finds that
    the turn is gone. Most often nothing is left to be done."""
    lock = FairLock()
    turn, other = lock.turn(), lock.turn()
    assert turn.try_acquire()
    place = lock._held[HOLDER]
    if lost:
        del turn
        assert place() is None
        lock._held = Intruded(other.try_acquire)
        lock._pass_on(place)
    else:
        turn.release()
        lock._held = Intruded(other.try_acquire)
        turn.release()
    assert not lock.try_acquire(), "two holders"
    other.release()
    assert lock.try_acquire()


def test_r1_a_waiter_that_finds_itself_the_holder_at_its_deadline_is_the_only_one(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: the release was interrupted between the hand-over and the wake-up, and the waiter's time ended then."""
    holder, waiter, wake, over = crowd.lock.turn(), crowd.lock.turn(), Parker.wake, threading.Event()
    assert holder.try_acquire()

    def until_told(parker: Parker, timeout: float) -> bool:
        assert over.wait(PATIENCE)
        return parker.leave()

    def interrupted(parker: Parker) -> bool:
        monkeypatch.setattr(Parker, "wake", wake)
        raise KeyboardInterrupt

    monkeypatch.setattr(Parker, "park", until_told)
    waiting = crowd.pool.submit(waiter.acquire, 0.2)
    eventually(lambda: crowd.waiting() == 1, "nobody waits")
    monkeypatch.setattr(Parker, "wake", interrupted)
    with pytest.raises(KeyboardInterrupt):
        holder.release()
    over.set()
    assert waiting.result(PATIENCE)
    assert not crowd.lock.try_acquire(), "two holders"
    waiter.release()
    assert crowd.lock.try_acquire(), "it is kept for nobody"
