"""Calls in threads: their outcome is the caller's, or it is disposed of; and abandoned ones do not pile up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency import abandoned_calls as module
from django_distlock.concurrency import flow, parking
from django_distlock.concurrency.abandoned_calls import Background, CallTimeout, NotStarted
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import arun, run
from tests.conftest import eventually
from tests.support.interrupts import interrupted_everywhere
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_distlock.concurrency.flow import Flow

NAME = "distlock-test-background"
FAR = 10.0


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    eventually(lambda: not threads(), "a thread is left behind")


@pytest.fixture
def background() -> Background:
    return Background(NAME)


def by_thread(flow: Flow[Any]) -> Any:
    return run(flow)


def by_task(flow: Flow[Any]) -> Any:
    return asyncio.run(arun(flow))


both = pytest.mark.parametrize("drive", [by_thread, by_task])


class Door:
    """A call that returns when it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.disposed: list[str] = []

    def wait(self) -> str:
        assert self.opened.wait(FAR)
        return "result"


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.opened.set()


def asked(background: Background, door: Door, patience: float) -> Flow[str]:
    return background.call(monotonic() + patience, door.wait, dispose=door.disposed.append)


@both
def test_the_result_is_the_callers(drive: Callable[..., Any], background: Background) -> None:
    disposed: list[Any] = []
    flow = background.call(monotonic() + FAR, divmod, 7, 2, dispose=disposed.append)
    assert drive(flow) == (3, 1)
    assert not disposed


@both
def test_the_error_is_the_callers(drive: Callable[..., Any], background: Background) -> None:
    disposed: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        drive(background.call(monotonic() + FAR, divmod, 7, 0, dispose=disposed.append))
    assert not disposed


@both
def test_it_is_abandoned_at_the_deadline(drive: Callable[..., Any], background: Background, door: Door) -> None:
    began = time.monotonic()
    with pytest.raises(CallTimeout):
        drive(asked(background, door, 0.05))
    within(time.monotonic() - began, 0.1, least=0.05)
    assert threads() == 1
    assert not door.disposed
    door.opened.set()
    eventually(lambda: door.disposed == ["result"], "the late result is not disposed of")


def test_a_task_that_is_cancelled_abandons_it(background: Background, door: Door) -> None:
    async def main() -> None:
        task = asyncio.create_task(arun(asked(background, door, FAR)))
        await asyncio.sleep(0)  # it begins
        assert threads() == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    door.opened.set()
    eventually(lambda: door.disposed == ["result"], "the late result is not disposed of")


def test_an_event_loop_that_is_closed_abandons_it(background: Background, door: Door) -> None:
    loop = asyncio.new_event_loop()
    task = loop.create_task(arun(asked(background, door, FAR)))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    door.opened.set()
    eventually(lambda: door.disposed == ["result"], "the late result is not disposed of")
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with contextlib.suppress(RuntimeError):
        task.get_coro().close()  # type: ignore[union-attr]


def test_errors_of_a_late_call_are_dropped(background: Background, door: Door) -> None:
    def fail(result: str = "") -> None:
        assert door.opened.wait(FAR)
        raise OSError

    for function, dispose in ((fail, None), (door.wait, fail)):
        with pytest.raises(CallTimeout):
            run(background.call(monotonic(), function, dispose=dispose))
    door.opened.set()


def test_several_at_the_same_time(background: Background, door: Door) -> None:
    """Take the results that are there, and abandon the other calls, once or twice."""
    first = background.start(str, 1, dispose=door.disposed.append)
    second = background.start(str, 2, dispose=door.disposed.append)
    third = background.start(door.wait, dispose=door.disposed.append)
    assert run(first.result(monotonic() + FAR)) == "1"
    eventually(lambda: second.done, "it is not called")
    assert not third.done
    for call in (first, second, third, second, third):
        call.abandon()
    assert door.disposed == ["2"]
    door.opened.set()
    eventually(lambda: door.disposed == ["2", "result"], "the late result is not disposed of")


@both
def test_abandoned_calls_do_not_pile_up(drive: Callable[..., Any], door: Door) -> None:
    background = Background(NAME, limit=3)
    for _ in range(3):
        with pytest.raises(CallTimeout):
            drive(asked(background, door, 0.01))
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(NotStarted, match="3 are still under way"):
            drive(asked(background, door, FAR))
    within(time.monotonic() - began, 0.5, what="what is known not to answer")
    assert threads() == 3
    door.opened.set()
    eventually(lambda: not threads(), "a thread is left behind")
    assert drive(asked(background, door, FAR)) == "result"


def test_calls_that_are_waited_for_have_no_limit(door: Door) -> None:
    background = Background(NAME, limit=1)
    calls = [background.start(door.wait) for _ in range(3)]
    door.opened.set()
    assert [run(call.result(monotonic() + FAR)) for call in calls] == ["result"] * 3


def test_no_thread_to_be_had(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(NotStarted, match="can't start new thread"):
            run(background.call(monotonic() + FAR, str))
    assert run(background.call(monotonic() + FAR, str, 1)) == "1"


def test_r7_an_interrupt_leaves_no_result_behind(background: Background) -> None:
    """Each result is the caller's or is disposed of, wherever Ctrl-C comes in between."""
    opened: set[object] = set()
    taken: list[object] = []

    def connect() -> object:
        connection = object()
        opened.add(connection)
        return connection

    def connected() -> Flow[None]:
        connection = yield from background.call(monotonic() + FAR, connect, dispose=opened.discard)
        taken[:] = [connection]

    def clean() -> None:
        opened.difference_update(taken)
        taken.clear()
        eventually(lambda: not opened, "a result is left behind")

    assert interrupted_everywhere(lambda: run(connected()), clean, module, flow, parking) > 10


def test_a_call_that_failed_is_not_kept_alive_by_its_error(background: Background) -> None:
    """Its traceback refers to the thread's function, and with it to the arguments, as a socket."""
    import gc
    import weakref

    class Argument:
        pass

    def fail(argument: Argument) -> None:
        raise ZeroDivisionError

    argument = Argument()
    seen = weakref.ref(argument)
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError):
            run(background.call(monotonic() + FAR, fail, argument))
        eventually(lambda: not threads(), "a thread is left behind")
        del argument
        assert seen() is None
    finally:
        gc.enable()
