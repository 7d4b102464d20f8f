"""How a budget is written down: which figure of the results, which limit, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    value: Callable[[Results], float]


@dataclass(frozen=True)
class Verdict:
    """What came out for one budget; ``value`` is None if it was not measured."""

    group: str
    what: str
    limit: str
    value: float | None
    verdict: str


def at_most(group: str, what: str, limit: float, value: Callable[[Results], float]) -> Budget:
    """Make a budget that lower figures keep."""
    return Budget(group, what, limit, True, value)


def at_least(group: str, what: str, limit: float, value: Callable[[Results], float]) -> Budget:
    """Make a budget that higher figures keep."""
    return Budget(group, what, limit, False, value)


def ratio(group: str, entry: str) -> Callable[[Results], float]:
    """Uncontended cost over the bare driver's."""
    return lambda results: results.cost(group, entry).ratio


def cost_over(group: str, entry: str, other: str) -> Callable[[Results], float]:
    """Uncontended cost over that of another entry."""
    return lambda results: results.cost(group, entry).median_us / results.cost(group, other).median_us


def over_sync(group: str) -> Callable[[Results], float]:
    """Uncontended cost of the awaited lock over the one that is not."""
    return cost_over(group, ASYNC, OURS)


def rate_over(group: str, entry: str, other: str) -> Callable[[Results], float]:
    """Hand-offs per second over those of another entry."""
    return lambda results: results.contention(group, entry).rate / results.contention(group, other).rate


def worst_over(group: str, entry: str, other: str) -> Callable[[Results], float]:
    """Worst wait over that of another entry."""
    return lambda results: results.contention(group, entry).worst_ms / results.contention(group, other).worst_ms


def growth_of(group: str, where: str) -> Callable[[Results], float]:
    """The ratio to the bare driver with the most locks held, over the one with the fewest."""
    return lambda results: max(
        (row.held, row.against_fewest) for row in results.growth[group] if row.where == where and not row.error
    )[1]


def fair(group: str, entry: str = OURS) -> Callable[[Results], float]:
    """Smallest share of the hand-offs over the largest."""
    return lambda results: results.contention(group, entry).fair


def worst(group: str) -> Callable[[Results], float]:
    """Our worst wait in milliseconds."""
    return lambda results: results.contention(group, OURS).worst_ms


def idle(group: str) -> Callable[[Results], float]:
    """Requests per second that one of our waiters sends while nothing happens."""
    return lambda results: results.waiting(group, OURS).per_second / results.waiting(group, OURS).waiters


def served(group: str) -> Callable[[Results], float]:
    """The part of the tasks that got the lock."""
    return lambda results: results.crowd(group).served / results.crowd(group).tasks


def request(group: str, way: str) -> Callable[[Results], float]:
    """A whole request over the same one without the middleware."""
    return lambda results: next(row.ratio for row in results.idempotency[group] if row.way == way)


def beat(group: str, way: str) -> Callable[[Results], float]:
    """A request of the script of edit locks over an empty view."""
    return lambda results: next(row.ratio for row in results.editing[group] if row.way == way)


def lock_request(group: str, way: str) -> Callable[[Results], float]:
    """A request of distlock.js over an empty view."""
    return lambda results: next(row.ratio for row in results.browser[group] if row.way == way)


def more_statements(group: str) -> Callable[[Results], float]:
    """What a save under an edit lock adds."""

    def found(results: Results) -> float:
        counts = {row.way.rpartition(" ")[2]: row.median_us for row in results.editing[group]}
        return counts["locked"] - counts["unlocked"]

    return found


def judge(budget: Budget, results: Results) -> Verdict | None:
    """Compare one figure with its limit and say by how much it misses; None if its part of the run was left out."""
    limit = f"{'<=' if budget.at_most else '>='} {budget.limit:g}"
    try:
        value = budget.value(results)
    except KeyError:
        return None
    except (LookupError, ValueError, ZeroDivisionError):
        return Verdict(budget.group, budget.what, limit, None, "NOT MEASURED")
    if value <= budget.limit if budget.at_most else value >= budget.limit:
        return Verdict(budget.group, budget.what, limit, value, "ok")
    return Verdict(budget.group, budget.what, limit, value, f"MISSED by {abs(value / budget.limit - 1):.0%}")
