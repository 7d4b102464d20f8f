"""Leases: fences that only rise whatever a clock does, waiters of whom none is overtaken, and what both cost."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock import BackendUnavailable
from django_distlock.backends.leasetable import sqlite, waiter
from django_distlock.backends.leasetable.records import GRACE, KEPT
from django_distlock.backends.leasetable.statements import PLACE
from django_distlock.backends.leasetable.wakeups import WakeSockets
from tests.engines import statements as counters
from tests.engines.leasetable.stores import TTL, WAIT, Stores, everywhere
from tests.faults.server import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = 86_400


def test_prune_deletes_what_ended_a_day_ago(stores: Stores, a: Any) -> None:
    for number in range(25):
        assert a.release(a.try_acquire(stores.claim(str(number))))
    held = a.try_acquire(stores.claim("held", ttl=2 * KEPT))
    expired = a.try_acquire(stores.claim("expired", ttl=100))
    stores.shift(KEPT - 60)
    a.prune()
    assert stores.kept() == 27
    stores.shift(120)
    assert a.prune() >= 25, "of all aliases"
    assert stores.kept() == 2
    assert a.verify(held)
    assert a.try_acquire(stores.claim("expired")).fence > expired.fence


def grants(stores: Stores, clients: tuple[Any, Any], count: int) -> list[int]:
    """Fences of one name, in the order of the grants; the leases end in every way there is."""
    fences: list[int] = []
    for number in range(count):
        client = clients[number % 2]
        grant = client.try_acquire(stores.claim())
        assert grant is not None, number
        fences.append(grant.fence)
        match number % 30:
            case 3:
                stores.shift(TTL + 1)  # expires
            case 7:
                stores.shift(KEPT + TTL + 1)  # and so long ago that its row is deleted
                client.prune()
            case 11:
                assert client.break_lock(next(iter(client.inspect())))
            case 15:
                assert client.release(grant)
                client.close()  # and is opened again
            case 19:
                assert client.release(grant)
                stores.shift(-3600)  # an administrator sets the clock back
            case 23:  # and forward by ten days, for a while: the fence from the future is not forgotten
                assert client.release(grant)
                stores.shift(10 * DAY)
            case 24:
                assert client.release(grant)
                stores.shift(-10 * DAY)
            case 25:
                assert client.release(grant)
                stores.shift(2 * KEPT)
                client.prune()
            case _:
                assert client.release(grant)
    return fences


@everywhere
def test_r21_fences_rise(stores: Stores, a: Any, b: Any) -> None:
    assert all(earlier < later for earlier, later in pairwise(grants(stores, (a, b), 60)))


@everywhere
def test_the_clock_may_be_set_back(stores: Stores, a: Any, b: Any) -> None:
    """What was given back is free at once; what is held ends an hour late, and not early."""
    assert a.release(a.try_acquire(stores.claim()))
    stores.shift(-3600)
    assert list(a.inspect()) == []
    grant = b.try_acquire(stores.claim())
    stores.shift(-3600)
    assert a.try_acquire(stores.claim()) is None
    assert b.extend(grant, TTL) is not None
    stores.shift(TTL + 1)
    assert a.try_acquire(stores.claim()) is not None


def test_r4_nobody_overtakes_those_who_wait(stores: Stores, a: Any, b: Any) -> None:
    grant, waiting, late = a.try_acquire(stores.claim()), stores.claim(), stores.claim()
    assert b.try_acquire(waiting, WAIT) is None
    hurried = stores.client()
    assert hurried.try_acquire(stores.claim()) is None
    assert stores.tickets() == 1, "who does not wait takes no ticket"
    assert a.release(grant)
    for client in (hurried, a):
        assert client.try_acquire(stores.claim()) is None, "the lease is free, and somebody waits for it"
    assert a.try_acquire(late, WAIT) is None
    stores.shift(GRACE + 0.1)  # as if the first one was dead
    grant = a.try_acquire(late, WAIT)
    assert grant is not None
    b.withdraw(waiting)
    assert a.release(grant)


def test_r4_a_wake_up_that_is_lost_delays_only(stores: Stores, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder is killed between its release and the wake-up, or is in another network namespace."""
    monkeypatch.setattr(WakeSockets, "wake", lambda self, address: None)
    grant, claim = a.try_acquire(stores.claim()), stores.claim()
    assert b.try_acquire(claim, WAIT) is None
    assert a.release(grant)
    b.wait(claim, 0, 20)
    assert b.try_acquire(claim, WAIT) is not None


@pytest.mark.parametrize("stores", ["file"], indirect=True)
@pytest.mark.parametrize("expected", [False, True])
def test_r7_a_waiter_whose_place_cannot_be_read_keeps_nobody_waiting(
    stores: Stores, a: Any, b: Any, monkeypatch: pytest.MonkeyPatch, expected: bool
) -> None:
    """Its ticket is written by then, in a write of its own or in one with the look at the lease, and goes with it."""
    grant, claim, statements = a.try_acquire(stores.claim()), stores.claim(), b.store.statements
    ask = statements.ask
    if expected:
        statements._note_queue(claim)

    def broken(session: Any, statement: str, values: Any) -> Any:
        if statement == PLACE:
            raise sqlite3.OperationalError("disk I/O error")
        return ask(session, statement, values)

    monkeypatch.setattr(statements, "ask", broken)
    with pytest.raises(BackendUnavailable):
        b.try_acquire(claim, WAIT)
    assert not stores.tickets()
    assert a.release(grant)
    assert a.try_acquire(stores.claim())


@pytest.fixture
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with counters.counted(stores.database) as counts:
        yield found
    for text, calls in counts.items():
        if re.search("django_distlock_(lease|ticket)", text):
            found[text.split()[0]] += calls


@pytest.mark.usefixtures("slow_machine")
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


@pytest.mark.usefixtures("slow_machine")
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
