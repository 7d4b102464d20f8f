"""R22b: what the question whether a server excludes costs, and that only the first lock of a process asks it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from django_distlock import advisory_lock
from django_distlock.backends.sessions import backend as sessions_backend
from django_distlock.backends.sessions import exclusion
from django_distlock.concurrency import deadline
from django_distlock.manager.registry import registry
from tests.engines.statements import counted

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases")


# What a session costs anyway is that of the second lock, for which one is opened again.
@pytest.mark.parametrize(("using", "extra"), [("postgres", 8), ("mysql", 7)])
def test_r22b_lock_sessions(using: str, name: str, extra: int) -> None:
    registry.reset()
    costs = []
    for _ in range(3):
        with counted(using) as found:
            advisory_lock(name, using=using).acquire().release()
            registry.close()
        costs.append(sum(found.values()))
    assert costs[0] - costs[1] == extra
    assert costs[1] == costs[2]


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


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_r22b_a_server_far_away(proxied: Proxied, using: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof may take longer than a caller without a timeout has, and would never end. A session of ours opens in
    0.7 s here, and the proof takes more than 1.7 s: all times are multiplied, for a busy machine's sake."""
    for module in (deadline, sessions_backend, exclusion):
        monkeypatch.setattr(module, "LEAST_PATIENCE", 1.5)
    proxied(using).on_request = lambda number: time.sleep(0.12)
    registry.reset()
    with advisory_lock(name, using=using, timeout=0):
        pass


def test_r22b_threads_in_transactions_ask_once(name: str) -> None:
    """One connection more for a moment, however many threads begin at once."""
    registry.reset()
    threads = 12
    start = threading.Barrier(threads)

    def work(number: int) -> None:
        try:
            with transaction.atomic("postgres"):
                connections["postgres"].ensure_connection()
                start.wait(25)
                with advisory_lock(f"{name} {number}", using="postgres"):
                    pass
        finally:
            connections.close_all()

    with counted("postgres") as found, ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    asked = sum(count for statement, count in found.items() if "pg_try_advisory_xact_lock" in statement)
    assert asked == threads + 1
