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
from tests.browserlocks.store.tabs import TTL, Tab, expire, write
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


def beside(alias: str, work: Any) -> Any:
    """The result of some work on another connection."""
    found: list[Any] = []
    at_the_side(Place(alias, READ_COMMITTED), lambda: found.append(work()))
    return found[0]


@SERVERS
def test_a_request_under_the_lock_keeps_nobody_waiting(alias: str, name: str) -> None:
    """The row is locked and its lease has run out: no one gets in, and each is told at once."""
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    ada.take()
    expire(alias, name)
    with transaction.atomic(using=alias):
        write(alias, "SELECT 1 FROM django_distlock_browserlock WHERE name = %s FOR UPDATE", name)
        found = beside(alias, bob.ask)
        assert isinstance(found, Waiting)
        assert (found.crowded, found.queued, found.place) == (True, True, 0)
        assert isinstance(beside(alias, ada.renew), LeaseLost)
    assert bob.take().fence > ada.fence


@SERVERS
def test_the_holder_asks_and_beats_during_its_own_request(alias: str, name: str) -> None:
    """It keeps the lease as it is; the others of the batch are prolonged."""
    ada, other = Tab(alias, name), Tab(alias, f"{name} too")
    ada.take(ttl=60)
    other.take(ttl=60)
    with transaction.atomic(using=alias):
        assert ada.lock() is not None
        again = beside(alias, ada.ask)
        leases = [(tab.name, tab.lease, tab.fence) for tab in (ada, other)]
        found = beside(alias, lambda: store.renew(alias, leases, principal=ada.principal, ttl=500))
    assert isinstance(again, BrowserLease)
    assert again.fence == ada.fence
    assert 50 < found[ada.lease].expires_in <= 60
    assert found[other.lease].expires_in > 400


@SERVERS
def test_a_lease_is_not_broken_under_a_request(alias: str, name: str) -> None:
    ada = Tab(alias, name)
    ada.take()

    def end() -> str:
        try:
            store.break_lease(alias, name, ada.fence)
        except BackendUnavailable as error:
            return str(error)
        return ""

    with transaction.atomic(using=alias):
        ada.lock()
        assert "in progress" in beside(alias, end)
        assert not beside(alias, ada.release)
        assert beside(alias, lambda: store.sweep(alias, 0)) == 0
    assert store.read(alias, [name])[name].held


@SERVERS
def test_requests_under_one_lease_come_one_after_the_other(alias: str, name: str) -> None:
    ada = Tab(alias, name)
    ada.take()
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


def test_the_clock_does_not_stand_still_in_a_transaction(alias: str, name: str) -> None:
    """The ``now()`` of a transaction is that of its start."""
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    with transaction.atomic(using=alias):
        ada.take(ttl=0.2)
        eventually(lambda: ada.lock() is None, "the lease does not end within the transaction")
        bob.take()


def test_times_do_not_depend_on_the_time_zone_of_the_session(alias: str, name: str) -> None:
    Tab(alias, name).take()
    connection = connections[alias]
    zones = {
        "postgresql": ("SET TIME ZONE 'Pacific/Apia'", "SET TIME ZONE 'UTC'"),
        "mysql": ("SET time_zone = '+13:00'", "SET time_zone = '+00:00'"),
    }
    for setting in zones.get(connection.vendor, ()):
        with connection.cursor() as cursor:
            cursor.execute(setting)
        assert TTL - 10 < store.read(alias, [name])[name].expires_in <= TTL


@pytest.fixture
def old_snapshot(place: Place, name: str) -> Iterator[tuple[Tab, Tab]]:
    """A transaction that has read the free row; then another tab takes the name."""
    ada, bob = Tab(place.alias, name), Tab(place.alias, name, "bob")
    ada.take()
    ada.release()
    with transaction.atomic(using=place.alias):
        assert not store.read(place.alias, [name])[name].held
        at_the_side(place, bob.take)
        yield ada, bob
        with connections[place.alias].cursor() as cursor:  # the transaction of the caller is not broken
            cursor.execute("SELECT 1")


@ON_RR
def test_an_old_snapshot_lets_nobody_in(old_snapshot: tuple[Tab, Tab], place: Place) -> None:
    ada, bob = old_snapshot
    assert isinstance(ada.ask(queue=False), Waiting)
    assert isinstance(ada.renew(), LeaseLost)
    assert not ada.release()
    assert beside(place.alias, lambda: store.read(place.alias, [bob.name])[bob.name].lease) == bob.lease


@ON_RR
def test_an_old_snapshot_does_not_pass_a_stale_lease(place: Place, name: str) -> None:
    """Locked is the row as it is now; PostgreSQL refuses the transaction instead."""
    ada, bob = Tab(place.alias, name), Tab(place.alias, name, "bob")
    ada.take()

    def meanwhile() -> None:
        ada.release()
        bob.take()

    refused = nullcontext() if place.alias == "mariadb" else pytest.raises(OperationalError, match="serialize")
    with refused, transaction.atomic(using=place.alias):
        assert store.read(place.alias, [name])[name].held
        at_the_side(place, meanwhile)
        assert ada.lock() is None


def test_in_the_transaction_of_a_caller(alias: str, name: str) -> None:
    """ATOMIC_REQUESTS: what is taken and rolled back was never taken."""
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    with transaction.atomic(using=alias):
        ada.take()
        transaction.set_rollback(True, using=alias)
    bob.take()
    with transaction.atomic(using=alias):
        assert isinstance(ada.ask(), Waiting)
        assert bob.release()
        assert isinstance(ada.ask(), BrowserLease)
        assert not isinstance(ada.renew(), LeaseLost)
        assert store.counts(alias, ada.principal) == (1, 0)
    assert store.read(alias, [name])[name].lease == ada.lease


def test_what_it_costs(alias: str, name: str) -> None:
    mariadb = alias == "mariadb"
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    assert len(statements_of(alias, ada.take)) <= 4  # a name that was never locked: the row is made
    assert len(statements_of(alias, ada.renew)) == (2 if mariadb else 1)
    assert len(statements_of(alias, bob.wait)) == 3
    bob.leave()
    assert len(statements_of(alias, ada.release)) <= (3 if mariadb else 2)
    assert len(statements_of(alias, ada.take)) == (2 if mariadb else 1)
    assert len(statements_of(alias, lambda: bob.wait(queue=False))) == 2
    other = Tab(alias, f"{name} too")
    other.take()
    leases = [(tab.name, tab.lease, tab.fence) for tab in (ada, other)]
    batch = statements_of(alias, lambda: store.renew(alias, leases, principal="user:ada", ttl=5))
    assert len(batch) == (2 if mariadb else 1)
    assert len(statements_of(alias, lambda: store.counts(alias, "user:ada"))) == 1
    with transaction.atomic(using=alias):
        assert len(statements_of(alias, ada.lock)) == 1


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_on_a_mysql_without_the_statements_of_mariadb(alias: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No SET STATEMENT, no RETURNING: the same answers."""
    connection: Any = connections[alias]
    for owner, able in ((connection, "mysql_is_mariadb"), (connection.features, "can_return_columns_from_insert")):
        for each in (type(owner), owner):  # the connections of other threads, and this one
            monkeypatch.setattr(each, able, False)
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    ada.take()
    assert not isinstance(ada.renew(), LeaseLost)
    assert bob.wait().place == 0
    with transaction.atomic(using=alias):
        ada.lock()
        assert isinstance(beside(alias, ada.renew), BrowserLease)
        assert isinstance(beside(alias, bob.ask), Waiting)
        assert not beside(alias, ada.release)
    assert ada.release()
    bob.take()
    assert store.break_lease(alias, name, bob.fence) is not None


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_with_parameters_that_are_bound_by_the_server(alias: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Any = connections[alias]
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    connection.close()
    try:
        ada, bob = Tab(alias, name), Tab(alias, name, "bob")
        ada.take()
        assert not isinstance(ada.renew(), LeaseLost)
        bob.wait()
        assert store.heads(alias, [name]) == {name: Head(ada.holder, bob.holder)}
        assert store.counts(alias, "user:bob") == (0, 1)
        with transaction.atomic(using=alias):
            assert ada.lock() is not None
        ada.release()
        bob.take()
        assert store.held(alias, 5)
        assert store.break_lease(alias, name, bob.fence) is not None
        store.sweep(alias, 0)
    finally:
        connection.close()


@SERVERS
def test_a_lost_connection_is_an_error_that_says_so_and_the_next_call_works(alias: str, name: str) -> None:
    ada = Tab(alias, name)
    ada.take()
    end_session(alias)
    with pytest.raises(BackendUnavailable) as caught:
        ada.renew()
    assert caught.value.__cause__ is not None
    connections[alias].close_if_unusable_or_obsolete()
    assert not isinstance(ada.renew(), LeaseLost)


@pytest.mark.parametrize("place", RR, ids=str, indirect=True)
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
