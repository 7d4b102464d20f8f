"""What a lease costs, as the database counts it; and where it does not go: into the caller's transaction."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock.backends.leasetable import sqlite, waiter
from tests.engines import statements
from tests.engines.leasetable.stores import WAIT
from tests.faults.server import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.leasetable.stores import Stores


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a hold takes longer, and so does the way from one statement to the next."""
    monkeypatch.setattr(sqlite, "SHORT_HOLD", WAIT)
    monkeypatch.setattr(sqlite, "HOT", WAIT)
    monkeypatch.setattr(waiter, "SIGN_OF_LIFE", WAIT)


@contextmanager
def counted(stores: Stores, client: Any) -> Iterator[Counter[str]]:
    """The first words of the statements in the block: SQLite's trace of this client, or what the server counts of all
    that was done to the lease table."""
    found: Counter[str] = Counter()
    if stores.store == "file":
        connection = client.store.file().cursor.connection
        connection.set_trace_callback(lambda sql: found.update([sql.split()[0]]))
        yield found
        connection.set_trace_callback(None)
        return
    with statements.counted(stores.database) as counts:
        yield found
    for text, calls in counts.items():
        if re.search("django_distlock_(lease|ticket)", text):
            found[text.split()[0]] += calls


def test_statements_of_a_lease(stores: Stores, a: Any) -> None:
    """One write to take it and one to return it, also of a name that was never used; a renewal is one write, a look
    and a listing are one read, however many there are."""
    for _ in range(3):  # opens the session and makes the row
        assert a.release(a.try_acquire(stores.claim(), WAIT))
    with counted(stores, a) as found:
        for number in range(10):
            assert a.release(a.try_acquire(stores.claim(), WAIT))
            assert a.release(a.try_acquire(stores.claim(str(number)), WAIT))
    assert found == {"INSERT": 20, "UPDATE": 20}
    grants = [a.try_acquire(stores.claim(f"another {number}")) for number in range(11)]
    with counted(stores, a) as found:
        assert a.extend(grants[0], 10)
        assert a.verify(grants[0])
        assert len(a.inspect()) == 11
    assert found == {"UPDATE": 1, "SELECT": 2}


def test_r4_a_hand_over_costs_three_writes_and_waiting_none(stores: Stores, a: Any, b: Any) -> None:
    """A ticket, a release, and a turn taken."""
    holder, grant = a, a.try_acquire(stores.claim(), WAIT)
    for client in (b, a):  # the first wait finds the lease taken
        claim = stores.claim()
        assert client.try_acquire(claim, WAIT) is None
        assert holder.release(grant)
        holder, grant = client, client.try_acquire(claim, WAIT)
        assert grant is not None
    claim = stores.claim()
    assert b.try_acquire(claim, WAIT) is None
    with counted(stores, b) as found:
        for _ in range(10):
            assert b.try_acquire(claim, WAIT) is None
    assert found == {"SELECT": 10}
    with counted(stores, a) as found:
        assert a.release(grant)
    assert found["UPDATE"] == 1
    with counted(stores, b) as found:
        grant = b.try_acquire(claim, WAIT)
        assert grant is not None
    assert (found["INSERT"], found["DELETE"]) == (1, 1)
    assert b.release(grant)


def test_r11_it_is_not_part_of_the_caller_s_transaction(
    stores: Stores, a: Any, b: Any, django_assert_num_queries: Any
) -> None:
    """Others see it at once, it outlives a rollback, and nothing of it is on the caller's connection. On SQLite the
    caller's own transaction is the one writer of the database, and does not stand in its way."""
    with transaction.atomic(stores.database):
        if stores.store == "file":
            ask(stores.database, "CREATE TABLE written (x integer)")
        with django_assert_num_queries(0, connection=connections[stores.database]):
            grant = a.try_acquire(stores.claim(), WAIT)
        assert grant is not None
        assert b.try_acquire(stores.claim()) is None
        transaction.set_rollback(True, using=stores.database)
    assert a.verify(grant)
    assert a.release(grant)
