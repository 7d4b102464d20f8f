"""Processes at work under a lock, some of which are killed, and the verdict on what they wrote in the journal."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.workload_actors import COUNTER, JOURNAL, ORACLE, PATIENCE, work
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass
class Verdict:
    """What the journal of a run says. ``stale``: sections that noticed themselves that their lock had been lost.
    ``starved``: for how long a process had no processor, if that was too long to renew a lease."""

    sections: int = 0
    lost_updates: int = 0
    overlaps: list[tuple[str, str]] = field(default_factory=list)
    stale: set[str] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    starved: float = 0.0


def judge(folder: Path, killed: Mapping[int, float], stopped: Iterable[int] = ()) -> Verdict:
    """Read the journal. After a section that lost its lock the counter proves nothing: it may have been set back.

    An overlap is excused if one of the two told that its lock was lost, or could not tell because it was stopped and
    killed. The dead are no overlap either: the kernel closes the sockets of a process before or after its files, so the
    server may know of the end before the flock is free. ``killed``: process -> when.
    """
    verdict = Verdict()
    written: Counter[str] = Counter()
    overlaps = []
    for line in (folder / JOURNAL).read_text().splitlines():
        match line.split():
            case ["w", value, _]:
                written[value] += 1
            case ["o", one, other, at]:
                overlaps.append((one, other, float(at)))
            case ["s", section]:
                verdict.stale.add(section)
            case ["e", kind]:
                verdict.errors[kind] += 1
            case ["p", seconds]:
                verdict.starved = max(verdict.starved, float(seconds))
    verdict.sections = written.total()
    silenced = set(killed) & set(stopped)

    def excused(section: str, at: float) -> bool:
        pid = int(section.split(".")[0])
        return section in verdict.stale or pid in silenced or at >= killed.get(pid, math.inf)

    verdict.overlaps = [(one, other) for one, other, at in overlaps if not (excused(one, at) or excused(other, at))]
    if not verdict.stale and not silenced:
        verdict.lost_updates = verdict.sections - len(written)
    return verdict


class Run:
    """One run of some processes under one lock, in a folder of its own."""

    def __init__(self, using: str, name: str, folder: Path) -> None:
        self.using, self.name, self.folder = using, name, folder
        self.killed: dict[int, float] = {}
        self.working: list[Child] = []
        folder.mkdir()
        for file in (COUNTER, ORACLE, JOURNAL):
            (folder / file).write_text("")

    def go(
        self,
        seconds: float,
        *,
        kind: str = "sound",
        processes: int = 3,
        threads: int = 2,
        pause: float = 0.0005,
        kills: Iterable[float] = (),
    ) -> Verdict:
        """Work for ``seconds``, with a SIGKILL of the holder at these times."""
        order = (self.using, self.name, str(self.folder), kind, threads, pause, seconds)
        with contextlib.ExitStack() as stack:
            self.working = [stack.enter_context(Child(work, *order)) for _ in range(processes)]
            for child in self.working:
                assert child.hear() == "ready"
            for child in self.working:
                child.say()
            started = time.monotonic()
            for at in kills:
                time.sleep(max(0.0, started + at - time.monotonic()))
                self.kill(self.holder())
            for child in self.working:
                assert child.hear(seconds + 2 * PATIENCE) == "done"
        return judge(self.folder, self.killed)

    def holder(self) -> Child:
        """A process that is in the section now, as far as one can see; else any."""
        said = (self.folder / ORACLE).read_text().split(".")[0]
        return next((child for child in self.working if str(child.pid) == said), self.working[0])

    def kill(self, victim: Child) -> None:
        self.working.remove(victim)
        self.killed[victim.pid] = time.monotonic()
        victim.kill()
