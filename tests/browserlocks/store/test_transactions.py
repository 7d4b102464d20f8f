"""Rows that protected views have locked, callers in transactions, and what statements cost."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from django_distlock import BackendUnavailable
from django_distlock.browser import store
from django_distlock.browser.records import BrowserLease, Head, LeaseLost, Waiting
from tests.browserlocks.store.tabs import TTL, Tab, forget_everything, write
from tests.conftest import eventually
from tests.support.places import (
    READ_COMMITTED,
    REPEATABLE_READ,
    Place,
    after_statement,
    at_the_side,
    end_session,
    isolate,
    statements_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS = pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
RR = [Place("postgres", REPEATABLE_READ), Place("mariadb", REPEATABLE_READ)]
ON_RR = pytest.mark.parametrize("place", RR, ids=str, indirect=True)


@pytest.fixture
def two(alias: str, name: str) -> tuple[Tab, Tab]:
    """Ada's and Bob's tab; Ada's has the lock."""
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    ada.take(ttl=60)
    return ada, bob


def beside(alias: str, work: Any) -> Any:
    """The result of some work on another connection."""
    found: list[Any] = []
    at_the_side(Place(alias, READ_COMMITTED), lambda: found.append(work()))
    return found[0]


# requests under the lock


@SERVERS
def test_a_request_under_the_lock_keeps_nobody_waiting(alias: str, two: tuple[Tab, Tab]) -> None:
    """The row is locked and its lease has run out: no one gets in, and each is told at once."""
    ada, bob = two
    ada.expire()
    with transaction.atomic(using=alias):
        write(alias, "SELECT 1 FROM django_distlock_browserlock WHERE name = %s FOR UPDATE", ada.name)
        found = beside(alias, bob.ask)
        assert isinstance(found, Waiting)
        assert (found.crowded, found.queued, found.place) == (True, True, 0)
        assert isinstance(beside(alias, ada.renew), LeaseLost)
    assert bob.take().fence > ada.fence


@SERVERS
def test_the_holder_asks_and_beats_during_its_own_request(alias: str, two: tuple[Tab, Tab]) -> None:
    """It keeps the lease as it is, and the others of the batch are prolonged. It is not broken, released or swept."""
    ada, bob = two
    other = Tab(alias, f"{ada.name} too")
    other.take(ttl=60)
    with transaction.atomic(using=alias):
        assert ada.lock() is not None
        assert beside(alias, ada.ask).fence == ada.fence
        found = beside(alias, lambda: store.renew(alias, [ada.held, other.held], principal=ada.principal, ttl=500))
        with pytest.raises(BackendUnavailable, match="in progress"):
            beside(alias, lambda: store.break_lease(alias, ada.name, ada.fence))
        assert isinstance(beside(alias, bob.ask), Waiting)
        assert not beside(alias, ada.release)
        assert beside(alias, lambda: store.sweep(alias, 0)) == 0
    assert found[ada.lease].expires_in <= 60 < 100 < found[other.lease].expires_in
    assert store.read(alias, [ada.name])[ada.name].held


@SERVERS
def test_requests_under_one_lease_come_one_after_the_other(alias: str, two: tuple[Tab, Tab]) -> None:
    ada, _ = two
    order: list[str] = []

    def second() -> None:
        with transaction.atomic(using=alias):
            assert ada.lock() is not None
            order.append("second")

    thread = threading.Thread(target=at_the_side, args=(Place(alias, READ_COMMITTED), second))
    with transaction.atomic(using=alias):
        ada.lock()
        thread.start()
        # the servers' views of their sessions are kept for a transaction, and for 0.1 s
        eventually(lambda: beside(alias, lambda: waits(alias)), "the second does not wait for the row", pause=0.15)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def waits(alias: str) -> bool:
    """Does another session wait for a row?"""
    sql = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    if alias == "postgres":
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)
        return bool(cursor.fetchone()[0])


# callers in transactions


def test_the_clock_does_not_stand_still_in_a_transaction(alias: str, two: tuple[Tab, Tab]) -> None:
    """The ``now()`` of a transaction is that of its start."""

    def left() -> float:
        found = two[0].lock()
        assert found is not None
        return found.expires_in

    with transaction.atomic(using=alias):
        before = left()
        eventually(lambda: left() < before, "the clock stands still")


def test_times_do_not_depend_on_the_time_zone_of_the_session(alias: str, two: tuple[Tab, Tab]) -> None:
    zones = {
        "postgres": ("SET TIME ZONE 'Pacific/Apia'", "SET TIME ZONE 'UTC'"),
        "mariadb": ("SET time_zone = '+13:00'", "SET time_zone = '+00:00'"),
    }
    ada, _ = two
    ada.renew()
    for setting in zones.get(alias, ()):
        write(alias, setting)
        assert TTL / 2 < store.read(alias, [ada.name])[ada.name].expires_in <= TTL


@ON_RR
def test_an_old_snapshot_lets_nobody_in(place: Place, name: str) -> None:
    """A transaction that has read the free row; then another tab takes the name."""
    ada, bob = Tab(place.alias, name), Tab(place.alias, name, "bob")
    ada.take()
    ada.release()
    with transaction.atomic(using=place.alias):
        assert not store.read(place.alias, [name])[name].held
        at_the_side(place, bob.take)
        assert isinstance(ada.ask(queue=False), Waiting)
        assert isinstance(ada.renew(), LeaseLost)
        assert not ada.release()
        assert beside(place.alias, lambda: store.read(place.alias, [name])[name].lease) == bob.lease
        write(place.alias, "SELECT 1")  # the transaction of the caller is not broken


@ON_RR
def test_an_old_snapshot_does_not_pass_a_stale_lease(place: Place, name: str) -> None:
    """Locked is the row as it is now; PostgreSQL refuses the transaction instead."""
    ada, bob = Tab(place.alias, name), Tab(place.alias, name, "bob")
    ada.take()
    refused = nullcontext() if place.alias == "mariadb" else pytest.raises(OperationalError, match="serialize")
    with refused, transaction.atomic(using=place.alias):
        assert store.read(place.alias, [name])[name].held
        at_the_side(place, lambda: (ada.release(), bob.take()))
        assert ada.lock() is None


@ON_RR
def test_two_that_ask_at_repeatable_read(place: Place, name: str) -> None:
    """Each in a transaction of its own that has read before: the second is refused, and not kept waiting."""
    ada, bob = Tab(place.alias, name), Tab(place.alias, name, "bob")
    ada.take()
    ada.release()
    with transaction.atomic(using=place.alias):
        ada.take()
        found = beside(place.alias, bob.ask)
        assert isinstance(found, Waiting)
        assert found.crowded
    isolate(place)
    with after_statement(place.alias, "UPDATE", ada.release):
        assert isinstance(bob.ask(), BrowserLease)


def test_in_the_transaction_of_a_caller(alias: str, name: str) -> None:
    """ATOMIC_REQUESTS: what is taken and rolled back was never taken."""
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    with transaction.atomic(using=alias):
        ada.take()
        transaction.set_rollback(True, using=alias)
    bob.take()
    with transaction.atomic(using=alias):
        ada.wait()
        assert bob.release()
        ada.take()
        assert not isinstance(ada.renew(), LeaseLost)
        assert store.counts(alias, ada.principal) == (1, 0)
    assert store.read(alias, [name])[name].lease == ada.lease


# statements and connections


def test_what_it_costs(alias: str, name: str) -> None:
    mariadb = alias == "mariadb"
    ada, bob, other = Tab(alias, name), Tab(alias, name, "bob"), Tab(alias, f"{name} too")

    def cost(work: Any) -> int:
        return len(statements_of(alias, work))

    assert cost(ada.take) <= 4  # a name that was never locked: the row is made
    assert cost(ada.renew) == (2 if mariadb else 1)
    assert cost(bob.wait) == 3
    bob.leave()
    assert cost(ada.release) <= (3 if mariadb else 2)
    assert cost(ada.take) == (2 if mariadb else 1)
    assert cost(lambda: bob.wait(queue=False)) == 2
    other.take()
    batch = [ada.held, other.held]
    assert cost(lambda: store.renew(alias, batch, principal="user:ada", ttl=5)) == (2 if mariadb else 1)
    assert cost(lambda: store.counts(alias, "user:ada")) == 1
    with transaction.atomic(using=alias):
        assert cost(ada.lock) == 1


@pytest.fixture(params=["default", "postgres", "bound", "mariadb", "mysql"])
def dialect(request: pytest.FixtureRequest, databases: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each database, PostgreSQL also with parameters that are bound by the server, MariaDB also as a MySQL, which has
    no SET STATEMENT and no RETURNING."""
    alias = {"bound": "postgres", "mysql": "mariadb"}.get(request.param, request.param)
    connection: Any = connections[alias]
    if request.param == "bound":
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    if request.param == "mysql":
        for owner, able in ((connection, "mysql_is_mariadb"), (connection.features, "can_return_columns_from_insert")):
            for each in (type(owner), owner):  # the connections of other threads, and this one
                monkeypatch.setattr(each, able, False)
    connection.close()
    forget_everything(alias)
    yield alias
    forget_everything(alias)
    connection.close()


def test_the_life_of_a_name(dialect: str, name: str) -> None:
    ada, bob = Tab(dialect, name), Tab(dialect, name, "bob")
    held, again = ada.take(ttl=60), ada.take()  # the answer may have been lost: the same fence, prolonged
    assert (held.name, held.lease, held.principal, held.label) == (name, ada.lease, "user:ada", "Ada")
    assert (held.fence, held.since) == (again.fence, again.since)
    assert 0 < held.expires_in <= 60 < again.expires_in <= TTL
    assert not isinstance(ada.renew(), LeaseLost)
    found = bob.wait()
    assert (found.holder and found.holder.label, found.place, found.queued, found.crowded) == ("Ada", 0, True, False)
    assert store.heads(dialect, [name]) == {name: Head(ada.holder, bob.holder)}
    assert store.counts(dialect, "user:bob") == (0, 1)
    with transaction.atomic(using=dialect):
        assert ada.lock() is not None
        if dialect != "default":
            assert isinstance(beside(dialect, ada.renew), BrowserLease)
            assert isinstance(beside(dialect, bob.ask), Waiting)
            assert not beside(dialect, ada.release)
    assert ada.release()
    bob.take()
    assert [row.lease for row in store.held(dialect, 5)] == [bob.lease]
    assert store.break_lease(dialect, name, bob.fence) is not None
    store.sweep(dialect, 0)


@SERVERS
def test_a_lost_connection_is_an_error_that_says_so_and_the_next_call_works(alias: str, two: tuple[Tab, Tab]) -> None:
    ada, _ = two
    end_session(alias)
    with pytest.raises(BackendUnavailable) as caught:
        ada.renew()
    assert caught.value.__cause__ is not None
    connections[alias].close_if_unusable_or_obsolete()
    assert not isinstance(ada.renew(), LeaseLost)
