"""What tests/support/timing.py promises of a bound on time: the machine's share is taken off, and no more."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import timing
from tests.support.timing import TooSlow, within

if TYPE_CHECKING:
    from collections.abc import Iterator

BURN = 0.3  # seconds of a processor


def test_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ready_since_start", lambda: 0.0)
    within(0.1, 0.1, least=0.1)
    with pytest.raises(TooSlow, match=r"^p99 took 0\.1001 s, and may take 0\.1 s "):
        within(0.1001, 0.1, what="p99")
    with pytest.raises(AssertionError, match=r"less than 0\.1 s$") as caught:
        within(0.0999, 0.2, least=0.1)
    assert caught.type is AssertionError, "too early is no matter of the machine"


def test_what_the_machine_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not more than it took, not more than the bound, or a quarter of a second where the bound is less."""
    monkeypatch.setattr(timing, "ready_since_start", lambda: 0.05)
    within(0.15, 0.1)
    with pytest.raises(TooSlow, match=r"without a processor: 0\.0500 s"):
        within(0.151, 0.1)
    monkeypatch.setattr(timing, "ready_since_start", lambda: 60.0)
    within(0.34, 0.1)
    within(1.99, 1.0)
    for seconds, most in ((0.36, 0.1), (2.01, 1.0)):
        with pytest.raises(TooSlow):
            within(seconds, most)


def burn(seconds: float) -> None:
    """Use a processor, until this thread had that much of it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.fixture
def one_processor() -> Iterator[None]:
    """This process and the children that it starts share one."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


def test_the_wait_of_a_child_and_ours_are_seen(one_processor: None) -> None:
    """Two that want the same processor: each stands ready while the other one runs."""
    code = f"from tests.support.test_timing import burn; burn({3 * BURN}); input()"
    before = timing.waits()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
        burn(2 * BURN)
        found = timing.waits()
        child.communicate(b"\n")
    waited = {thread: seconds - before.get(thread, 0.0) for thread, seconds in found.items()}
    ours = f"{os.getpid()}/{os.getpid()}"
    theirs = f"{child.pid}/{child.pid}"
    assert waited[ours] > BURN / 4, waited
    assert waited[theirs] > BURN / 4, waited


def test_a_sleep_is_no_wait_for_a_processor() -> None:
    """What is slow because it sleeps is slow of its own: only ours is looked at, a server may have work to do. A busy
    machine lets us wait beside a sleep; a sleep that is counted is counted each time."""
    ours = f"{os.getpid()}/{os.getpid()}"

    def counted() -> float:
        before = timing.waits().get(ours, 0.0)
        time.sleep(BURN)
        return timing.waits()[ours] - before

    assert any(counted() < BURN / 2 for _ in range(5))


class Measured:
    def in_time(self) -> None:
        within(0, 1)


def test_only_a_test_with_a_bound_is_looked_after() -> None:
    def plain() -> None:
        burn(0)

    def bounded() -> None:
        within(0, 1)

    def by_way_of() -> None:
        test_what_the_machine_may_take(pytest.MonkeyPatch())

    def by_a_method() -> None:
        Measured().in_time()

    assert not timing.calls_within(plain, set())  # type: ignore[arg-type]
    assert timing.calls_within(by_a_method, set())  # type: ignore[arg-type]
    assert timing.calls_within(bounded, set())  # type: ignore[arg-type]
    assert timing.calls_within(by_way_of, set())  # type: ignore[arg-type]
