"""The checker of W3 itself: what it finds, and what it does not call a fault. Broken locks: tests/chaos."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.history import History, Hold


def held(start: float, end: float, **facts: Any) -> Hold:
    told: dict[str, Any] = {"lock": "a", "pid": 1, "invoke": start, "valid_until": None, "fence": None}
    return Hold(**{"token": f"{start}", "acquired": start, "end": end, "why": "release", **told, **facts})


def kinds(*holds: Hold, **options: Any) -> list[str]:
    return [fault.kind for fault in History(sorted(holds, key=lambda hold: hold.acquired)).check(**options)]


@pytest.mark.parametrize(
    ("holds", "options", "faults"),
    [
        ([held(1, 2), held(2, 3)], {}, 0),
        ([held(1, 2), held(1.9, 3)], {}, 1),
        ([held(1, 9), held(2, 3), held(4, 5)], {}, 2),
        ([held(1, 2), held(1.5, 3, lock="b")], {}, 0),
        ([held(1, 9, why="loss"), held(5, 6)], {"told_within": 4}, 0),
        ([held(1, 9, why="loss"), held(4.9, 6)], {"told_within": 4}, 1),
        ([held(1, 9, why="SIGKILL"), held(8.9, 9)], {"told_within": 4}, 1),
        ([held(3, 2), held(1, 5)], {}, 0),  # its validity was over when the answer came
    ],
)
def test_overlaps(holds: list[Hold], options: dict[str, Any], faults: int) -> None:
    assert kinds(*holds, **options) == ["overlap"] * faults


@pytest.mark.parametrize(
    ("holds", "faults"),
    [
        ([held(1, 2, fence=7), held(2, 3, fence=8), held(3, 4, fence=9)], 0),
        ([held(1, 2, fence=7), held(2, 3, fence=7)], 1),
        ([held(1, 2, fence=7), held(2, 3, fence=6), held(3, 4, fence=8)], 1),
        ([held(1, 2, fence=7), held(3, 4, invoke=0.5, fence=6)], 1),  # it waited all the time and came later
        ([held(1, 2, fence=7), held(2, 3, fence=None)], 0),
    ],
)
def test_fences(holds: list[Hold], faults: int) -> None:
    assert kinds(*holds) == ["fence"] * faults
