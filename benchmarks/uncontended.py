"""What one acquire and release costs when nobody else wants the lock."""

from __future__ import annotations

import contextlib
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.entries import GROUPS
from benchmarks.failures import reason
from benchmarks.pinning import pinned
from benchmarks.servers import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.entries.base import Entry

WARM_UP = 2  # slices that are thrown away: connections, prepared statements, caches


@dataclass
class Cost:
    """Microseconds per acquire+release pair of one entry, and the ratio to the bare driver of the same run."""

    group: str
    entry: str
    pairs: int
    median_us: float
    p95_us: float
    ratio: float = 0.0


@dataclass
class Uncontended:
    """The costs of one group, what could not run and why, and whether client and server shared one CPU."""

    pinned: bool
    costs: list[Cost] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def opened(entries: Iterable[type[Entry]], stack: contextlib.ExitStack, failed: dict[str, str]) -> list[Entry]:
    """Open every entry; one that cannot be opened or used is recorded with its error and the others go on."""
    ready = []
    for kind in entries:
        entry = kind()
        try:
            entry.open()
            stack.callback(entry.close)
            entry.slice(1)
        except Exception as error:
            failed[kind.label] = reason(error)
        else:
            ready.append(entry)
    return ready


def measure(group: str, rounds: int) -> Uncontended:
    """Run slices of every entry in turn in this process, so that a disturbance hits all of them alike."""
    server, bare = SERVERS[group], GROUPS[group][0]
    with pinned(server.pids) as together, contextlib.ExitStack() as stack:
        result = Uncontended(pinned=together or server.embedded)
        entries = opened((kind for kind in GROUPS[group] if kind.uncontended), stack, result.failed)
        samples: dict[str, list[int]] = {entry.label: [] for entry in entries}
        for turn in range(-WARM_UP, rounds):
            for entry in entries:
                taken = entry.slice(entry.pairs)
                if turn >= 0:
                    samples[entry.label] += taken
    result.costs = [cost_of(group, label, values) for label, values in samples.items()]
    if bare.label in result.failed:
        raise RuntimeError(f"{bare.label} cannot be measured: {result.failed[bare.label]}")
    for cost in result.costs:
        cost.ratio = cost.median_us / result.costs[0].median_us
    return result


def cost_of(group: str, label: str, nanoseconds: list[int]) -> Cost:
    """Summarise the samples of one entry."""
    cuts = statistics.quantiles(nanoseconds, n=20)
    return Cost(group, label, len(nanoseconds), statistics.median(nanoseconds) / 1000, cuts[-1] / 1000)
