"""A leader that is killed is followed by another one within TTL + 1 s, at ZooKeeper within its session timeout + 1 s,
and no two ever lead at once."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from django_distlock.manager.registry import registry
from tests.engines.zookeeper.server import SESSION
from tests.faults.history import History
from tests.faults.server import SESSION_LOCKS
from tests.locks.leader.candidates import ALLOWED, TTL, Candidates
from tests.matrix import MATRIX
from tests.support.sizes import LONG
from tests.support.timing import within

if TYPE_CHECKING:
    from pathlib import Path

ACROSS = [entry.using for entry in MATRIX if entry.processes]
if not LONG:
    ACROSS = ["leasetable", "postgres", "redis", "redlock", "zookeeper"]
pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("databases"), pytest.mark.tier2]


def kills(using: str) -> int:
    if LONG:
        return 200
    return 10 if using in SESSION_LOCKS else 3  # each takes as long as the lock lives on


def outlived(using: str) -> float:
    """For how many seconds the lock of a dead leader lives on."""
    if registry.entry(using).backend.supports_ttl:
        return TTL
    return 0.0 if using in SESSION_LOCKS else SESSION


@pytest.mark.timeout(900)
@pytest.mark.parametrize("using", ACROSS)
def test_another_one_leads_within_a_second_of_the_end_of_the_lock(using: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    ttl = TTL if registry.entry(using).backend.supports_ttl else None
    waits = []
    with closing(Candidates(3, using, name, path, ttl)) as candidates:
        leader, _ = candidates.elected()
        for _ in range(kills(using)):
            when = candidates.kill(leader)
            leader, at = candidates.elected()
            waits.append(at - when)
    print(f"{using}: {len(waits)} kills, another one led after {min(waits):.3f} to {max(waits):.3f} s")
    history = History.read(path, candidates.killed)
    assert history.check() == []
    assert len(history.holds) > len(waits)
    within(max(waits), outlived(using) + ALLOWED)


def test_two_who_lead_at_once_are_found_out(name: str, tmp_path: Path) -> None:
    """The checker above, with candidates who each stand for an office of their own."""
    path = tmp_path / "journal"
    with closing(Candidates(2, "leasetable", name, path, TTL, alone=True)) as candidates:
        candidates.elected()
        candidates.elected()
    assert "overlap" in {fault.kind for fault in History.read(path).check()}
