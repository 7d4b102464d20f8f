"""run and arun: one flow, two drivers, and any exception thrown into them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from django_distlock.concurrency.flow import Flow, Step, arun, finished, run, uninterrupted
from django_distlock.exceptions import BackendUnavailable


class Target:
    """Answers from a list, for sync and async steps; an exception in it is raised. ``journal`` has the questions."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.journal: list[tuple[Any, ...]] = []

    def ask(self, *args: Any) -> Step:
        return Step(self._step, self._astep, args)

    def _step(self, *args: Any) -> Any:
        self.journal.append(args)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _astep(self, *args: Any) -> Any:
        await asyncio.sleep(0)
        return self._step(*args)


Driver = Callable[[Flow[Any]], Any]


@pytest.fixture(params=["run", "arun"])
def driver(request: pytest.FixtureRequest) -> Driver:
    return run if request.param == "run" else lambda flow: asyncio.run(_to_end(flow))


async def _to_end(flow: Flow[Any]) -> Any:
    return await arun(flow)


def test_results_go_into_the_flow_and_its_value_comes_out(driver: Driver) -> None:
    target = Target(1, OSError(), 2)

    def inner() -> Flow[int]:
        with contextlib.suppress(OSError):
            yield target.ask("fails")
        return (yield target.ask("again"))

    def flow() -> Flow[list[int]]:
        first = yield target.ask("a")
        return [first, (yield from inner())]

    assert driver(flow()) == [1, 2]
    assert target.journal == [("a",), ("fails",), ("again",)]


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
def test_an_exception_of_a_step_is_raised_in_the_flow(driver: Driver, error: BaseException) -> None:
    target = Target(error, "cleaned")

    def flow() -> Flow[None]:
        try:
            yield target.ask()
        except type(error):
            yield target.ask("clean up")
            raise

    with pytest.raises(type(error)):
        driver(flow())
    assert target.journal == [(), ("clean up",)]


class Slow:
    """Steps that end on demand."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.go: dict[str, asyncio.Event] = {}

    def ask(self, name: str) -> Step:
        return Step(print, self._astep, (name,))

    async def _astep(self, name: str) -> str:
        self.begun.append(name)
        await self.go.setdefault(name, asyncio.Event()).wait()
        self.ended.append(name)
        return name


async def _rest() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_r7_a_cancelled_task_cleans_up_and_a_second_cancellation_does_not_stop_that() -> None:
    """Also one that has survived an error before."""

    async def main() -> None:
        target = Slow()

        async def fail() -> None:
            raise OSError

        def flow() -> Flow[None]:
            with contextlib.suppress(OSError):
                yield Step(fail, fail)
            try:
                yield target.ask("work")
            finally:
                yield target.ask("first")
                yield target.ask("second")

        task = asyncio.create_task(arun(flow()))
        for step in ("first", "second"):
            await _rest()
            task.cancel()
            await _rest()
            assert target.begun[-1] == step
            target.go[step].set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert target.ended == ["first", "second"]

    asyncio.run(main())


@pytest.mark.parametrize("error", [asyncio.CancelledError("mine"), KeyboardInterrupt("mine"), OSError("mine")])
def test_r7_an_interruption_wins_over_a_clean_up_that_fails(
    driver: Driver, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Who cancels a task waits for its CancelledError; what the clean-up met is in the log. An ordinary error gives
    way to the later one."""
    target = Target(error, BackendUnavailable("still gone"))

    def flow() -> Flow[None]:
        try:
            yield target.ask()
        finally:
            yield target.ask()

    interrupted = not isinstance(error, OSError)
    with pytest.raises(type(error) if interrupted else BackendUnavailable) as raised:
        driver(flow())
    assert raised.value.args == ("mine" if interrupted else "still gone",)
    assert ("still gone" in caplog.text) is interrupted


def test_uninterrupted_and_finished_run_to_their_end() -> None:
    """The first tells its result or error then, the second that it was cancelled."""

    async def main() -> None:
        gate = asyncio.Event()

        async def work(error: Exception | None) -> str:
            await gate.wait()
            if error is not None:
                raise error
            return "done"

        tasks = [asyncio.create_task(uninterrupted(work(error))) for error in (None, ValueError("x"))]
        tasks.append(asyncio.create_task(finished(work(None))))
        await _rest()
        for task in tasks * 2:
            task.cancel()
            await _rest()
        assert not any(task.done() for task in tasks)
        gate.set()
        result, failed, cancelled = await asyncio.gather(*tasks, return_exceptions=True)
        assert result == "done"
        assert repr(failed) == repr(ValueError("x"))
        assert isinstance(cancelled, asyncio.CancelledError)

    asyncio.run(main())
