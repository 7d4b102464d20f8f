"""run and arun: one flow, two drivers, and any exception thrown into them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from django_distlock.concurrency.flow import Flow, Step, arun, finished, run, uninterrupted
from django_distlock.exceptions import BackendUnavailable
from django_distlock.keys import LockKey
from django_distlock.records import Claim

CLAIM = Claim(key=LockKey("a", "n", b"x" * 32))


class Target:
    """Answers from a list, for sync and async steps; an exception in it is raised. ``journal`` has the questions."""

    queues_waiters = True

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.journal: list[tuple[Any, ...]] = []

    def step(self, *args: Any) -> Any:
        self.journal.append(args)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def astep(self, *args: Any) -> Any:
        await asyncio.sleep(0)
        return self.step(*args)


Driver = Callable[[Flow[Any]], Any]


@pytest.fixture(params=["run", "arun"])
def driver(request: pytest.FixtureRequest) -> Driver:
    if request.param == "run":
        return run
    return lambda flow: asyncio.run(_to_end(flow))


async def _to_end(flow: Flow[Any]) -> Any:
    return await arun(flow)


def test_results_go_into_the_flow_and_its_value_comes_out(driver: Driver) -> None:
    target = Target(1, 2)

    def flow() -> Flow[list[int]]:
        first = yield Step(target.step, target.astep, ("a",))
        second = yield Step(target.step, target.astep, ("b", first))
        return [first, second]

    assert driver(flow()) == [1, 2]
    assert target.journal == [("a",), ("b", 1)]


def test_a_flow_without_a_step(driver: Driver) -> None:
    def flow() -> Flow[str]:
        return "done"
        yield

    assert driver(flow()) == "done"


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
def test_an_exception_of_a_step_is_raised_in_the_flow(driver: Driver, error: BaseException) -> None:
    target = Target(error, "cleaned")
    seen: list[BaseException] = []

    def flow() -> Flow[None]:
        try:
            yield Step(target.step, target.astep)
        except BaseException as raised:
            seen.append(raised)
            yield Step(target.step, target.astep, ("clean up",))
            raise

    with pytest.raises(type(error)):
        driver(flow())
    assert [type(each) for each in seen] == [type(error)]
    assert target.journal == [(), ("clean up",)]


def test_a_flow_may_survive_an_exception(driver: Driver) -> None:
    target = Target(OSError(), "second")

    def flow() -> Flow[Any]:
        try:
            yield Step(target.step, target.astep)
        except OSError:
            return (yield Step(target.step, target.astep))

    assert driver(flow()) == "second"


def test_an_exception_of_the_flow_itself(driver: Driver) -> None:
    target = Target(1)

    def flow() -> Flow[None]:
        yield Step(target.step, target.astep)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driver(flow())


def test_a_stop_iteration_of_a_step_is_no_end_of_the_flow() -> None:
    target = Target(StopIteration("sneaky"))

    def flow() -> Flow[None]:
        yield Step(target.step, target.astep)

    with pytest.raises(RuntimeError):
        run(flow())


def test_nested_flows(driver: Driver) -> None:
    target = Target(1, 2, 3)

    def inner() -> Flow[int]:
        return (yield Step(target.step, target.astep)) + (yield Step(target.step, target.astep))

    def outer() -> Flow[int]:
        return (yield from inner()) * (yield Step(target.step, target.astep))

    assert driver(outer()) == 9


class Slow:
    """Steps that end on demand."""

    step = staticmethod(print)  # never called

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.go: dict[str, asyncio.Event] = {}

    async def astep(self, name: str) -> str:
        self.begun.append(name)
        await self.go.setdefault(name, asyncio.Event()).wait()
        self.ended.append(name)
        return name


async def _rest() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_r7_a_cancelled_task_cleans_up_and_a_second_cancellation_does_not_stop_that() -> None:
    async def main() -> None:
        target = Slow()

        def flow() -> Flow[None]:
            try:
                yield Step(target.step, target.astep, ("work",))
            except BaseException:
                yield Step(target.step, target.astep, ("first",))
                yield Step(target.step, target.astep, ("second",))
                raise

        task = asyncio.create_task(arun(flow()))
        await _rest()
        task.cancel()
        await _rest()
        assert target.begun == ["work", "first"]
        task.cancel()
        await _rest()
        target.go["first"].set()
        await _rest()
        task.cancel()
        target.go["second"].set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert target.ended == ["first", "second"]

    asyncio.run(main())


def test_r7_a_flow_that_survives_an_error_can_be_cancelled() -> None:
    """It asks again, on another connection, and waits there for as long as its caller wants."""

    async def main() -> None:
        target = Slow()

        async def fail() -> None:
            raise OSError

        def flow() -> Flow[None]:
            with contextlib.suppress(OSError):
                yield Step(fail, fail)
            yield Step(target.step, target.astep, ("wait",))

        task = asyncio.create_task(arun(flow()))
        await _rest()
        assert target.begun == ["wait"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), 1)

    asyncio.run(main())


@pytest.mark.parametrize("error", [asyncio.CancelledError("mine"), KeyboardInterrupt("mine")])
def test_r7_an_interruption_wins_over_a_clean_up_that_fails(
    driver: Driver, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Who cancels a task waits for its CancelledError; what the clean-up met is in the log."""
    target = Target(error, BackendUnavailable("the server has gone"), OSError("still gone"))

    def flow() -> Flow[None]:
        try:
            yield Step(target.step, target.astep)
        except BaseException:
            try:
                yield Step(target.step, target.astep)
            finally:
                yield Step(target.step, target.astep)

    with pytest.raises(type(error)) as raised:
        driver(flow())
    assert raised.value.args == ("mine",)
    assert "still gone" in caplog.text


def test_r7_a_failure_while_nothing_was_interrupted_is_raised(driver: Driver) -> None:
    target = Target(OSError("first"), BackendUnavailable("second"))

    def flow() -> Flow[None]:
        try:
            yield Step(target.step, target.astep)
        finally:
            yield Step(target.step, target.astep)

    with pytest.raises(BackendUnavailable, match="second"):
        driver(flow())


def test_r7_a_flow_that_is_dropped_is_closed() -> None:
    closed: list[str] = []

    async def main() -> None:
        def flow() -> Flow[None]:
            slow = Slow()
            try:
                yield Step(slow.step, slow.astep, ("never",))
            finally:
                closed.append("closed")

        coroutine = arun(flow())
        coroutine.send(None)
        coroutine.close()

    asyncio.run(main())
    assert closed == ["closed"]


def test_uninterrupted_runs_to_its_end_and_tells_its_error() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def work(error: Exception | None) -> str:
            await gate.wait()
            if error is not None:
                raise error
            return "done"

        tasks = [asyncio.create_task(uninterrupted(work(error))) for error in (None, ValueError("x"))]
        await _rest()
        for task in tasks * 2:
            task.cancel()
            await _rest()
        assert not any(task.done() for task in tasks)
        gate.set()
        assert await tasks[0] == "done"
        with pytest.raises(ValueError, match="x"):
            await tasks[1]

    asyncio.run(main())


def test_finished_runs_to_its_end_and_is_cancelled_then() -> None:
    async def main() -> None:
        gate, ended = asyncio.Event(), []

        async def work() -> None:
            await gate.wait()
            ended.append(True)

        task = asyncio.create_task(finished(work()))
        await _rest()
        task.cancel()
        await _rest()
        assert not task.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]

    asyncio.run(main())
