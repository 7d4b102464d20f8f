"""Eight processes that all want one lock: how often it changes hands, how fairly, and whether it excludes."""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.crew import Crew, Share
from benchmarks.entries import GROUPS
from benchmarks.ratios import Spread, paired

if TYPE_CHECKING:
    from collections.abc import Generator

PROCESSES = 8
LEAD_IN = 0.05  # seconds of competition before what counts: the time in which all workers wake up
WARM_UP = 0.25  # the slice before the first round: opens what is opened at the first wait


@dataclass
class Contention:
    """One entry, round by round: hand-offs per second, smallest share over largest, worst wait; and lost updates.

    ``turns`` has the sum over the rounds of what each worker got.
    """

    group: str
    entry: str
    exclusive: bool
    rates: list[float] = field(default_factory=list)
    fairs: list[float] = field(default_factory=list)
    worsts_ms: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    lost: int = 0
    overlaps: int = 0
    error: str = ""
    ratio: Spread | None = None  # to the first entry of the group, between slices of one round

    @property
    def rate(self) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.rates)

    @property
    def fair(self) -> float:
        """Return the smallest share over the largest, of all rounds together.

        A worker that the scheduler passed over in one slice has its turn in another, but one that the lock passes
        over has not.
        """
        return min(self.turns) / max(1, *self.turns)

    @property
    def worst_ms(self) -> float:
        """Return the median of the rounds' worst waits."""
        return statistics.median(self.worsts_ms)

    def add(self, shares: list[Share], lost: int, seconds: float) -> None:
        """Take in one slice.

        It begins and ends anywhere in the queue's order, so that with the fairest lock some workers are served once
        more than others. That one turn is no privilege: where few are served, it would look like one.
        """
        served = [share.served for share in shares]
        turns = [min(count, max(1, max(served) - 1)) for count in served]
        self.turns = [sum(both) for both in zip(self.turns or [0] * len(turns), turns, strict=True)]
        self.rates.append(sum(served) / seconds)
        self.fairs.append(min(turns) / max(1, *turns))
        self.worsts_ms.append(max(share.worst_ns for share in shares) / 1e6)
        self.count(shares, lost)

    def count(self, shares: list[Share], lost: int) -> None:
        """Check a slice for what must not happen."""
        self.overlaps += sum(share.overlaps for share in shares)
        self.lost += lost


def measure(group: str, rounds: int, seconds: float, *, all_entries: bool = True) -> list[Contention]:
    """Have the crews of all entries up at once and let each run a slice in every round.

    Entries that no budget names run in the first round only, or not at all.
    """
    kinds = [kind for kind in GROUPS[group] if kind.contended and (all_entries or kind.judged)]
    results = [Contention(group, kind.label, kind.exclusive) for kind in kinds]
    with contextlib.ExitStack() as stack:
        crews = [stack.enter_context(Crew(group, kind.label, PROCESSES)) for kind in kinds]
        for crew, result in zip(crews, results, strict=True):
            with noted(result):
                crew.ready()
                result.count(*crew.run(WARM_UP, LEAD_IN))
        for turn in range(rounds):
            for crew, kind, result in zip(crews, kinds, results, strict=True):
                # the one that excludes nobody needs no second round
                if not result.error and (turn == 0 or (kind.judged and kind.exclusive)):
                    with noted(result):
                        result.add(*crew.run(seconds, LEAD_IN), seconds)
        for crew in crews:
            crew.order(None)  # all at once: some take a second to close
    for result in results:
        if result.rates and results[0].rates:
            result.ratio = paired(result.rates, results[0].rates)
    return results


@contextlib.contextmanager
def noted(result: Contention) -> Generator[None]:
    """Keep the error of a crew that cannot go on."""
    try:
        yield
    except RuntimeError as error:
        result.error = str(error)
