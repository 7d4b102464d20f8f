"""Ten seconds of chaos for each engine; and the judge itself, which finds a lock that is broken once in 1,000 times."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.chaos.faults import SERVERS, proxies
from tests.chaos.report import table
from tests.chaos.run import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.tier2, pytest.mark.timeout(240), pytest.mark.usefixtures("databases")]

SECONDS, SLICE, MOST_SLICES = 10.0, 6.0, 10


@pytest.mark.parametrize("using", SERVERS)
def test_an_engine_under_faults(using: str, tmp_path: Path) -> None:
    """The seed is another one in each run of the suite, and stands in the message."""
    seed, folder = random.SystemRandom().randrange(10**6), tmp_path / using
    folder.mkdir()
    with proxies(tmp_path) as doors:
        result = run(using, SECONDS, random.Random(seed), doors, folder)
    assert result.complaints == [], f"seed {seed}"
    assert result.holds
    assert result.marks
    assert using in table([result])


@pytest.mark.parametrize("kind", ["no_lock", "once_in_1000"])
def test_a_broken_lock_is_found_out_within_a_minute(kind: str, tmp_path: Path) -> None:
    holds = 0
    with proxies(tmp_path) as doors:
        for number in range(MOST_SLICES):
            folder = tmp_path / str(number)
            folder.mkdir()
            result = run("leasetable", SLICE, random.Random(number), doors, folder, kind=kind, faults=False)
            holds += len(result.holds)
            if result.overlaps:
                assert "overlap" in table([result])
                return
    raise AssertionError(f"{holds} holds of {kind}, and nothing seen")
