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
    beat,
    cost_over,
    fair,
    growth_of,
    idle,
    judge,
    lock_request,
    more_statements,
    over_sync,
    rate,
    rate_over,
    ratio,
    request,
    served,
    signups_over,
    worst,
    worst_over,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.results import Results

NO_GROWTH = 1.15  # a ratio of two medians taken one after the other repeats to about a tenth
HEARTBEATS = 0.5  # a waiter may say every other second that it lives
LOOKS = 2.0  # or look at one node, and the next in turn at five; and holders renew at five


def of_tasks(group: str) -> Iterable[Budget]:
    """What every engine owes to asyncio."""
    yield at_least(group, "asyncio tasks on one lock, part served", 1, served(group))
    yield at_most(group, "asyncio tasks on one lock, sessions", 2, lambda r: r.crowd(group).sessions)
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
    yield at_most(group, "uncontended, x bare", 0.9, ratio(group, OURS))
    yield at_most(group, "uncontended in atomic(), x bare", 0.6, ratio(group, IN_ATOMIC))
    yield at_most(group, "whole atomic(), x bare Django", 1.0, cost_over(group, WHOLE, DJANGO))
    yield at_most(group, "uncontended asyncio, x sync", 1.3, over_sync(group))
    yield at_least(group, "hand-offs, x bare", 0.95, rate_over(group, OURS, bare))
    yield at_least(group, "hand-offs, x django-pglock", 1.8, rate_over(group, OURS, peer))
    yield at_least(group, "hand-offs in atomic(), x django-pglock xact", 1.2, rate_over(group, WHOLE, f"{peer}, xact"))
    yield at_least(group, "fair", 0.95, fair(group))
    yield at_least(group, "fair in atomic()", 0.95, fair(group, WHOLE))
    yield at_most(group, "worst wait, x bare", 2.0, worst_over(group, OURS, bare))


def of_mysql() -> Iterable[Budget]:
    """MySQL: queueing sessions."""
    group, bare = "mysql", "bare mysqlclient"
    yield at_most(group, "uncontended, x bare", 1.1, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 2.0, over_sync(group))
    yield at_least(group, "hand-offs, x bare", 0.85, rate_over(group, OURS, bare))
    yield at_least(group, "hand-offs, x django-mysql", 1.3, rate_over(group, OURS, "django-mysql"))
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
    yield at_most(group, "uncontended asyncio, x sync", 1.3, over_sync(group))
    yield at_least(group, "hand-offs, x python-redis-lock", 1.5, rate_over(group, OURS, "python-redis-lock"))
    yield at_least(group, "fair", 0.95, fair(group))
    yield at_most(group, "worst wait, ms", 50, worst(group))
    yield at_most(group, "requests per second of an idle waiter", HEARTBEATS, idle(group))


def of_redlock() -> Iterable[Budget]:
    """Redlock: all nodes at once instead of one after the other; a queue at one node, which may be lost."""
    group = "redlock"
    yield at_most(group, "uncontended, x bare", 1.0, ratio(group, OURS))
    yield at_least(group, "hand-offs, x pottery", 2.0, rate_over(group, OURS, "pottery Redlock"))
    yield at_least(group, "fair", 0.5, fair(group))
    yield at_most(group, "worst wait, ms", 400, worst(group))
    yield at_most(group, "requests per second of an idle waiter", LOOKS, idle(group))


def of_redlock_far() -> Iterable[Budget]:
    """Redlock again, where a round trip takes milliseconds."""
    group = "redlock-far"
    yield at_most(group, "uncontended, x bare", 0.3, ratio(group, OURS))


def of_zookeeper() -> Iterable[Budget]:
    """ZooKeeper: a queue of nodes, against two requests that exclude nobody."""
    group, peer = "zookeeper", "kazoo Lock"
    yield at_most(group, "uncontended, x bare", 1.3, ratio(group, OURS))
    yield at_most(group, "uncontended asyncio, x sync", 1.5, over_sync(group))
    yield at_least(group, "hand-offs, x kazoo Lock", 1.5, rate_over(group, OURS, peer))
    yield at_least(group, "fair", 0.95, fair(group))
    yield at_most(group, "worst wait, ms", 100, worst(group))
    yield at_most(group, "requests per second of an idle waiter", HEARTBEATS, idle(group))
    yield at_most(group, "timeout=1.0 behind others that give up, s", 1.05, lambda r: r.given_up(group, OURS).seconds)


def of_requests(group: str) -> Iterable[Budget]:
    """What a request without a key owes to the middleware: nothing but a look."""
    yield at_most(group, "a request without a key, x without the middleware", 1.1, request(group, "no key"))


def of_edits(group: str) -> Iterable[Budget]:
    """What an edit lock may cost."""
    yield at_most(group, "a beat that renews an edit lock, x an empty view", 2.0, beat(group, "a beat that renews"))
    yield at_most(group, "a beat that claims an edit lock, x an empty view", 2.0, beat(group, "a beat that claims"))
    yield at_most(group, "statements that an edit lock adds to a save", 3, more_statements(group))


def of_browsers(group: str) -> Iterable[Budget]:
    """What a request of the lock server may cost."""
    for way in ("renew a lease", "acquire a free lock", "ask again while waiting", "release"):
        yield at_most(group, f"browser locks: {way}, x an empty view", 1.5, lock_request(group, way))


def of_signups(group: str, *peers: str) -> Iterable[Budget]:
    """What the whole job owes to a project that takes our lock of one address."""
    yield at_least(group, "sign-ups, x unique constraint", 0.9, signups_over(group, "unique constraint"))
    for peer in peers:
        yield at_least(group, f"sign-ups, x {peer}", 1.0, signups_over(group, peer))


BUDGETS: dict[str, tuple[Budget, ...]] = {
    "postgres": (
        *of_postgres(),
        *of_tasks("postgres"),
        *of_growth("postgres"),
        *of_requests("postgres"),
        *of_edits("postgres"),
        *of_browsers("postgres"),
        *of_signups(
            "postgres",
            "django-pglock",
            "django-pglock, xact",
            "redis-py Lock",
            "django-redis cache.lock",
            "python-redis-lock",
            "kazoo Lock",
        ),
    ),
    "mysql": (
        *of_mysql(),
        *of_tasks("mysql"),
        *of_growth("mysql"),
        *of_requests("mysql"),
        *of_edits("mysql"),
        *of_browsers("mysql"),
        *of_signups("mysql", "django-mysql"),
    ),
    "sqlite": (
        *of_sqlite(),
        *of_tasks("sqlite"),
        *of_growth("sqlite"),
        *of_requests("sqlite"),
        *of_edits("sqlite"),
        *of_browsers("sqlite"),
    ),
    "redis": (*of_redis(), *of_tasks("redis"), *of_growth("redis")),
    "redlock": (*of_redlock(), *of_tasks("redlock"), *of_growth("redlock")),
    "redlock-far": tuple(of_redlock_far()),
    "zookeeper": (*of_zookeeper(), *of_tasks("zookeeper"), *of_growth("zookeeper")),
}


def verdicts(results: Results, groups: Iterable[str]) -> list[Verdict]:
    """Judge every budget of the groups and parts that were run."""
    judged = (judge(budget, results) for group in groups for budget in BUDGETS[group])
    return [verdict for verdict in judged if verdict is not None]
