"""ask_engine, Deadline and backoff on a clock of the test's own."""

from __future__ import annotations

import asyncio
import inspect
import math
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.backends.base import Backend
from django_distlock.concurrency import clock as real
from django_distlock.concurrency.deadline import PAUSE, Deadline, backoff
from django_distlock.concurrency.flow import run
from django_distlock.keys import LockKey
from django_distlock.manager.acquire import ask_engine
from django_distlock.manager.lock_table import Hold
from django_distlock.records import Claim, Grant

if TYPE_CHECKING:
    from collections.abc import Iterator

CLAIM = Claim(key=LockKey("a", "n", b"x" * 32))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(real, "now", self)

    def __call__(self) -> float:
        return self.now


def test_r5_a_deadline_never_goes_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    deadline, never = Deadline(5), Deadline(None)
    assert (deadline.left(), never.left()) == (5, math.inf)
    clock.now += 3
    assert deadline.left() == 2
    clock.now += 30
    assert (deadline.left(), never.left()) == (0, math.inf)
    assert Deadline(5, clock.now - 1).left() == 4


def test_backoff_doubles_up_to_a_bound_with_jitter() -> None:
    for attempt in range(1100):
        ceiling = min(0.05, 0.001 * 2 ** min(attempt, 10))
        assert ceiling / 2 <= backoff(attempt) <= ceiling
    assert len({backoff(3) for _ in range(50)}) > 10


class Engine:
    """A backend whose answers are given, and whose pauses move the clock."""

    queues_waiters = True
    wait = Backend.wait
    atry_acquire = arelease = awithdraw = await_ = None  # every flow is run in this thread

    def __init__(self, clock: Clock, answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock
        self.answers: Iterator[Any] = iter(answers)
        self.journal: list[Any] = []
        monkeypatch.setattr(type(PAUSE), "sleep", staticmethod(self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.journal.append(("sleep", seconds))
        self.clock.now += seconds

    def try_acquire(self, claim: Claim, wait: float) -> Any:
        self.journal.append(("try", wait))
        answer = next(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return answer()
        return answer

    def release(self, grant: Grant) -> bool:
        self.journal.append(("release", grant))
        return True

    def withdraw(self, claim: Claim) -> None:
        self.journal.append("withdraw")

    def pause(self, claim: Claim, attempt: int) -> float:
        return 2.0


def _acquire(engine: Engine, timeout: float | None) -> Any:
    hold = Hold(engine, CLAIM.key, "owner", False)  # type: ignore[arg-type]
    run(ask_engine(hold, CLAIM, Deadline(timeout)))
    return hold.grant


def test_r5_busy_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(Clock(monkeypatch), [None] * 10, monkeypatch)
    assert _acquire(engine, 5) is None
    assert engine.journal == [
        ("try", 5),
        ("sleep", 2),
        ("try", 3),
        ("sleep", 2),
        ("try", 1),
        ("sleep", 1),
        ("try", 0),
        "withdraw",
    ]


def test_r5_zero_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(Clock(monkeypatch), [None] * 10, monkeypatch)
    assert _acquire(engine, 0) is None
    assert engine.journal == [("try", 0), "withdraw"]


def test_granted_it_does_not_withdraw(monkeypatch: pytest.MonkeyPatch) -> None:
    grant = Grant(claim=CLAIM, acquired_at=100, valid_until=130)
    engine = Engine(Clock(monkeypatch), [None, grant], monkeypatch)
    assert _acquire(engine, None) is grant
    assert engine.journal == [("try", math.inf), ("sleep", 2), ("try", math.inf)]


def test_r19_a_grant_that_is_no_longer_valid_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    late = Grant(claim=CLAIM, acquired_at=100, valid_until=103)
    good = Grant(claim=CLAIM, acquired_at=110, valid_until=130)

    def slow() -> Grant:
        clock.now += 3
        return late

    engine = Engine(clock, [slow, good], monkeypatch)
    assert _acquire(engine, 20) is good
    assert engine.journal == [("try", 20), ("release", late), ("sleep", 2), ("try", 15)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(), asyncio.CancelledError()])
def test_r7_whatever_ends_it_the_waiter_leaves_the_queue(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    engine = Engine(Clock(monkeypatch), [None, error], monkeypatch)
    with pytest.raises(type(error)):
        _acquire(engine, 9)
    assert engine.journal[-1] == "withdraw"
    assert engine.journal.count("withdraw") == 1


def test_a_flow_is_a_plain_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event loop, no thread, no clock of its own is behind it: a test may drive it by hand."""
    Clock(monkeypatch)
    hold = Hold(Engine.__new__(Engine), CLAIM.key, "owner", False)  # type: ignore[arg-type]
    flow = ask_engine(hold, CLAIM, Deadline(1))
    assert inspect.isgenerator(flow)
    call = flow.send(None)
    assert (call.method.__name__, call.args) == ("ask", (CLAIM, 1.0))
    flow.close()
