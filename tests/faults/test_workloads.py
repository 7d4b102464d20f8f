"""I1 and I2: no two sections overlap and no update is lost, with holders that are killed; and the checkers find out
every lock that is broken on purpose. With faults at random: tests/chaos."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.server import SESSION_LOCKS
from tests.faults.workload_actors import JOURNAL, KINDS
from tests.faults.workloads import Run, judge

if TYPE_CHECKING:
    from pathlib import Path

    from tests.matrix import Entry

# A lease outlives its dead holder by its TTL, and a dead waiter keeps its place for a second.
SECONDS, KILLS = 2.0, (0.5, 1.1)
SECONDS_OF_LEASES, KILLS_OF_LEASES = 2.8, (0.5,)
# Less has shown nothing; and how many runs it may take.
LEAST, RUNS = 50, 5


@pytest.mark.tier2
def test_i1_i2_no_overlap_and_no_lost_update(entry: Entry, name: str, tmp_path: Path) -> None:
    """W1 and W2. A holder is killed now and then, in the middle of its section, where others could go on.

    On a busy machine the workers, which are polite, hardly run: then more runs make up the sections. And without a
    processor no lease is renewed, which is told and no fault.
    """
    sections = 0
    for number in range(RUNS):
        run = Run(entry.using, f"{name}{number}", tmp_path / str(number))
        if not entry.processes:
            verdict = run.go(SECONDS, processes=1, threads=4)
        elif entry.using in SESSION_LOCKS:
            verdict = run.go(SECONDS, kills=KILLS)
        else:
            verdict = run.go(SECONDS_OF_LEASES, kills=KILLS_OF_LEASES)
        assert (verdict.overlaps, verdict.lost_updates) == ([], 0), verdict
        if entry.using in SESSION_LOCKS or not verdict.starved:
            assert not verdict.stale, "a lock was lost without a fault of its holder"
            assert not verdict.errors, verdict.errors
        assert set(verdict.errors) <= {"LockLost"}, verdict.errors
        sections += verdict.sections
        if sections >= LEAST and not (verdict.stale or verdict.errors):
            return
    pytest.fail(f"{sections} sections in {RUNS} runs, and no run without a lost lock: that shows nothing")


BROKEN = {kind: "leasetable" if kind == "no_renewal" else "postgres" for kind in KINDS if kind != "sound"}


@pytest.mark.tier2
@pytest.mark.usefixtures("databases")
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_locks_are_found_out(kind: str, name: str, tmp_path: Path) -> None:
    """The checkers above turn red for a lock that is broken: else they prove nothing."""
    pause = 0.12 if kind == "no_renewal" else 0.002  # longer than its TTL
    overlaps = lost_updates = stale = 0
    for attempt in range(10):  # a machine that is busy does little in one of these runs
        run = Run(BROKEN[kind], f"{name}{attempt}", tmp_path / str(attempt))
        verdict = run.go(1, kind=kind, pause=pause)
        overlaps += len(verdict.overlaps)
        lost_updates += verdict.lost_updates
        stale += len(verdict.stale)
        if stale if kind == "no_renewal" else overlaps and lost_updates:
            return
    assert stale or kind != "no_renewal", "sections that outlived their lease did not notice"
    assert overlaps, "W2, the oracle of the kernel, saw nothing"
    assert lost_updates, "W1, the counter, saw nothing"


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
def test_verdict_excuses_nothing_else(journal: list[str], overlaps: int, lost_updates: int, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("\n".join(journal))
    killed = {5: 100.0, 8: 100.0} if "8." in journal[0] else {5: 100.0}
    verdict = judge(tmp_path, killed, stopped=[8])
    assert (len(verdict.overlaps), verdict.lost_updates) == (overlaps, lost_updates)
