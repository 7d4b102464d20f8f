"""What one acquire and release costs when nobody else wants the lock."""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks import reason
from benchmarks.entries import GROUPS
from benchmarks.pinning import pinned
from benchmarks.ratios import paired
from benchmarks.servers import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.entries.base import Entry, Ready

WARM_UP = 2  # slices that are thrown away: connections, prepared statements, caches


@dataclass
class Cost:
    """Microseconds per acquire+release pair of one entry, and the ratio to the bare driver in the same round.

    ``ratio`` is the median over the rounds, ``ratio_low`` and ``ratio_high`` are the quartiles, and ``slices`` has the
    median pair of every round.
    """

    entry: str
    median_us: float
    p95_us: float
    ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    slices: list[float] = field(default_factory=list)


@dataclass
class Uncontended:
    """The costs of one group, what could not run and why, and whether client and server shared one CPU."""

    pinned: bool
    costs: list[Cost] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def opened(entries: Iterable[Entry], stack: contextlib.ExitStack, failed: dict[str, str]) -> list[tuple[Entry, Ready]]:
    """Open every entry; one that cannot be opened or used is recorded with its error and the others go on."""
    found = []
    for entry in entries:
        try:
            ready = stack.enter_context(entry.open())
            ready.slice(1)
        except Exception as error:
            failed[entry.label] = reason(error)
        else:
            found.append((entry, ready))
    return found


def measure(group: str, rounds: int, *, all_entries: bool = True) -> Uncontended:
    """Run slices of every entry in turn in this process, so that a disturbance hits all of them alike.

    ``all_entries``: also those that no budget names.
    """
    server, bare = SERVERS[group], GROUPS[group][0]
    kinds = [kind for kind in GROUPS[group] if kind.uncontended and (all_entries or kind.judged)]
    with pinned(server.pids) as together, contextlib.ExitStack() as stack:
        result = Uncontended(pinned=together or not server.nodes)
        entries = opened(kinds, stack, result.failed)
        samples: dict[str, list[list[int]]] = {entry.label: [] for entry, _ in entries}
        for turn in range(-WARM_UP, rounds):
            for entry, ready in entries:
                taken = ready.slice(entry.pairs)
                if turn >= 0:
                    samples[entry.label].append(taken)
    result.costs = [cost_of(label, slices) for label, slices in samples.items()]
    if bare.label in result.failed:
        raise RuntimeError(f"{bare.label} cannot be measured: {result.failed[bare.label]}")
    for cost in result.costs:
        ratio = paired(cost.slices, result.costs[0].slices)
        cost.ratio, cost.ratio_low, cost.ratio_high = ratio.median, ratio.low, ratio.high
    return result


def cost_of(label: str, slices: list[list[int]]) -> Cost:
    """Summarise the slices of one entry."""
    pairs = [nanoseconds for taken in slices for nanoseconds in taken]
    return Cost(
        label,
        statistics.median(pairs) / 1000,
        statistics.quantiles(pairs, n=20)[-1] / 1000,
        slices=[statistics.median(taken) / 1000 for taken in slices],
    )
