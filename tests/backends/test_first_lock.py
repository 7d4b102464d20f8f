"""R22b: what the question whether a server excludes costs, and that only the first lock of a process asks it."""

from __future__ import annotations

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_distlock import advisory_lock
from django_distlock.registry import registry
from tests.backends.statements import counted
from tests.conformance.test_fork import in_child, succeeded

pytestmark = [
    pytest.mark.usefixtures("databases"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def statements(using: str, name: str, *, fork: bool = False) -> int:
    """Of one lock, with the sessions that it opens."""

    def work() -> None:
        with advisory_lock(name, using=using):
            pass
        registry.close()

    with counted(using) as found:
        if fork:
            succeeded(in_child(work))
        else:
            work()
    return sum(found.values())


# What a session costs anyway is that of the second lock, for which one is opened again.
@pytest.mark.parametrize(("using", "extra"), [("postgres", 8), ("mysql", 7)])
def test_r22b_lock_sessions(using: str, name: str, extra: int) -> None:
    registry.reset()
    first, second, third = (statements(using, name) for _ in range(3))
    assert first - second == extra
    assert third == second
    assert statements(using, name, fork=True) == second


def test_r22b_locks_of_a_transaction(name: str) -> None:
    """None of it on the caller's own connection."""
    registry.reset()
    costs = []
    for _ in range(3):
        with counted("postgres") as found, transaction.atomic("postgres"):
            with CaptureQueriesContext(connections["postgres"]) as queries, advisory_lock(name, using="postgres"):
                pass
            assert len(queries) == 1
        costs.append(sum(found.values()))
    assert costs[0] - costs[1] == 1
    assert costs[1] == costs[2]


def test_r22b_a_busy_lock_of_a_transaction_tells_as_much(name: str) -> None:
    """A server that keeps this session out need not be asked."""
    registry.reset()
    connection = connections["postgres"].copy()
    try:
        with transaction.atomic("postgres"), connection.cursor() as cursor:
            number = registry.entry("postgres").key(name).number
            cursor.execute("SELECT pg_advisory_lock(%s)", [number])
            with counted("postgres") as found:
                assert advisory_lock(name, using="postgres").try_acquire() is None
            assert sum(found.values()) == 1
    finally:
        connection.close()
