"""What a lease costs, as the database counts it; and where it does not go: into the caller's transaction."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock.backends.leasetable import sqlite, waiter
from tests.engines.leasetable.stores import SERVERS, Stores
from tests.engines.statements import totals
from tests.faults.server import ask, is_mariadb
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT = 1000.0
LONG = 1000.0


@pytest.fixture(params=["file", *SERVERS])
def stores(
    request: pytest.FixtureRequest, databases: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Stores]:
    give_time(monkeypatch.setattr)
    made = Stores(request.param, monkeypatch, tmp_path)
    # on a busy machine a hold takes longer, and so does the way from one statement to the next
    monkeypatch.setattr(sqlite, "SHORT_HOLD", LONG)
    monkeypatch.setattr(sqlite, "HOT", LONG)
    monkeypatch.setattr(waiter, "SIGN_OF_LIFE", LONG)
    yield made
    made.close()


@contextmanager
def counted(stores: Stores, client: Any) -> Iterator[Counter[str]]:
    """The first words of this client's statements in the block: SQLite's trace, MariaDB's counters of its session, and
    PostgreSQL's statistics of all that was done to the lease table."""
    found: Counter[str] = Counter()
    if stores.store == "file":
        connection = client.store.file().cursor.connection
        connection.set_trace_callback(lambda sql: found.update([sql.split()[0]]))
        yield found
        connection.set_trace_callback(None)
        return
    if stores.store == "mariadb":
        before = of_session(client)
        yield found
        found.update(of_session(client) - before)
        return
    before = totals(stores.database)
    yield found
    for text, calls in (totals(stores.database) - before).items():
        if re.search("django_distlock_(lease|ticket)", text):
            found[text.split()[0]] += calls


def of_session(client: Any) -> Counter[str]:
    cursor = client.store.session.wrapper.create_cursor()
    cursor.execute(
        "SHOW SESSION STATUS WHERE variable_name IN"
        " ('Com_insert', 'Com_insert_select', 'Com_select', 'Com_update', 'Com_delete')"
    )
    found: Counter[str] = Counter()
    for variable, value in cursor.fetchall():
        found[variable.split("_")[1].upper()] += int(value)
    return found


def test_a_free_lease_costs_one_write_and_its_return_another(stores: Stores) -> None:
    client = stores.client()
    for _ in range(3):  # opens the session and makes the row
        assert client.release(client.try_acquire(stores.claim(), WAIT))
    with counted(stores, client) as found:
        for _ in range(10):
            assert client.release(client.try_acquire(stores.claim(), WAIT))
    assert found == {"INSERT": 10, "UPDATE": 10}


def test_a_name_that_was_never_used_costs_no_more(stores: Stores) -> None:
    client = stores.client()
    assert client.release(client.try_acquire(stores.claim()))
    with counted(stores, client) as found:
        for number in range(10):
            assert client.release(client.try_acquire(stores.claim(str(number)), WAIT))
    assert found == {"INSERT": 10, "UPDATE": 10}


def test_a_hand_over_costs_three_writes(stores: Stores) -> None:
    """A ticket, a release, and a turn taken. On SQLite each of them is one transaction, and the last tells whom to
    wake."""
    first, second = stores.client(), stores.client()
    holder, grant = first, first.try_acquire(stores.claim(), WAIT)
    for client in (second, first):  # the first wait finds the lease taken
        claim = stores.claim()
        assert client.try_acquire(claim, WAIT) is None
        assert holder.release(grant)
        holder, grant = client, client.try_acquire(claim, WAIT)
        assert grant is not None
    claim = stores.claim()
    with counted(stores, second) as found:
        assert second.try_acquire(claim, WAIT) is None
    if stores.store == "file":
        assert found == {"INSERT": 1, "SELECT": 1}
    with counted(stores, first) as found:
        assert first.release(grant)
    assert found == ({"UPDATE": 1, "SELECT": 1} if stores.store == "file" else {"UPDATE": 1})
    with counted(stores, second) as found:
        grant = second.try_acquire(claim, WAIT)
        assert grant is not None
    if stores.store == "file":
        assert found == {"SELECT": 2, "BEGIN": 1, "INSERT": 1, "DELETE": 1, "COMMIT": 1}
    else:
        assert found == {"SELECT": 1, "INSERT": 1, "DELETE": 1}
    assert second.release(grant)


def test_a_look_at_a_lease_that_is_taken_writes_nothing(stores: Stores) -> None:
    holder, client = stores.client(), stores.client()
    assert holder.try_acquire(stores.claim())
    claim = stores.claim()
    assert client.try_acquire(claim, WAIT) is None
    with counted(stores, client) as found:
        for _ in range(10):
            assert client.try_acquire(claim, WAIT) is None
    assert found == {"SELECT": 10}
    client.withdraw(claim)


def test_a_waiter_says_that_it_lives_now_and_then(stores: Stores) -> None:
    holder, client = stores.client(), stores.client()
    assert holder.try_acquire(stores.claim())
    claim = stores.claim()
    assert client.try_acquire(claim, WAIT) is None
    client._claims[claim.token]._seen_at -= 2 * LONG
    with counted(stores, client) as found:
        for _ in range(3):
            assert client.try_acquire(claim, WAIT) is None
    assert found == {"SELECT": 3, "UPDATE": 1}
    client.withdraw(claim)


def test_extending_is_one_write_and_verifying_one_read(stores: Stores) -> None:
    client = stores.client()
    grant = client.try_acquire(stores.claim())
    with counted(stores, client) as found:
        assert client.extend(grant, 10)
        assert client.verify(grant)
    assert found == {"UPDATE": 1, "SELECT": 1}


def test_a_listing_is_one_read(stores: Stores) -> None:
    client = stores.client()
    for number in range(50):
        assert client.try_acquire(stores.claim(str(number)))
    with counted(stores, client) as found:
        assert len(client.inspect()) == 50
    assert found == {"SELECT": 1}


class Recorder:
    """Between the library and its cursor: remembers what is sent."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.sent: list[tuple[str, Any]] = []

    def execute(self, sql: str, params: Any = ()) -> Any:
        self.sent.append((sql, params))
        return self._cursor.execute(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def test_twenty_thousand_ended_leases_are_not_looked_at(stores: Stores) -> None:
    client, other = stores.client(), stores.client()
    assert client.release(client.try_acquire(stores.claim()))
    fill(stores, client, 20_000)
    place = client.store.file() if stores.store == "file" else client.store.session
    recorder = place.cursor = Recorder(place.cursor)
    held, claim = other.try_acquire(stores.claim()), stores.claim()
    assert client.try_acquire(claim, WAIT) is None
    client._claims[claim.token]._seen_at -= 2 * LONG
    assert client.try_acquire(claim, WAIT) is None
    assert other.release(held)
    grant = client.try_acquire(claim, WAIT)
    assert client.extend(grant, 10)
    assert client.verify(grant)
    assert client.release(grant)
    words = Counter(sql.split()[0] for sql, _ in recorder.sent)
    assert set(words) >= {"INSERT", "SELECT", "UPDATE", "DELETE"}
    for sql, params in recorder.sent:
        if sql.split()[0] not in ("BEGIN", "COMMIT"):
            assert not scans(stores, client, sql, params), sql


def fill(stores: Stores, client: Any, count: int) -> None:
    """Add leases that ended long ago."""
    digests = [secrets.token_bytes(32) for _ in range(count)]
    if stores.store == "file":
        cursor = client.store.file().cursor
        cursor.execute("BEGIN")
        rows = ((digest, "a", "n", "-", 1, 1, 1, "h") for digest in digests)
        cursor.executemany("INSERT INTO lease VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        cursor.execute("COMMIT")
        cursor.execute("ANALYZE")
    else:
        sql = "INSERT INTO django_distlock_lease VALUES (%s, %s, 'n', '-', 1, 1, 1, 'h')"
        with transaction.atomic(stores.database), connections[stores.database].cursor() as cursor:
            cursor.executemany(sql, [(digest.hex(), stores.alias) for digest in digests])
        ask(stores.database, f"ANALYZE {'TABLE' if stores.store == 'mariadb' else ''} django_distlock_lease")
    assert stores.kept() > count


def scans(stores: Stores, client: Any, sql: str, params: Any) -> list[Any]:
    """The lines of a statement's plan that read a table from end to end; not those of the queue, which is short."""
    if stores.store == "file":
        plan = client.store.file().cursor._cursor.execute("EXPLAIN QUERY PLAN " + sql, params).fetchall()
        return [row for row in plan if re.search("SCAN (lease|ticket)", row[3])]
    if stores.store == "postgres":
        plan = ask(stores.database, "EXPLAIN " + sql, *params)
        return [row for row in plan if "Seq Scan on django_distlock_lease" in row[0]]
    plan = ask(stores.database, "EXPLAIN FORMAT=TRADITIONAL " + sql, *params)  # MySQL 9.7 would draw a tree
    kind, rows = (3, 8) if is_mariadb() else (4, 9)
    return [row for row in plan if row[kind] == "ALL" and int(row[rows] or 0) > 100]


@pytest.mark.parametrize("roll_back", [True, False])
def test_r11_it_is_not_part_of_the_caller_s_transaction(stores: Stores, roll_back: bool) -> None:
    """Others see it at once, and it stays when the caller's transaction is rolled back. On SQLite the caller's own
    transaction is the one writer of the database, and does not stand in its way."""
    client, rival = stores.client(), stores.client()
    with transaction.atomic(stores.database):
        if stores.store == "file":
            ask(stores.database, "CREATE TABLE written (x integer)")
        grant = client.try_acquire(stores.claim(), WAIT)
        assert grant is not None
        assert rival.try_acquire(stores.claim()) is None
        transaction.set_rollback(roll_back, using=stores.database)
    assert client.verify(grant)
    assert rival.try_acquire(stores.claim()) is None
    assert client.release(grant)


def test_nothing_of_it_is_on_the_caller_s_connection(stores: Stores, django_assert_num_queries: Any) -> None:
    client = stores.client()
    with django_assert_num_queries(0, connection=connections[stores.database]):
        assert client.release(client.try_acquire(stores.claim(), WAIT))
