"""Coroutines for threads and tasks: in a thread they run to their end at once, and a clean-up is never cut short."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from django_distlock.concurrency.deadline import pause
from django_distlock.concurrency.flow import clean_up, finished, in_task, run
from tests.contract.actors import turns


async def asked() -> bool:
    await pause(0.01)
    return in_task()


def test_its_waits_block_a_thread_and_suspend_a_task() -> None:
    assert run(asked()) is False
    assert asyncio.run(asked()) is True


def test_in_the_thread_of_an_event_loop_it_blocks_the_loop() -> None:
    """As a sync call does there, which DJANGO_ALLOW_ASYNC_UNSAFE permits; the loop goes on behind it."""

    async def main() -> None:
        later = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(later.set_result, None)
        before = time.monotonic()
        assert run(asked()) is False
        assert time.monotonic() - before >= 0.01
        assert not later.done()
        assert asyncio.current_task() is not None
        await later
        assert await asked() is True

    asyncio.run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_error_comes_out_as_it_is(error: type[BaseException]) -> None:
    async def fails() -> None:
        await pause(0)
        raise error

    with pytest.raises(error):
        run(fails())


def test_what_suspends_in_a_thread_is_an_error_of_the_library() -> None:
    with pytest.raises(RuntimeError, match="must not suspend"):
        run(asyncio.sleep(0))


class CleanUp:
    """An operation that fails or is cancelled, and cleans up behind that until it is allowed to end."""

    def __init__(self, error: type[BaseException] | None, fails: bool = False) -> None:
        self.error, self.fails = error, fails
        self.begun, self.may_end, self.ended = False, asyncio.Event(), False

    async def operation(self) -> None:
        try:
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        except BaseException:
            await clean_up(self._clean())
            raise

    async def _clean(self) -> None:
        self.begun = True
        await self.may_end.wait()
        self.ended = True
        if self.fails:
            raise OSError("still gone")

    async def outcome(self, cancels: int) -> Any:
        task = asyncio.create_task(self.operation())
        await turns(3)
        for _ in range(cancels):
            task.cancel()
            await turns(3)
        assert self.begun
        assert not task.done()
        self.may_end.set()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        assert self.ended
        return type(found)


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_r7_a_clean_up_behind_a_cancellation_runs_to_its_end(cancels: int, fails: bool, caplog: Any) -> None:
    async def main() -> None:
        assert await CleanUp(None, fails).outcome(cancels) is asyncio.CancelledError

    asyncio.run(main())
    assert ("still gone" in caplog.text) is fails


@pytest.mark.parametrize(("cancels", "raised"), [(0, ZeroDivisionError), (1, asyncio.CancelledError)])
def test_r7_a_cancellation_during_the_clean_up_behind_an_error_is_raised_behind_it(cancels: int, raised: Any) -> None:
    """Swallowed it would be lost where the error is handled, as when a waiter's turn is over."""

    async def main() -> None:
        assert await CleanUp(ZeroDivisionError).outcome(cancels) is raised

    asyncio.run(main())


def test_r7_what_must_be_finished_is_finished_before_the_cancellation_is_raised() -> None:
    async def main() -> None:
        ended, may_end = [], asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            ended.append(True)

        task = asyncio.create_task(finished(work()))
        await turns(3)
        task.cancel()
        await turns(3)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    asyncio.run(main())


def test_r7_a_clean_up_begins_although_the_event_loop_ends() -> None:
    """asyncio.run() cancels all that is left, and so the task of a clean-up that has not begun."""
    work = CleanUp(None)

    async def main() -> None:
        task = asyncio.create_task(work.operation())
        await turns(3)
        task.cancel()
        work.may_end.set()

    asyncio.run(main())
    assert work.ended
