"""The figures that must be reached, each a ratio between neighbouring slices where it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.verdicts import (
    DJANGO,
    IN_ATOMIC,
    OURS,
    WHOLE,
    Budget,
    Verdict,
    at_least,
    at_most,
    cost_over,
    fair,
    judge,
    over_sync,
    rate,
    rate_over,
    ratio,
    worst,
    worst_over,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.results import Results


def of_postgres() -> Iterable[Budget]:
    """Postgres: queueing sessions, and one statement inside a transaction."""
    group, bare, peer = "postgres", "bare psycopg", "django-pglock"
    yield at_most(group, "uncontended, x bare", 1.0, ratio(group, OURS))
    yield at_most(group, "uncontended in atomic(), x bare", 1.0, ratio(group, IN_ATOMIC))
    yield at_most(group, "whole atomic(), x bare Django", 1.0, cost_over(group, WHOLE, DJANGO))
    yield at_most(group, "uncontended asyncio, x sync", 2.0, over_sync(group))
    yield at_least(group, "hand-offs, x django-pglock", 1.8, rate_over(group, OURS, peer))
    yield at_least(group, "hand-offs in atomic(), x django-pglock xact", 1.0, rate_over(group, WHOLE, f"{peer}, xact"))
    yield at_least(group, "fair", 0.95, fair(group))
    yield at_least(group, "fair in atomic()", 0.95, fair(group, WHOLE))
    yield at_most(group, "worst wait, x bare", 2.0, worst_over(group, OURS, bare))


def of_mysql() -> Iterable[Budget]:
    """MySQL: queueing sessions."""
    group, bare = "mysql", "bare mysqlclient"
    yield at_most(group, "uncontended, x bare", 1.2, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 3.0, over_sync(group))
    yield at_least(group, "hand-offs, x django-mysql", 1.15, rate_over(group, OURS, "django-mysql"))
    yield at_least(group, "fair", 0.95, fair(group))
    yield at_most(group, "worst wait, x bare", 3.0, worst_over(group, OURS, bare))


def of_sqlite() -> Iterable[Budget]:
    """SQLite: a lease table with a queue, against a spin lock that has neither queue nor expiry."""
    group = "sqlite"
    yield at_most(group, "uncontended, x bare", 1.5, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 3.0, over_sync(group))
    yield at_least(group, "hand-offs per second", 2_500, rate(group))
    yield at_least(group, "fair", 0.9, fair(group))
    yield at_most(group, "worst wait, ms", 100, worst(group))


def of_redis() -> Iterable[Budget]:
    """Redis: a lease with a queue that wakes its waiters; the one fair peer is python-redis-lock."""
    group = "redis"
    yield at_most(group, "uncontended, x bare", 1.1, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 2.0, over_sync(group))
    yield at_least(group, "hand-offs, x python-redis-lock", 1.5, rate_over(group, OURS, "python-redis-lock"))
    yield at_least(group, "fair", 0.95, fair(group))
    yield at_most(group, "worst wait, ms", 50, worst(group))


def of_redlock() -> Iterable[Budget]:
    """Redlock: all nodes at once instead of one after the other; a queue at one node, which may be lost."""
    group = "redlock"
    yield at_most(group, "uncontended, x bare", 1.0, ratio(group, OURS))
    yield at_least(group, "hand-offs, x pottery", 2.0, rate_over(group, OURS, "pottery Redlock"))
    yield at_least(group, "fair", 0.5, fair(group))
    yield at_most(group, "worst wait, ms", 400, worst(group))


def of_redlock_far() -> Iterable[Budget]:
    """Redlock again, where a round trip takes milliseconds."""
    group = "redlock-far"
    yield at_most(group, "uncontended, x bare", 0.3, ratio(group, OURS))


def of_zookeeper() -> Iterable[Budget]:
    """ZooKeeper: a queue of nodes, against two requests that exclude nobody."""
    group, peer = "zookeeper", "kazoo Lock"
    yield at_most(group, "uncontended, x bare", 1.3, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 3.0, over_sync(group))
    yield at_least(group, "hand-offs, x kazoo Lock", 1.2, rate_over(group, OURS, peer))
    yield at_least(group, "fair", 0.95, fair(group))
    yield at_most(group, "worst wait, ms", 100, worst(group))


BUDGETS: dict[str, tuple[Budget, ...]] = {
    "postgres": tuple(of_postgres()),
    "mysql": tuple(of_mysql()),
    "sqlite": tuple(of_sqlite()),
    "redis": tuple(of_redis()),
    "redlock": tuple(of_redlock()),
    "redlock-far": tuple(of_redlock_far()),
    "zookeeper": tuple(of_zookeeper()),
}


def verdicts(results: Results, groups: Iterable[str]) -> list[Verdict]:
    """Judge every budget of the groups and parts that were run."""
    judged = (judge(budget, results) for group in groups for budget in BUDGETS[group])
    return [verdict for verdict in judged if verdict is not None]
