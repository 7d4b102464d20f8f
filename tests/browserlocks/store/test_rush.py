"""Processes at the same names at once, some of them killed. A ledger outside the database judges."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.browserlocks.store.rush import rush
from tests.browserlocks.store.tabs import new_id
from tests.support.processes import Child
from tests.support.sizes import LONG

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.places import Place

pytestmark = pytest.mark.tier2

PROCESSES, SECONDS, KILLED = (8, 60.0, 6) if LONG else (8, 3.0, 3)


@pytest.mark.timeout(300)
def test_one_at_a_time_whatever_is_killed(place: Place, tmp_path: Path) -> None:
    """In the order of the clock the fences of a name never fall: none works after a later one has begun."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    names = [f"piece:{new_id()}" for _ in range(2)]
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(Child(rush, tuple(place), names, f"person{number}", str(ledger), f"{number}"))
            for number in range(PROCESSES)
        ]
        for child in crowd:
            assert child.hear() == "ready"
        for child in crowd:
            child.say(SECONDS)
        for child in crowd[:KILLED]:
            time.sleep(SECONDS / (KILLED + 1) * random.uniform(0.5, 1))
            child.kill()
        sections = [child.hear(timeout=SECONDS + 60) for child in crowd[KILLED:]]
    judge(ledger.read_text().splitlines(), names)
    assert sum(sections) > PROCESSES


def judge(lines: list[str], names: list[str]) -> None:
    """Fail if a tick has a lower fence than one before it, or two leases have one fence."""
    ticks = sorted((int(at), name, int(fence), lease) for at, name, fence, lease in map(str.split, lines))
    leases: dict[tuple[str, int], str] = {}
    latest = dict.fromkeys(names, 0)
    for at, name, fence, lease in ticks:
        assert leases.setdefault((name, fence), lease) == lease
        assert fence >= latest[name], f"{lease} works at {at}, after a later holder had begun"
        latest[name] = fence
    assert len(leases) > len(names)


def test_the_judge_sees_two_at_once() -> None:
    judge(["1 a 5 x", "2 a 5 x", "3 a 6 y", "4 b 1 z"], ["a", "b"])
    with pytest.raises(AssertionError, match="after a later holder"):
        judge(["1 a 5 x", "2 a 6 y", "3 a 5 x"], ["a"])
    with pytest.raises(AssertionError):
        judge(["1 a 5 x", "2 a 5 y"], ["a"])
