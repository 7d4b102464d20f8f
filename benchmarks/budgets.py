"""The figures that must be reached, each a ratio within one run where it can be, and the verdict on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.results import Results

OURS = "django-distlock"
REUSED = "django-distlock, one Lock reused"
IN_ATOMIC = "django-distlock in atomic()"
WHOLE = "django-distlock, whole atomic()"
ASYNC = "django-distlock, asyncio"
NO_GROWTH = 1.15  # a ratio of two medians taken one after the other repeats to about a tenth


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


def over_sync(group: str) -> Callable[[Results], float]:
    """Uncontended cost of the awaited lock over the one that is not."""
    return lambda results: results.cost(group, ASYNC).median_us / results.cost(group, OURS).median_us


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


def served(group: str) -> Callable[[Results], float]:
    """The part of the tasks that got the lock."""
    return lambda results: results.crowd(group).served / results.crowd(group).tasks


def of_tasks(group: str) -> Iterable[Budget]:
    """What every engine owes to asyncio."""
    yield at_least(group, "asyncio tasks on one lock, part served", 1, served(group))
    yield at_most(group, "asyncio tasks on one lock, database sessions", 2, lambda r: r.crowd(group).sessions)
    yield at_most(group, "asyncio tasks on one lock, threads", 4, lambda r: r.crowd(group).threads)
    yield at_least(group, "asyncio tasks that compete, fair", 0.95, lambda r: r.crowd(group).fair)


def of_growth(group: str) -> Iterable[Budget]:
    """Cost must not depend on what else is held."""
    for where in ("other processes", "this process"):
        what = f"cost with the most locks held by {where}, over the fewest"
        yield at_most(group, what, NO_GROWTH, growth_of(group, where))


def of_postgres() -> Iterable[Budget]:
    """Postgres: queueing sessions, and one statement inside a transaction."""
    group, bare, peer = "postgres", "bare psycopg", "django-pglock"
    yield at_most(group, "uncontended, x bare", 1.0, ratio(group, OURS))
    yield at_most(group, "uncontended in atomic(), x bare", 0.6, ratio(group, IN_ATOMIC))
    yield at_most(group, "uncontended asyncio, x sync", 2.5, over_sync(group))
    yield at_least(group, "hand-offs, x bare", 0.85, rate_over(group, OURS, bare))
    yield at_least(group, "hand-offs, x django-pglock", 1.5, rate_over(group, OURS, peer))
    yield at_least(group, "hand-offs in atomic(), x django-pglock xact", 1.2, rate_over(group, WHOLE, f"{peer}, xact"))
    yield at_least(group, "fair", 0.95, lambda r: r.contention(group, OURS).fair)
    yield at_least(group, "fair in atomic()", 0.95, lambda r: r.contention(group, WHOLE).fair)
    yield at_most(group, "worst wait, x bare", 2.0, worst_over(group, OURS, bare))


def of_mysql() -> Iterable[Budget]:
    """MySQL: queueing sessions."""
    group, bare = "mysql", "bare mysqlclient"
    yield at_most(group, "uncontended, x bare", 1.15, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 4.0, over_sync(group))
    yield at_least(group, "hand-offs, x bare", 0.85, rate_over(group, OURS, bare))
    yield at_least(group, "hand-offs, x django-mysql", 1.3, rate_over(group, OURS, "django-mysql"))
    yield at_least(group, "fair", 0.95, lambda r: r.contention(group, OURS).fair)
    yield at_most(group, "worst wait, x bare", 3.0, worst_over(group, OURS, bare))


def of_sqlite() -> Iterable[Budget]:
    """SQLite: a lease table with a queue, against a spin lock that has neither queue nor expiry."""
    group = "sqlite"
    yield at_most(group, "uncontended, x bare", 3.0, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 4.0, over_sync(group))
    yield at_least(group, "hand-offs per second", 3_000, lambda r: r.contention(group, OURS).rate)
    yield at_least(group, "fair", 0.9, lambda r: r.contention(group, OURS).fair)
    yield at_most(group, "worst wait, ms", 100, lambda r: r.contention(group, OURS).worst_ms)


def of_zookeeper() -> Iterable[Budget]:
    """ZooKeeper: a queue of nodes."""
    group = "zookeeper"
    yield at_most(group, "uncontended, x bare", 1.3, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 1.5, over_sync(group))
    yield at_least(group, "hand-offs, x kazoo", 1.5, rate_over(group, OURS, "kazoo Lock"))
    yield at_least(group, "fair", 0.95, lambda r: r.contention(group, OURS).fair)
    yield at_most(group, "worst wait, ms", 100, lambda r: r.contention(group, OURS).worst_ms)


BUDGETS: dict[str, tuple[Budget, ...]] = {
    "postgres": (*of_postgres(), *of_tasks("postgres"), *of_growth("postgres")),
    "mysql": (*of_mysql(), *of_tasks("mysql"), *of_growth("mysql")),
    "sqlite": (*of_sqlite(), *of_tasks("sqlite"), *of_growth("sqlite")),
    "zookeeper": (*of_zookeeper(), *of_tasks("zookeeper"), *of_growth("zookeeper")),
}


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


def verdicts(results: Results, groups: Iterable[str]) -> list[Verdict]:
    """Judge every budget of the groups and parts that were run."""
    judged = (judge(budget, results) for group in groups for budget in BUDGETS[group])
    return [verdict for verdict in judged if verdict is not None]
