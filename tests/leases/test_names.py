"""Acquire, wait in line, renew, release, break and sweep, on each database; the machine has any order of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from django_distlock import BackendUnavailable
from django_distlock.leases import queue, upkeep
from django_distlock.leases.records import Full, Head, Lost, Quota, Row, Waiting
from django_distlock.models import BrowserTicket
from tests.browserlocks.store.tabs import TTL, Tab, counts, write
from tests.conftest import eventually
from tests.support.places import (
    EVERYWHERE,
    READ_COMMITTED,
    REPEATABLE_READ,
    Place,
    after_statement,
    at_the_side,
)

if TYPE_CHECKING:
    Two = tuple[Tab, Tab]

SERVERS = pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
RR = [Place("postgres", REPEATABLE_READ), Place("mariadb", REPEATABLE_READ)]
ON_RR = pytest.mark.parametrize("place", RR, ids=str, indirect=True)


@pytest.fixture
def free(place: Place, name: str) -> Two:
    """Ada's and Bob's tab, where Ada's has given the lock back."""
    ada, bob = Tab(place.alias, name), Tab(place.alias, name, "bob")
    ada.take()
    ada.release()
    return ada, bob


def reason(found: object) -> str:
    assert isinstance(found, Lost), found
    return found.reason


def beside(alias: str, work: Any) -> Any:
    """The result of some work on another connection."""
    return at_the_side(Place(alias, READ_COMMITTED), work)


def test_the_life_of_a_name(dialect: str, name: str) -> None:
    ada, bob = Tab(dialect, name), Tab(dialect, name, "bob")
    held, again = ada.take(ttl=60), ada.take()  # the answer may have been lost: the same fence, prolonged
    assert (held.name, held.lease, held.principal, held.label) == (name, ada.lease, "user:ada", "Ada")
    assert (held.fence, held.since) == (again.fence, again.since)
    assert 0 < held.expires_in <= 60 < again.expires_in <= TTL
    assert not isinstance(ada.renew(), Lost)
    found = bob.wait()
    assert (found.holder and found.holder.label, found.place, found.queued, found.crowded) == ("Ada", 0, True, False)
    assert queue.heads(dialect, [name]) == {name: Head(ada.holder, bob.holder)}
    assert counts(dialect, "user:bob") == (0, 1)
    with transaction.atomic(using=dialect):
        assert ada.lock() is not None
        if dialect != "default":
            assert isinstance(beside(dialect, ada.renew), Row)
            assert beside(dialect, ada.ask).fence == ada.fence
            assert isinstance(beside(dialect, bob.ask), Waiting)
            assert not beside(dialect, ada.release)
            assert beside(dialect, lambda: upkeep.sweep(dialect, 0, of_objects=False)) == 0
    assert ada.release()
    bob.take()
    assert [row.lease for row in upkeep.held(dialect, of_objects=False, limit=5)] == [bob.lease]
    other = Tab(dialect, f"{name} too", "bob")
    assert [isinstance(other.ask(quota=Quota(leases=most)), Full) for most in (1, 1, 2)] == [True, True, False]
    assert other.release(name=other.name)
    assert upkeep.sweep(dialect, 0, of_objects=False, batches=0) == 0
    assert bob.end() is not None
    swept: list[int] = []  # SQLite counts milliseconds, and a fence that is ahead of the clock keeps its row
    eventually(lambda: swept.append(upkeep.sweep(dialect, 0, of_objects=False, batch=1)) or sum(swept) == 2, "it stays")


@pytest.mark.parametrize("place", [place for place in EVERYWHERE if place.level], ids=str, indirect=True)
def test_a_view_under_one_name_does_not_keep_its_user_from_another(
    place: Place, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the quota counts the row that the view has locked."""
    if place.alias == "mariadb":
        monkeypatch.setitem(connections.settings["mariadb"]["OPTIONS"], "isolation_level", place.level.lower())
    first, second = Tab(place.alias, name), Tab(place.alias, f"{name} too")
    first.take()
    with transaction.atomic(using=place.alias):
        assert first.lock() is not None
        at_the_side(place, lambda: second.take(quota=Quota(leases=2)))
    third = Tab(place.alias, f"{name} again")
    assert [isinstance(third.ask(quota=Quota(leases=most)), Full) for most in (2, 3)] == [True, False]


def test_fences_begin_at_the_clock(alias: str, two: Two) -> None:
    """So that they also rise where the row is gone; and JavaScript can count so far."""
    assert 1_700_000_000_000_000 < two[0].fence < 2**53
    two[0].release()
    write(alias, "UPDATE django_distlock_weblease SET fence = fence + 100000000000")
    assert upkeep.sweep(alias, 0, of_objects=False) == 0  # else the next row of this name might begin below it


def test_a_lease_with_a_longest_hold_is_renewed_up_to_it(alias: str, name: str) -> None:
    ada = Tab(alias, name)
    found = [
        ada.take(ttl=600, max_hold=50),
        ada.renew(600),
        ada.take(ttl=600, max_hold=500),
    ]  # asked again: no new hold
    assert [getattr(each, "expires_in", 600) <= 50 for each in found] == [True] * 3
    write(alias, "UPDATE django_distlock_weblease SET ends_at = 5, expires_at = 5")
    assert reason(ada.renew()) == "max_hold"
    Tab(alias, name, "bob").take()
    assert reason(ada.renew()) == "max_hold"


def test_why_a_lease_is_lost(alias: str, name: str) -> None:
    ada, bob, eve = (Tab(alias, name, person) for person in ("ada", "bob", "eve"))
    assert reason(ada.renew()) == "expired"  # there is no row
    ada.take()
    ada.release()
    assert reason(ada.renew()) == "released"
    bob.take()
    bob.end()
    assert reason(bob.renew()) == "broken"
    eve.take()
    eve.expire()
    assert reason(eve.renew()) == "expired"  # never prolonged: its tab has aborted by now
    ada.take()
    assert [reason(tab.renew()) for tab in (eve, bob)] == ["expired", "taken"]  # the row remembers one lease


def test_what_one_user_has_is_listed_and_counted(alias: str) -> None:
    """A free name has no name of a person: those are personal data."""
    first, second, waiting = (Tab(alias, name) for name in "abc")
    Tab(alias, "c", "bob").take()
    for tab in (first, second, waiting):
        tab.ask()
    assert {row.name for row in upkeep.held(alias, of_objects=False, principal="user:ada")} == {"a", "b"}
    assert counts(alias, "user:ada") == (2, 1)
    write(alias, "UPDATE django_distlock_weblease SET since = 1 WHERE name = 'c'")
    assert [row.label for row in upkeep.held(alias, of_objects=False, limit=1)] == ["Bob"]
    first.expire()
    waiting.miss()
    assert counts(alias, "user:ada") == (1, 0)
    first.release()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT principal, label, lease FROM django_distlock_weblease WHERE name = 'a'")
        assert list(cursor.fetchall()) == [("", "", "")]


def test_names_and_users_are_compared_exactly(alias: str) -> None:
    """MariaDB's usual collation takes most of them for one. Long names and odd labels can be stored."""
    names = ("Abc", "abc", "Abc ", "ABC", "Äbc", "äbc", "a\u0308bc", "ä😀" * 256)
    tabs = [Tab(alias, each, f"person of {each}"[:100]) for each in names]
    for tab in tabs:
        tab.take(label="a\0da\ud800" + "ä" * 300)
    assert {row.name for row in upkeep.held(alias, of_objects=False)} == set(names)
    assert {(row.label[:4], len(row.label)) for row in upkeep.held(alias, of_objects=False)} == {("ada?", 255)}
    assert queue.heads(alias, names) == {tab.name: Head(tab.holder, None) for tab in tabs}
    for other in ("user:person of abc", "user:person of Abc ", "user:person of Äbc"):
        assert not queue.release(alias, tabs[0].lease, principal=other)
        assert tabs[0].lock(other) is None
        assert "Abc" not in {row.name for row in upkeep.held(alias, of_objects=False, principal=other)}


ODD_NAMES = [{"name": name} for name in ("", "n" * 513, "a\0b", "\ud800")]


@pytest.mark.parametrize("wrong", [{"lease": "x'; --"}, {"person": "p" * 256}, *ODD_NAMES])
def test_ids_names_and_principals_are_checked(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"lease must be|principal|name"):
        Tab(**{"alias": "default", "name": "a", **wrong}).ask()


# the queue


def test_a_waiter_that_stops_asking_is_passed_over_and_comes_back_at_the_end(alias: str, two: Two) -> None:
    """If it wakes up, the row decides: by tickets alone it would be the first again, beside the one that is in."""
    holder, sleeper = two
    awake, last = Tab(alias, holder.name, "cy"), Tab(alias, holder.name, "dan")
    assert [tab.wait().place for tab in (sleeper, awake, last)] == [0, 1, 2]
    sleeper.miss()
    for _ in range(2):  # before it has a ticket again, and with it
        assert [tab.wait().place for tab in (awake, last, sleeper)] == [0, 1, 2]
    sleeper.miss()
    holder.release()
    awake.take()
    assert (last.wait().place, sleeper.wait().place) == (0, 1)
    assert sleeper.wait().holder is not None
    awake.release()
    sleeper.wait()
    last.take()


def test_a_ticket_is_for_one_name_and_lives_for_two_intervals(alias: str) -> None:
    """A client that uses an id for a second name gives up its place for the first."""
    for name, person in (("a", "bob"), ("b", "eve"), ("b", "cy")):
        Tab(alias, name, person).ask()
    tab = Tab(alias, "a")
    for name, place in (("a", 0), ("b", 1)):
        tab.name = name
        found = tab.wait(interval=lambda place: 10 + place)
        assert (found.place, found.interval) == (place, 10 + place)
    ticket = BrowserTicket.rows.using(alias).get(lease=tab.lease)
    assert round((ticket.alive_until - ticket.arrived) / 1_000_000) == 23  # and a second
    assert counts(alias, tab.principal) == (0, 1)
    assert queue.names_of(alias, tab.principal, [tab.lease]) == {tab.lease: ("b", False)}


def test_dead_tickets_are_cleared_away_while_the_name_is_held(alias: str, two: Two) -> None:
    for _ in range(60):
        tab = Tab(alias, two[0].name, "many")
        tab.wait()
        tab.miss()
    two[1].wait()
    assert BrowserTicket.rows.using(alias).count() <= 51


# what others do between two statements


def test_a_name_that_is_given_back_while_it_is_asked_for(alias: str, two: Two) -> None:
    """Between the refusal and the look at the row: it is asked for again at once."""
    with after_statement(alias, "UPDATE", two[0].release):
        two[1].take()


@pytest.mark.parametrize("place", RR[1:], ids=str, indirect=True)
def test_a_lease_that_is_lost_before_it_is_read_is_none(place: Place, free: Two) -> None:
    """MariaDB reads the row by a second statement."""
    ada, bob = free
    with after_statement("mariadb", "UPDATE", lambda: (ada.expire(), bob.take())):
        assert ada.wait().holder is not None


# requests under the lock


@SERVERS
def test_a_request_under_the_lock_keeps_nobody_waiting(alias: str, two: Two) -> None:
    """The row is locked and its lease has run out: no one gets in, and each is told at once."""
    ada, bob = two
    ada.expire()
    with transaction.atomic(using=alias):
        write(alias, "SELECT 1 FROM django_distlock_weblease WHERE name = %s FOR UPDATE", ada.name)
        found = beside(alias, bob.ask)
        assert isinstance(found, Waiting)
        assert (found.crowded, found.queued, found.place) == (True, True, 0)
        assert isinstance(beside(alias, ada.renew), Lost)
    assert bob.take().fence > ada.fence


# callers in transactions


def test_the_clock_does_not_stand_still_in_a_transaction_and_knows_no_time_zone(alias: str, two: Two) -> None:
    """The ``now()`` of a transaction is that of its start."""

    def left() -> float:
        found = two[0].lock()
        assert found is not None
        return found.expires_in

    zone = {"postgres": "SET TIME ZONE 'Pacific/Apia'", "mariadb": "SET time_zone = '-11:00'"}.get(alias, "SELECT 1")
    with transaction.atomic(using=alias):
        before = left()
        write(alias, zone)
        eventually(lambda: left() < before, "the clock stands still, or was set back")
    connections[alias].close()


@ON_RR
def test_an_old_snapshot_lets_nobody_in(place: Place, free: Two) -> None:
    """A transaction that has read the free row; then another tab takes the name."""
    ada, bob = free
    with transaction.atomic(using=place.alias):
        assert not ada.row().held
        at_the_side(place, bob.take)
        assert isinstance(ada.ask(queue=False), Waiting)
        assert isinstance(ada.renew(), Lost)
        assert not ada.release()
        write(place.alias, "SELECT 1")  # the transaction of the caller is not broken
    assert ada.row().lease == bob.lease


@ON_RR
def test_an_old_snapshot_does_not_pass_a_stale_lease(place: Place, free: Two) -> None:
    """Locked is the row as it is now; PostgreSQL refuses the transaction instead."""
    ada, bob = free
    ada.take()
    refused = nullcontext() if place.alias == "mariadb" else pytest.raises(OperationalError, match="serialize")
    with refused, transaction.atomic(using=place.alias):
        assert ada.row().held
        at_the_side(place, lambda: (ada.release(), bob.take()))
        assert ada.lock() is None


def test_r6_an_error_of_the_driver_is_wrapped(two: Two) -> None:
    def gone(*statement: Any) -> Any:
        raise OperationalError("the server has gone away")

    with connections[two[0].alias].execute_wrapper(gone), pytest.raises(BackendUnavailable) as caught:
        two[0].renew()
    assert isinstance(caught.value.__cause__, OperationalError)
