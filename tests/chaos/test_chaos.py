"""The chaos run itself, without which its table proves nothing: it turns red for locks that are broken, also if they
are so once in a thousand times, and the excuses of its checker are narrow."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos.faults import SERVERS, Done, Havoc, proxies
from tests.chaos.plot import COLOURS, draw
from tests.chaos.report import table
from tests.chaos.run import Result, run, untold
from tests.faults.history import History, Hold
from tests.matrix import MATRIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 60.0  # within which a broken lock must be found out
SLICE = 6.0


def held(start: float, end: float, **facts: Any) -> Hold:
    told: dict[str, Any] = {"lock": "a", "pid": 1, "invoke": start, "valid_until": None, "fence": None, "shared": False}
    return Hold(**{"token": f"{start}", "acquired": start, "end": end, "why": "release", **told, **facts})


def checked(*holds: Hold, **options: Any) -> list[str]:
    return [fault.kind for fault in History(list(holds)).check(**options)]


# --- locks that are broken on purpose


@pytest.mark.tier2
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("databases")
@pytest.mark.parametrize("kind", ["no_lock", "once_in_1000"])
def test_a_broken_lock_is_found_out_within_a_minute(kind: str, tmp_path: Path) -> None:
    spent, holds = 0.0, 0
    with proxies(tmp_path) as doors:
        while spent < SECONDS:
            spent += SLICE
            folder = tmp_path / str(spent)
            folder.mkdir()
            result = run("leasetable", SLICE, random.Random(spent), doors, folder, kind=kind, faults=False)
            holds += len(result.holds)
            if result.overlaps:
                assert "overlap" in table([result])
                return
    raise AssertionError(f"{holds} holds of {kind}, and nothing seen")


@pytest.mark.tier2
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("databases")
def test_a_sound_lock_under_faults_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "postgres"
    folder.mkdir()
    with proxies(tmp_path) as doors:
        result = run("postgres", SLICE, random.Random(3), doors, folder)
    assert result.complaints == []
    assert result.holds
    assert result.marks


# --- the excuses


@pytest.mark.parametrize(
    ("old", "new", "faults"),
    [
        (held(1, 9, why="loss"), held(2.5, 9), 0),  # told after 6.5 s
        (held(1, 9, why="loss"), held(1.5, 9), 1),  # 7.5 s
        (held(1, 9), held(2.5, 9, why="loss"), 0),  # the second was lost before it knew that it was held
        (held(1, 9), held(2.5, 9), 1),
    ],
)
def test_a_session_that_was_told_in_time_is_excused(old: Hold, new: Hold, faults: int) -> None:
    assert checked(old, new, told_within=7) == ["overlap"] * faults


def test_nothing_is_excused_for_a_lease() -> None:
    assert checked(held(1, 3, why="loss"), held(2.5, 2.9, why="loss")) == ["overlap"]


def test_a_token_that_came_after_its_validity_is_no_sinking_one() -> None:
    """The process was stopped between the grant and the note."""
    assert checked(held(1, 2, fence=8), held(3, 2.5, fence=7), held(4, 5, fence=9)) == []
    assert checked(held(1, 2, fence=8), held(3, 3.5, fence=7)) == ["fence"]


@pytest.mark.parametrize(
    ("lost", "within", "killed", "found"),
    [(None, 0, {}, 1), (9.0, 0, {}, 0), (9.0, 7, {}, 0), (9.5, 7, {}, 1), (None, 7, {1: 3.0}, 0)],
)
def test_holders_that_were_not_told(lost: float | None, within: float, killed: dict[int, float], found: int) -> None:
    holds = [held(1, 9, release=9.0, lost=lost), held(2.2, 3)]
    assert len(untold(holds, killed, within)) == found


def test_the_next_one_may_be_the_one_that_has_lost_the_lock() -> None:
    """Its session ended before it could note its grant."""
    assert untold([held(1, 9, release=9.0), held(2, 3, lost=3.0, why="loss")], {}, 7) == []
    assert len(untold([held(1, 20, release=20.0), held(2, 10, lost=10.0, why="loss")], {}, 7)) == 1


# --- the faults and the report


class Dummy:
    pid = 1


def havoc(using: str, seed: int, folder: Path) -> Havoc:
    doors: Any = dict.fromkeys([one for servers in SERVERS.values() for one in servers])
    return Havoc(using, "name", folder, doors, random.Random(seed), Dummy, [])  # type: ignore[arg-type]


def kinds_made(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    one = havoc("postgres", seed, folder)
    nothing: dict[str, Callable[[], None]] = dict.fromkeys(one.kinds(), lambda: None)
    monkeypatch.setattr(one, "kinds", lambda: nothing)
    monkeypatch.setattr("tests.chaos.faults.BETWEEN", (0.0, 0.001))
    one.run(time.monotonic() + 0.5)
    return [done.kind for done in one.done]


def test_the_seed_decides_the_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (kinds_made(seed, tmp_path, monkeypatch)[:20] for seed in (7, 7, 8))
    assert len(first) == 20
    assert first == again != other
    assert set(havoc("postgres", 7, tmp_path).kinds()) <= {*first, *again}


def test_every_engine_and_every_fault_has_a_place(tmp_path: Path) -> None:
    tables = {
        entry.using for entry in MATRIX if entry.backend == "django_distlock.backends.leasetable.LeaseTableBackend"
    }
    assert set(SERVERS) == {entry.using for entry in MATRIX if entry.processes} - tables | {"leasetable"}
    for using in SERVERS:
        assert set(havoc(using, 1, tmp_path).kinds()) <= set(COLOURS)


def test_the_table_and_the_plot() -> None:
    sound = Result(
        "redis", 100.0, 3.0, [held(100.5, 101, fence=1), held(101.5, 102, fence=2)], marks=[Done(101, "cut")]
    )
    torn = Result("postgres", 100.0, 3.0, [held(100.5, 101)], overlaps=["x"], leaks=["y"], untold=["z"])
    text = table([sound, torn])
    assert sound.complaints == []
    assert len(torn.complaints) == 3
    assert "rising" in text
    assert "0 of 1" in text
    assert "full disks" in text
    assert "postgres: leak: y" in text
    picture = draw([sound, torn], 7)
    assert picture.count('<line class="mark') == 1 + len(COLOURS)
    assert "redis: 2 holds in 3 s, 1 faults." in picture


def test_an_engine_that_shows_nothing_is_a_complaint() -> None:
    assert Result("redis", 0.0).complaints
