"""Ten seconds of chaos for each engine; and the judges themselves, which find locks that are broken on purpose."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.chaos.faults import SERVERS, proxies
from tests.chaos.oracle import JOURNAL, judge
from tests.chaos.run import Result, run
from tests.matrix import MATRIX

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

pytestmark = [pytest.mark.tier2, pytest.mark.timeout(240), pytest.mark.usefixtures("databases")]


def under(tmp_path: Path, using: str, seconds: float, only: Collection[str] | None, kind: str = "sound") -> Result:
    """The seed is another one in each run of the suite, and is printed."""
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    folder = tmp_path / str(seed)
    folder.mkdir()
    with proxies(tmp_path) as doors:
        return run(using, seconds, random.Random(seed), doors, folder, kind=kind, only=only)


@pytest.mark.parametrize("using", SERVERS)
def test_an_engine_under_faults(using: str, tmp_path: Path) -> None:
    result = under(tmp_path, using, 10.0, None)
    assert result.complaints == []
    assert set(result.faults) - {"cancel", "fork"}


@pytest.mark.parametrize("using", [entry.using for entry in MATRIX if entry.processes])
def test_i1_i2_holders_that_are_killed_cause_no_overlap_and_no_lost_update(using: str, tmp_path: Path) -> None:
    holds = 0
    for _ in range(5):  # on a busy machine the workers, which are polite, hardly run
        result = under(tmp_path, using, 4.0, ["kill -9"])
        assert result.faults["kill -9"]
        holds += len(result.holds)
        if result.holds:
            assert (result.complaints, result.lost_updates) == ([], 0)
        if holds >= 50:
            return
    pytest.fail(f"{holds} holds: that shows nothing")


@pytest.mark.parametrize("kind", ["no_lock", "own_name", "once_in_1000", "no_renewal"])
def test_a_broken_lock_is_found_out_within_a_minute(kind: str, tmp_path: Path) -> None:
    overlaps = lost_updates = holds = 0
    for _ in range(10):
        result = under(tmp_path, "leasetable", 6.0, (), kind)
        holds += len(result.holds)
        overlaps += result.overlaps
        lost_updates += result.lost_updates
        if kind == "no_renewal" and result.stale:
            return
        if overlaps and (lost_updates or kind == "once_in_1000"):
            assert "overlap" in str(result)
            return
    raise AssertionError(f"{holds} holds, {overlaps} overlaps, {lost_updates} lost updates")


@pytest.mark.parametrize(
    ("journal", "overlaps", "lost_updates"),
    [
        (["w 1 5.0.1", "w 2 6.0.1"], 0, 0),
        (["w 1 5.0.1", "w 1 6.0.1"], 0, 1),
        (["o 6.0.1 5.0.1 99"], 1, 0),  # before 5 was killed
        (["o 6.0.1 5.0.1 101"], 0, 0),  # the dead
        (["o 6.0.1 7.0.1 99", "s 7.0.1"], 0, 0),  # told that its lock was lost
        (["o 6.0.1 7.0.1 99", "s 7.0.2"], 1, 0),
        (["o 8.0.1 7.0.1 99"], 0, 0),  # stopped and killed: it could not tell
    ],
)
def test_the_verdict_excuses_nothing_else(journal: list[str], overlaps: int, lost_updates: int, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("\n".join(journal))
    killed = {5: 100.0, 8: 100.0} if "8." in journal[0] else {5: 100.0}
    verdict = judge(tmp_path, killed, stopped=[8])
    assert (len(verdict.overlaps), verdict.lost_updates) == (overlaps, lost_updates)
