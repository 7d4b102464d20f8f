"""Acquire, wait in line, renew, release, break and sweep, on each database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction

from django_distlock.browser import store
from django_distlock.browser.records import Head, LeaseLost
from django_distlock.models import BrowserTicket
from tests.browserlocks.store.tabs import TTL, Tab, new_id, write
from tests.conftest import eventually
from tests.support.places import after_statement, statements_of

if TYPE_CHECKING:
    from collections.abc import Callable


def reason(found: object) -> str:
    assert isinstance(found, LeaseLost), found
    return found.reason


def tabs_of(alias: str, name: str, count: int) -> list[Tab]:
    return [Tab(alias, name, f"person{number}") for number in range(count)]


def sweep_all(alias: str, count: int, batch: int = 100) -> None:
    """A fence that is ahead of the clock keeps its row, and SQLite counts milliseconds."""
    swept: list[int] = []
    eventually(lambda: swept.append(store.sweep(alias, 0, batch=batch)) or sum(swept) == count, "some stay")


def test_fences_rise_over_release_expiry_break_and_sweep(alias: str, name: str) -> None:
    """The first one is the clock's, so that it also rises where the row is gone; and JavaScript can count so far."""
    tabs = [Tab(alias, name, lease="the-same-id") for _ in range(5)]
    ends: list[Callable[[], object]] = [
        tabs[0].release,
        tabs[1].expire,
        lambda: store.break_lease(alias, name, tabs[2].fence),
        lambda: tabs[3].release() and sweep_all(alias, 1),
        lambda: None,
    ]
    for tab, end in zip(tabs, ends, strict=True):
        tab.take()
        end()
    fences = [tab.fence for tab in tabs]
    assert fences == sorted(set(fences))
    assert 1_700_000_000_000_000 < fences[0] < fences[-1] < 2**53
    with transaction.atomic(using=alias):
        assert [tab.lock() is None for tab in tabs] == [True] * 4 + [False]
    tabs[-1].release()
    write(alias, "UPDATE django_distlock_browserlock SET fence = fence + 100000000000")
    assert store.sweep(alias, 0) == 0  # else the next row of this name might begin below it


def test_a_lease_with_a_longest_hold_is_renewed_up_to_it(alias: str, name: str) -> None:
    ada = Tab(alias, name)
    assert ada.take(ttl=600, max_hold=50).expires_in <= 50
    assert getattr(ada.renew(600), "expires_in", 600) <= 50
    assert ada.take(ttl=600, max_hold=500).expires_in <= 50  # asked again: no new hold
    write(alias, "UPDATE django_distlock_browserlock SET ends_at = 5, expires_at = 5")
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
    store.break_lease(alias, name, bob.fence)
    assert reason(bob.renew()) == "broken"
    eve.take()
    eve.expire()
    assert reason(eve.renew()) == "expired"  # never prolonged: its tab has aborted by now
    assert not store.read(alias, [name])[name].held
    ada.take()
    assert [reason(tab.renew()) for tab in (eve, bob)] == ["expired", "taken"]  # the row remembers one lease
    ada.fence -= 1
    assert reason(ada.renew()) == "taken"
    ada.fence += 1
    assert not isinstance(ada.renew(), LeaseLost)


def test_what_one_user_has_is_listed_and_counted(alias: str) -> None:
    """A free name has no name of a person: those are personal data."""
    first, second, waiting = (Tab(alias, name) for name in "abc")
    Tab(alias, "c", "bob").take()
    for tab in (first, second, waiting):
        tab.ask()
    assert {row.name for row in store.held_by(alias, "user:ada")} == {"a", "b"}
    assert store.counts(alias, "user:ada") == (2, 1)
    write(alias, "UPDATE django_distlock_browserlock SET since = 1 WHERE name = 'c'")
    assert [row.label for row in store.held(alias, limit=1)] == ["Bob"]
    first.expire()
    waiting.miss()
    assert store.counts(alias, "user:ada") == (1, 0)
    first.release()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT principal, label, holder FROM django_distlock_browserlock WHERE name = 'a'")
        assert list(cursor.fetchall()) == [("", "", "")]


def test_sweeping_spares_what_is_held_and_what_was_lately(alias: str) -> None:
    Tab(alias, "a").take()
    Tab(alias, "a", "eve").wait()
    for number in range(3):
        gone, waiting = tabs_of(alias, f"n{number}", 2)
        gone.take()
        waiting.wait()
        waiting.miss()
        gone.release()
    assert store.sweep(alias, 3600) == 3  # dead tickets alone
    assert store.sweep(alias, 0, batches=0) == 0
    sweep_all(alias, 3, batch=2)
    assert [row.name for row in store.held(alias)] == ["a"]
    assert BrowserTicket.rows.using(alias).count() == 1


def test_names_and_users_are_compared_exactly(alias: str) -> None:
    """MariaDB's usual collation takes most of them for one."""
    names = ("Abc", "abc", "Abc ", "ABC", "Äbc", "äbc", "a\u0308bc")
    tabs = [Tab(alias, each, f"person of {each}") for each in names]
    for tab in tabs:
        tab.take()
    assert {row.name for row in store.held(alias)} == set(names)
    assert store.heads(alias, names) == {tab.name: Head(tab.holder, None) for tab in tabs}
    for other in ("user:person of abc", "user:person of Abc ", "user:person of Äbc"):
        assert not store.release(alias, tabs[0].lease, principal=other)
        assert store.lock_for_update(alias, *tabs[0].held, other) is None
        assert "Abc" not in {row.name for row in store.held_by(alias, other)}


def test_long_names_and_odd_labels_can_be_stored(alias: str) -> None:
    label, name = "a\0da\ud800" + "ä" * 300, "ä😀" * 256
    store.acquire(alias, name, lease=new_id(), principal="user:1", label=label, ttl=TTL, queue=True, interval=1)
    (row,) = store.held(alias)
    assert (row.name, row.label[:4], len(row.label)) == (name, "ada?", 255)


@pytest.mark.parametrize(
    "wrong",
    [{"lease": "x'; --"}, {"person": "p" * 256}, *({"name": each} for each in ("", "n" * 513, "a\0b", "\ud800"))],
)
def test_ids_names_and_principals_are_checked(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"lease must be|principal|name"):
        Tab(**{"alias": "default", "name": "a", **wrong}).ask()


# the queue; the machine has any order


def test_a_waiter_that_stops_asking_is_passed_over_and_comes_back_at_the_end(alias: str, name: str) -> None:
    """If it wakes up, the row decides: by tickets alone it would be the first again, beside the one that is in."""
    holder, sleeper, awake, last = tabs_of(alias, name, 4)
    holder.take()
    assert [tab.wait().place for tab in (sleeper, awake, last)] == [0, 1, 2]
    sleeper.miss()
    for _ in range(2):  # before it has a ticket again, and with it
        assert [tab.wait().place for tab in (awake, last, sleeper)] == [0, 1, 2]
    found = Tab(alias, name).wait(queue=False)
    assert (found.place, found.queued) == (3, False)
    sleeper.miss()
    holder.release()
    assert awake.take().fence > holder.fence
    assert (last.wait().place, sleeper.wait().place) == (0, 1)
    assert sleeper.wait().holder is not None
    awake.release()
    assert sleeper.wait().place == 1
    last.take()
    last.release()
    sleeper.take()
    assert not BrowserTicket.rows.using(alias).exists()


def test_a_ticket_is_for_one_name_and_lives_for_two_intervals(alias: str) -> None:
    """A client that uses an id for a second name gives up its place for the first."""
    for name, person in (("a", "bob"), ("b", "eve")):
        Tab(alias, name, person).take()
    Tab(alias, "b", "cy").wait()
    tab = Tab(alias, "a")
    assert tab.wait(interval=lambda place: 10 + place).interval == 10
    tab.name = "b"
    found = tab.wait(interval=lambda place: 10 + place)
    assert (found.place, found.interval) == (1, 11)
    ticket = BrowserTicket.rows.using(alias).get(lease=tab.lease)
    assert round((ticket.alive_until - ticket.arrived) / 1_000_000) == 23  # and a second
    assert store.counts(alias, tab.principal) == (0, 1)
    assert store.names_of(alias, tab.principal, [tab.lease]) == {tab.lease: ("b", False)}


def test_the_heads_of_many_queues_cost_one_statement(alias: str) -> None:
    names = [f"name{number}" for number in range(4)]
    holders = [Tab(alias, each, "holder") for each in names[:3]]
    waiting = [Tab(alias, each, f"person{number}") for each in names[:2] for number in range(2)]
    for tab in (*holders, *waiting):
        tab.ask()
    holders[0].release()
    waiting[2].miss()
    found: list[dict[str, Head]] = []
    assert len(statements_of(alias, lambda: found.append(store.heads(alias, names)))) == 1
    assert found[0] == {
        names[0]: Head("", waiting[0].holder, holders[0].lease, "released"),
        names[1]: Head(holders[1].holder, waiting[3].holder),
        names[2]: Head(holders[2].holder, None),
        names[3]: Head("", None),
    }
    assert store.heads(alias, []) == {}


def test_dead_tickets_are_cleared_away_while_the_name_is_held(alias: str, name: str) -> None:
    holder, waiting = tabs_of(alias, name, 2)
    holder.take()
    for _ in range(60):
        tab = Tab(alias, name, "many")
        tab.wait()
        tab.miss()
    waiting.wait()
    assert BrowserTicket.rows.using(alias).count() <= 51


# what others do between two statements


def test_a_name_that_is_given_back_while_it_is_asked_for(alias: str, name: str) -> None:
    """Between the refusal and the look at the row: it is asked for again at once."""
    holder, tab = tabs_of(alias, name, 2)
    holder.take()
    with after_statement(alias, "UPDATE", holder.release):
        tab.take()


@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
def test_two_that_make_the_row(alias: str, name: str) -> None:
    """Neither finds a row; the second one to insert it is refused."""
    first, second = tabs_of(alias, name, 2)
    with after_statement(alias, "UPDATE", first.take):
        assert second.wait().holder is not None


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_a_lease_that_is_lost_before_it_is_read_is_none(alias: str, name: str) -> None:
    """MariaDB reads the row by a second statement."""
    first, second = tabs_of(alias, name, 2)
    first.take()
    first.release()
    with after_statement(alias, "UPDATE", lambda: (first.expire(), second.take())):
        assert first.wait().holder is not None
