"""How an engine is asked until the deadline: ask_engine, Deadline and backoff on a clock of the test's own."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.backends.base import Backend
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import PAUSE, Deadline, backoff
from django_distlock.concurrency.flow import run
from django_distlock.keys import LockKey
from django_distlock.manager.acquire import ask_engine
from django_distlock.manager.lock_table import Hold
from django_distlock.records import Claim, Grant

if TYPE_CHECKING:
    from collections.abc import Iterator

CLAIM = Claim(key=LockKey("a", "n", b"x" * 32))


class Engine:
    """A backend whose answers are given, and whose pauses move the clock."""

    queues_waiters = True
    wait = Backend.wait
    atry_acquire = arelease = awithdraw = await_ = None  # every flow is run in this thread

    def __init__(self) -> None:
        self.now = 100.0
        self.answers: Iterator[Any] = iter(())
        self.journal: list[Any] = []

    def sleep(self, seconds: float) -> None:
        self.journal.append(("sleep", seconds))
        self.now += seconds

    def try_acquire(self, claim: Claim, wait: float) -> Any:
        self.journal.append(("try", wait))
        answer = next(self.answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer

    def release(self, grant: Grant) -> bool:
        self.journal.append(("release", grant))
        return True

    def withdraw(self, claim: Claim) -> None:
        self.journal.append("withdraw")

    def pause(self, claim: Claim, attempt: int) -> float:
        return 2.0

    def acquire(self, timeout: float | None, *answers: Any) -> Any:
        self.answers = iter(answers)
        hold = Hold(self, CLAIM.key, "owner", False)  # type: ignore[arg-type]
        run(ask_engine(hold, CLAIM, Deadline(timeout)))
        return hold.grant


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(clock, "now", lambda: made.now)
    monkeypatch.setattr(type(PAUSE), "sleep", staticmethod(made.sleep))
    return made


def test_r5_a_deadline_never_goes_below_zero(engine: Engine) -> None:
    deadline, never = Deadline(5), Deadline(None)
    assert (deadline.left(), never.left()) == (5, math.inf)
    engine.now += 3
    assert deadline.left() == 2
    engine.now += 30
    assert (deadline.left(), never.left()) == (0, math.inf)


def test_backoff_doubles_up_to_a_bound_with_jitter() -> None:
    for attempt in range(1100):
        ceiling = min(0.05, 0.001 * 2 ** min(attempt, 10))
        assert ceiling / 2 <= backoff(attempt) <= ceiling


def test_r5_busy_until_the_deadline(engine: Engine) -> None:
    assert engine.acquire(5, *[None] * 10) is None
    asked = [("try", 5), ("sleep", 2), ("try", 3), ("sleep", 2), ("try", 1), ("sleep", 1), ("try", 0)]
    assert engine.journal == [*asked, "withdraw"]


def test_r5_zero_asks_once_and_what_is_granted_is_not_withdrawn(engine: Engine) -> None:
    assert engine.acquire(0, None, None) is None
    assert engine.journal == [("try", 0), "withdraw"]
    grant = Grant(claim=CLAIM, acquired_at=100, valid_until=130)
    assert engine.acquire(None, grant) is grant
    assert engine.journal[2:] == [("try", math.inf)]


def test_r19_a_grant_that_is_no_longer_valid_is_given_back(engine: Engine) -> None:
    late = Grant(claim=CLAIM, acquired_at=100, valid_until=103)
    good = Grant(claim=CLAIM, acquired_at=110, valid_until=130)

    def slow() -> Grant:
        engine.now += 3
        return late

    assert engine.acquire(20, slow, good) is good
    assert engine.journal == [("try", 20), ("release", late), ("sleep", 2), ("try", 15)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(), asyncio.CancelledError()])
def test_r7_whatever_ends_it_the_waiter_leaves_the_queue(engine: Engine, error: BaseException) -> None:
    with pytest.raises(type(error)):
        engine.acquire(9, None, error)
    assert engine.journal[-1] == "withdraw"
    assert engine.journal.count("withdraw") == 1
