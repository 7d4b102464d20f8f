"""Eight processes that all want one lock: how often it changes hands, how fairly, and whether it excludes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.crew import Crew, Share
from benchmarks.entries import GROUPS

PROCESSES = 8


@dataclass
class Contention:
    """Several runs of one entry: hand-offs per second, smallest share over largest, worst wait, lost updates."""

    group: str
    entry: str
    exclusive: bool
    rates: list[float] = field(default_factory=list)
    fairs: list[float] = field(default_factory=list)
    worsts_ms: list[float] = field(default_factory=list)
    sections: int = 0
    lost: int = 0
    overlaps: int = 0
    error: str = ""

    @property
    def rate(self) -> float:
        """Return the median of the runs."""
        return statistics.median(self.rates)

    @property
    def fair(self) -> float:
        """Return the median of the runs."""
        return statistics.median(self.fairs)

    @property
    def worst_ms(self) -> float:
        """Return the median of the runs' worst waits."""
        return statistics.median(self.worsts_ms)

    def add(self, shares: list[Share], lost: int, seconds: float) -> None:
        """Take in one run; what got the lock only after the end counts as waiting, not as served."""
        served = [share.sections - share.late for share in shares]
        self.rates.append(sum(served) / seconds)
        self.fairs.append(min(served) / max(served) if max(served) else 0.0)
        self.worsts_ms.append(max(share.worst_ns for share in shares) / 1e6)
        self.sections += sum(share.sections for share in shares)
        self.overlaps += sum(share.overlaps for share in shares)
        self.lost += lost


def measure(group: str, runs: int, seconds: float) -> list[Contention]:
    """Run every entry of the group ``runs`` times, in turn; once, if no budget asks for more."""
    kinds = [kind for kind in GROUPS[group] if kind.contended]
    results = [Contention(group, kind.label, kind.exclusive) for kind in kinds]
    with Crew(group, PROCESSES) as crew:
        for turn in range(runs):
            for kind, result in zip(kinds, results, strict=True):
                if result.error or (turn and not kind.repeated):
                    continue
                try:
                    result.add(*crew.run(result.entry, seconds), seconds)
                except RuntimeError as error:
                    result.error = str(error)
    return results
