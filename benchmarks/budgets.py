"""The figures that must be reached, each a ratio between neighbouring slices where it can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.entries.base import OURS
from benchmarks.ratios import Spread, paired, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.results import Results

    Figure = Callable[[Results, str], Spread]  # of a group

IN_ATOMIC, WHOLE, ASYNC = f"{OURS} in atomic()", f"{OURS}, whole atomic()", f"{OURS}, asyncio"
UNCONTENDED, SYNC, FAIR = "uncontended, x bare", "uncontended asyncio, x sync", "fair"


def cost(entry: str = OURS, over: str = "") -> Figure:
    """Uncontended cost over that of another entry, or of the bare driver."""
    return lambda results, group: paired(results.cost(group, entry).slices, results.cost(group, over).slices)


def each_round(figure: str, over: str = "", entry: str = OURS) -> Figure:
    """A figure of every contended round, over that of another entry if there is one."""

    def found(results: Results, group: str) -> Spread:
        values = getattr(results.contention(group, entry), figure)
        return paired(values, getattr(results.contention(group, over), figure)) if over else spread(values)

    return found


def fair(entry: str = OURS) -> Figure:
    """Smallest share of the hand-offs over the largest, of all rounds together."""
    return lambda results, group: spread([results.contention(group, entry).fair])


# group, what, the most or the least, limit, figure
BUDGETS: tuple[tuple[str, str, str, float, Figure], ...] = (
    ("postgres", UNCONTENDED, "<=", 1.0, cost()),
    ("postgres", "uncontended in atomic(), x bare", "<=", 1.0, cost(IN_ATOMIC)),
    ("postgres", "whole atomic(), x bare Django", "<=", 1.0, cost(WHOLE, "bare Django, whole atomic()")),
    ("postgres", SYNC, "<=", 2.0, cost(ASYNC, OURS)),
    ("postgres", "hand-offs, x django-pglock", ">=", 1.8, each_round("rates", "django-pglock")),
    (
        "postgres",
        "hand-offs in atomic(), x pglock xact",
        ">=",
        1.0,
        each_round("rates", "django-pglock, xact", WHOLE),
    ),
    ("postgres", FAIR, ">=", 0.95, fair()),
    ("postgres", "fair in atomic()", ">=", 0.95, fair(WHOLE)),
    ("postgres", "worst wait, x bare", "<=", 2.0, each_round("worsts_ms", "bare psycopg")),
    ("mysql", UNCONTENDED, "<=", 1.2, cost()),
    ("mysql", SYNC, "<=", 3.0, cost(ASYNC, OURS)),
    ("mysql", "hand-offs, x django-mysql", ">=", 1.15, each_round("rates", "django-mysql")),
    ("mysql", FAIR, ">=", 0.95, fair()),
    ("mysql", "worst wait, x bare", "<=", 3.0, each_round("worsts_ms", "bare mysqlclient")),
    # a lease table with a queue, against a spin lock that has neither queue nor expiry
    ("sqlite", UNCONTENDED, "<=", 1.5, cost()),
    ("sqlite", SYNC, "<=", 3.0, cost(ASYNC, OURS)),
    ("sqlite", "hand-offs per second", ">=", 2_500, each_round("rates")),
    ("sqlite", FAIR, ">=", 0.9, fair()),
    ("sqlite", "worst wait, ms", "<=", 100, each_round("worsts_ms")),
    # a lease with a queue that wakes its waiters; the one fair peer is python-redis-lock
    ("redis", UNCONTENDED, "<=", 1.1, cost()),
    ("redis", SYNC, "<=", 2.0, cost(ASYNC, OURS)),
    ("redis", "hand-offs, x python-redis-lock", ">=", 1.5, each_round("rates", "python-redis-lock")),
    ("redis", FAIR, ">=", 0.95, fair()),
    ("redis", "worst wait, ms", "<=", 50, each_round("worsts_ms")),
    # all nodes at once instead of one after the other; a queue at one node, which may be lost
    ("redlock", UNCONTENDED, "<=", 1.0, cost()),
    ("redlock", "hand-offs, x pottery", ">=", 2.0, each_round("rates", "pottery Redlock")),
    ("redlock", FAIR, ">=", 0.5, fair()),
    ("redlock", "worst wait, ms", "<=", 400, each_round("worsts_ms")),
    # a queue of nodes, against two requests that exclude nobody
    ("zookeeper", UNCONTENDED, "<=", 1.3, cost()),
    ("zookeeper", SYNC, "<=", 3.0, cost(ASYNC, OURS)),
    ("zookeeper", "hand-offs, x kazoo Lock", ">=", 1.2, each_round("rates", "kazoo Lock")),
    ("zookeeper", FAIR, ">=", 0.95, fair()),
    ("zookeeper", "worst wait, ms", "<=", 100, each_round("worsts_ms")),
)


@dataclass(frozen=True)
class Verdict:
    """What came out for one budget; ``value`` is None if it was not measured, beside it the quartiles."""

    group: str
    what: str
    limit: str
    value: float | None
    verdict: str
    low: float | None = None
    high: float | None = None


def verdicts(results: Results, groups: Iterable[str]) -> list[Verdict]:
    """Judge every budget of the groups and parts that were run, and say by how much a figure misses."""
    judged = []
    for group, what, direction, limit, figure in BUDGETS:
        if group not in groups:
            continue
        told = f"{direction} {limit:g}"
        try:
            found = figure(results, group)
        except KeyError:  # that part of the run was left out
            continue
        except (LookupError, ValueError, ZeroDivisionError):
            judged.append(Verdict(group, what, told, None, "NOT MEASURED"))
            continue
        kept = found.median <= limit if direction == "<=" else found.median >= limit
        verdict = "ok" if kept else f"MISSED by {abs(found.median / limit - 1):.0%}"
        judged.append(Verdict(group, what, told, found.median, verdict, found.low, found.high))
    return judged
