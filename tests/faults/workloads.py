"""Crews of workers under a lock, the faults that hit them, and the verdict on what they wrote in the journal."""

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
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    Fault = Callable[["Run"], None]


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


class Crew:
    """Processes that stay for many runs; those that were killed are replaced."""

    def __init__(self, size: int) -> None:
        self.children: list[Child] = [Child(work) for _ in range(size)]
        self._new = list(self.children)

    def ready(self) -> list[Child]:
        for child in self._new:
            assert child.hear() == "ready"
        self._new = []
        return self.children

    def replace(self, child: Child) -> None:
        child.kill()
        child.__exit__(None, None, None)
        self.children[self.children.index(child)] = new = Child(work)
        self._new.append(new)

    def close(self) -> None:
        for child in self.children:
            with contextlib.suppress(BrokenPipeError):
                child.say(None)
            child.__exit__(None, None, None)


class Run:
    """One run of a crew under one lock."""

    def __init__(self, crew: Crew, using: str, name: str, folder: Path) -> None:
        self.crew, self.using, self.name, self.folder = crew, using, name, folder
        self.killed: dict[int, float] = {}
        self.stopped: list[int] = []
        self._working: list[Child] = []
        for file in (COUNTER, ORACLE, JOURNAL):
            (folder / file).write_text("")

    def go(
        self,
        seconds: float,
        *,
        kind: str = "sound",
        processes: int | None = None,
        threads: int = 2,
        pause: float = 0.0005,
        faults: Iterable[tuple[float, Fault]] = (),
    ) -> Verdict:
        """Work for ``seconds``, with ``faults`` at their times."""
        self._working = list(self.crew.ready()[:processes])
        started = time.monotonic()
        for child in self._working:
            child.say([self.using, self.name, str(self.folder), kind, threads, pause, started + seconds])
        for at, fault in faults:
            time.sleep(max(0.0, started + at - time.monotonic()))
            fault(self)
        for child in self._working:
            assert child.hear(seconds + 2 * PATIENCE) == "done"
        return judge(self.folder, self.killed, self.stopped)

    def holder(self) -> Child:
        """A process that is in the section now, as far as one can see; else any."""
        said = (self.folder / ORACLE).read_text().split(".")[0]
        return next((child for child in self._working if str(child.pid) == said), self._working[0])


# --- faults


def kill(run: Run) -> None:
    """SIGKILL of the holder, if somebody is left to go on."""
    if len(run._working) == 1:
        return
    victim = run.holder()
    run._working.remove(victim)
    run.killed[victim.pid] = time.monotonic()
    run.crew.replace(victim)
