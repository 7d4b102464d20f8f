"""How a budget is written down: which figure of the results, which limit, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.ratios import Spread, paired, spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.results import Results

OURS = "django-distlock"
REUSED = f"{OURS}, one Lock reused"
IN_ATOMIC = f"{OURS} in atomic()"
WHOLE = f"{OURS}, whole atomic()"
DJANGO = "bare Django, whole atomic()"
ASYNC = f"{OURS}, asyncio"


@dataclass(frozen=True)
class Budget:
    """One figure of one group: its limit, in which direction, and how to get it from the results."""

    group: str
    what: str
    limit: float
    at_most: bool
    value: Callable[[Results], Spread | float]  # a Spread is judged by its median


@dataclass(frozen=True)
class Verdict:
    """What came out for one budget; ``value`` is None if it was not measured.

    ``low`` and ``high`` are the quartiles over the rounds, where there were rounds.
    """

    group: str
    what: str
    limit: str
    value: float | None
    verdict: str
    low: float | None = None
    high: float | None = None


def at_most(group: str, what: str, limit: float, value: Callable[[Results], Spread | float]) -> Budget:
    """Make a budget that lower figures keep."""
    return Budget(group, what, limit, True, value)


def at_least(group: str, what: str, limit: float, value: Callable[[Results], Spread | float]) -> Budget:
    """Make a budget that higher figures keep."""
    return Budget(group, what, limit, False, value)


def ratio(group: str, entry: str) -> Callable[[Results], Spread]:
    """Uncontended cost over the bare driver's."""

    def found(results: Results) -> Spread:
        cost = results.cost(group, entry)
        return Spread(cost.ratio, cost.ratio_low, cost.ratio_high)

    return found


def cost_over(group: str, entry: str, other: str) -> Callable[[Results], Spread]:
    """Uncontended cost over that of another entry."""
    return lambda results: paired(results.cost(group, entry).slices, results.cost(group, other).slices)


def over_sync(group: str) -> Callable[[Results], Spread]:
    """Uncontended cost of the awaited lock over the one that is not."""
    return cost_over(group, ASYNC, OURS)


def rate_over(group: str, entry: str, other: str) -> Callable[[Results], Spread]:
    """Hand-offs per second over those of another entry."""
    return lambda results: paired(results.contention(group, entry).rates, results.contention(group, other).rates)


def worst_over(group: str, entry: str, other: str) -> Callable[[Results], Spread]:
    """Worst wait over that of another entry."""
    return lambda results: paired(
        results.contention(group, entry).worsts_ms, results.contention(group, other).worsts_ms
    )


def rate(group: str) -> Callable[[Results], Spread]:
    """Our hand-offs per second."""
    return lambda results: spread(results.contention(group, OURS).rates)


def fair(group: str, entry: str = OURS) -> Callable[[Results], float]:
    """Smallest share of the hand-offs over the largest."""
    return lambda results: results.contention(group, entry).fair


def worst(group: str) -> Callable[[Results], Spread]:
    """Our worst wait in milliseconds."""
    return lambda results: spread(results.contention(group, OURS).worsts_ms)


def judge(budget: Budget, results: Results) -> Verdict | None:
    """Compare one figure with its limit and say by how much it misses; None if its part of the run was left out."""
    limit = f"{'<=' if budget.at_most else '>='} {budget.limit:g}"
    try:
        found = budget.value(results)
    except KeyError:
        return None
    except (LookupError, ValueError, ZeroDivisionError):
        return Verdict(budget.group, budget.what, limit, None, "NOT MEASURED")
    value, low, high = (found.median, found.low, found.high) if isinstance(found, Spread) else (found, None, None)
    kept = value <= budget.limit if budget.at_most else value >= budget.limit
    verdict = "ok" if kept else f"MISSED by {abs(value / budget.limit - 1):.0%}"
    return Verdict(budget.group, budget.what, limit, value, verdict, low, high)
