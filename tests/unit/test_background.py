"""Calls in threads: their outcome is the caller's, or it is disposed of; and abandoned ones do not pile up."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted, SharedCall
from django_distlock.concurrency.flow import run
from tests.conftest import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
def test_the_result_and_the_error_are_the_callers(drive: Callable[..., Any], background: Background) -> None:
    disposed: list[Any] = []
    assert drive(background.call(FAR, divmod, 7, 2, dispose=disposed.append)) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        drive(background.call(FAR, divmod, 7, 0, dispose=disposed.append))
    assert not disposed


@both
def test_r7_it_is_abandoned_at_the_deadline(drive: Callable[..., Any], background: Background, door: Door) -> None:
    """And its result, when it comes, is disposed of; errors are dropped."""
    for function, dispose in ((door.wait, door.disposed.append), (door.fail, None), (door.wait, door.fail)):
        with pytest.raises(CallTimeout):
            drive(background.call(AT_ONCE, function, dispose=dispose))
    door.open_late()


def test_r7_a_task_that_is_cancelled_abandons_it(background: Background, door: Door) -> None:
    async def main() -> None:
        task = asyncio.create_task(background.call(FAR, door.wait, dispose=door.disposed.append))
        await asyncio.sleep(0)  # it begins
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    door.open_late()


def test_abandoned_calls_do_not_pile_up(background: Background, door: Door) -> None:
    """Those that are waited for have no limit."""
    calls = [background.start(door.wait) for _ in range(5)]
    for call in calls[:3]:
        with pytest.raises(CallTimeout):
            run(background.result(call, AT_ONCE))
    with pytest.raises(NotStarted, match="3 are still under way"):
        run(background.call(FAR, door.wait))
    door.opened.set()
    assert [run(background.result(call, FAR)) for call in calls[3:]] == ["result"] * 2
    eventually(lambda: not background._abandoned, "a thread is left behind")
    assert run(background.call(FAR, door.wait)) == "result"


def test_no_thread_to_be_had(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(NotStarted, match="can't start new thread"):
            run(background.call(FAR, str))
    assert run(background.call(FAR, str, 1)) == "1"


def test_r7_an_interrupt_while_the_thread_starts_abandons_it(
    background: Background, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        begin(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            run(background.call(FAR, door.wait, dispose=door.disposed.append))
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
