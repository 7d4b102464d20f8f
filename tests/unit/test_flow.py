"""Coroutines for threads and tasks, whose clean-up is never cut short; and calls in threads, whose outcome is the
caller's, or it is disposed of."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background, CallTimeout, SharedCall
from django_distlock.concurrency.flow import clean_up, run
from tests.conftest import PATIENCE, eventually
from tests.contract.actors import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


NAME = "distlock-test-background"  # nothing_left looks for threads with such names
FAR = float("inf")
AT_ONCE = 0.0
both = pytest.mark.parametrize("drive", [run, asyncio.run], ids=["thread", "task"])


@pytest.fixture
def background() -> Background:
    return Background(NAME, limit=3)


class Door:
    """A call that returns when it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.disposed: list[str] = []

    def wait(self) -> str:
        assert self.opened.wait(PATIENCE)
        return "result"

    def fail(self, result: str = "") -> None:
        self.wait()
        raise OSError

    def open_late(self) -> None:
        assert not self.disposed
        self.opened.set()
        eventually(lambda: self.disposed == ["result"], "the late result is not disposed of")


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.opened.set()


@both
def test_r7_it_is_abandoned_at_the_deadline(drive: Callable[..., Any], background: Background, door: Door) -> None:
    """And its result, when it comes, is disposed of; errors are dropped."""
    for function, dispose in ((door.wait, door.disposed.append), (door.fail, None), (door.wait, door.fail)):
        with pytest.raises(CallTimeout):
            drive(background.call(AT_ONCE, function, dispose=dispose))
    door.open_late()


def test_r23_a_call_that_failed_is_not_kept_alive_by_its_error(background: Background) -> None:
    """Its traceback refers to the thread's function, and with it to the arguments, as a socket."""
    argument = Door()
    seen = weakref.ref(argument)
    gc.disable()
    try:
        with pytest.raises(TypeError):
            run(background.call(FAR, int, argument))
        eventually(lambda: NAME not in [thread.name for thread in threading.enumerate()], "a thread is left behind")
        del argument
        assert seen() is None
    finally:
        gc.enable()


def test_r5_a_shared_call_is_made_once_for_all_who_wait_each_until_its_own_deadline(door: Door) -> None:
    calls: list[str] = []

    def connect() -> str:
        calls.append("connect")
        return door.wait()

    shared = SharedCall(NAME, connect)
    with ThreadPoolExecutor(3) as pool:
        patient = [pool.submit(lambda: run(shared.result(FAR))) for _ in range(2)]
        eventually(lambda: calls, "it is not called")
        for _ in range(3):
            with pytest.raises(CallTimeout):
                run(shared.result(clock.now() + 0.01))
        door.opened.set()
        assert [each.result(PATIENCE) for each in patient] == ["result"] * 2
    assert calls == ["connect"]
    assert run(shared.result(FAR)) == "result"
    assert calls == ["connect"] * 2, "a call that has ended is made again"
