"""Parker: one waiter, a thread or a task, that is woken, gives up, or is interrupted."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_distlock.concurrency.parking import Parker
from tests.support.timing import within

PATIENCE = 10.0


def _until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0)


def test_a_parker_that_was_woken_before_does_not_sleep() -> None:
    parker = Parker()
    assert parker.wake()
    assert parker.park(math.inf)

    async def main() -> bool:
        early = Parker()
        early.wake()
        return await early.apark(math.inf)

    assert asyncio.run(main())


def test_r5_a_parker_sleeps_as_long_as_it_was_told() -> None:
    began = time.monotonic()
    assert not Parker().park(0.05)
    within(time.monotonic() - began, 0.1, least=0.05)

    async def main() -> float:
        began = time.monotonic()
        assert not await Parker().apark(0.05)
        return time.monotonic() - began

    within(asyncio.run(main()), 0.1, least=0.05)


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_parker_without_time(timeout: float) -> None:
    assert not Parker().park(max(0, timeout))

    async def main() -> bool:
        return await Parker().apark(timeout)

    assert not asyncio.run(main())


@pytest.mark.parametrize("timeout", [math.inf, 1e12, 9e9])
def test_a_parker_with_more_time_than_the_clock_can_count(timeout: float) -> None:
    parker = Parker()
    with ThreadPoolExecutor(1) as pool:
        parked = pool.submit(parker.park, timeout)
        _until(lambda: parker._signal)
        assert parker.wake()
        assert parked.result(PATIENCE)

    async def main() -> bool:
        parker = Parker()
        asyncio.get_running_loop().call_soon(parker.wake)
        return await parker.apark(timeout)

    assert asyncio.run(main())


def test_who_has_left_cannot_be_woken() -> None:
    """So the one who wakes knows that the next one is to be woken."""
    parker = Parker()
    assert not parker.park(0)
    assert not parker.wake()
    assert not parker.woken


def test_who_was_woken_in_time_knows_it_also_when_interrupted() -> None:
    parker = Parker()
    assert parker.wake()
    assert parker.leave()
    gone = Parker()
    assert not gone.leave()
    assert not gone.wake()


def test_waking_twice_is_harmless() -> None:
    async def main() -> None:
        parker = Parker()
        task = asyncio.create_task(parker.apark(PATIENCE))
        await asyncio.sleep(0)
        assert parker.wake()
        parker.wake()
        assert await task

    asyncio.run(main())


def test_a_closed_event_loop_wakes_nobody() -> None:
    """The next one is to be woken then."""
    loop = asyncio.new_event_loop()
    parker = Parker()
    coroutine = parker.apark(PATIENCE)
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.close()
    assert not parker.wake()
    assert not parker.woken
    coroutine.close()


def test_r7_cancelled_and_woken_in_one_step() -> None:
    """In both orders exactly one side knows: wake() is true and leave() is, or neither."""

    async def main() -> None:
        for cancel_first in (True, False):
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
