"""Coroutines for threads and tasks: in a thread they run to their end at once, and a clean-up is never cut short."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from django_distlock.concurrency.flow import clean_up, finished
from tests.contract.actors import turns


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


@pytest.mark.parametrize(
    ("error", "fails", "cancels", "raised"),
    [
        (None, False, 1, asyncio.CancelledError),
        (None, True, 3, asyncio.CancelledError),
        (ZeroDivisionError, False, 0, ZeroDivisionError),
        # swallowed it would be lost where the error is handled, as when a waiter's turn is over
        (ZeroDivisionError, False, 1, asyncio.CancelledError),
    ],
)
def test_r7_a_clean_up_runs_to_its_end_and_a_cancellation_is_raised_behind_it(
    error: Any, fails: bool, cancels: int, raised: Any, caplog: Any
) -> None:
    async def main() -> None:
        assert await CleanUp(error, fails).outcome(cancels) is raised

    asyncio.run(main())
    assert ("still gone" in caplog.text) is fails


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
