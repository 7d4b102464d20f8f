"""Acquire, wait in line, renew, release, break and sweep, on each database."""

from __future__ import annotations

import pytest
from django.db import connections, transaction

from django_distlock.browser import store
from django_distlock.browser.records import Head, LeaseLost, digest_of
from django_distlock.models import BrowserTicket
from tests.browserlocks.store.tabs import TTL, Tab, expire, new_id, write
from tests.conftest import eventually
from tests.support.places import after_statement, statements_of


def reason(found: object) -> str:
    assert isinstance(found, LeaseLost), found
    return found.reason


def tabs_of(alias: str, name: str, count: int) -> list[Tab]:
    return [Tab(alias, name, f"person{number}") for number in range(count)]


def tickets(alias: str) -> int:
    return int(BrowserTicket.rows.using(alias).count())


def sweep_all(alias: str, count: int, batch: int = 100) -> None:
    """A fence that is ahead of the clock keeps its row, and SQLite counts milliseconds."""
    swept = [0]

    def all_gone() -> bool:
        swept[0] += store.sweep(alias, 0, batch=batch)
        return swept[0] == count

    eventually(all_gone, "some stay")


def test_a_free_name_is_taken_and_others_see_who_has_it(alias: str, name: str) -> None:
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    held = ada.take(ttl=10)
    assert (held.name, held.lease, held.principal, held.label) == (name, ada.lease, "user:ada", "Ada")
    assert 5 < held.expires_in <= 10
    again = ada.take()  # the answer may have been lost; the same id has the same fence, prolonged
    assert (held.fence, held.since) == (again.fence, again.since)
    assert TTL - 5 < again.expires_in <= TTL
    found = bob.wait()
    assert found.holder is not None
    assert (found.holder.label, found.place, found.queued, found.crowded) == ("Ada", 0, True, False)
    assert store.read(alias, [name, "no such name"])[name].lease == ada.lease


def test_fences_rise_over_release_expiry_break_and_sweep(alias: str, name: str) -> None:
    """The first one is the clock's, so that it also rises where the row is gone; and JavaScript can count so far."""
    tabs = [Tab(alias, name, lease="the-same-id") for _ in range(5)]
    for tab, end in zip(tabs, ("release", "expire", "break", "sweep", "last"), strict=True):
        tab.take()
        if end in ("release", "sweep"):
            tab.release()
        if end == "expire":
            expire(alias, name)
        if end == "break":
            assert store.break_lease(alias, name, tab.fence) is not None
        if end == "sweep":
            sweep_all(alias, 1)
    fences = [tab.fence for tab in tabs]
    assert fences == sorted(set(fences))
    assert fences[0] > 1_700_000_000_000_000
    assert fences[-1] < 2**53
    with transaction.atomic(using=alias):
        assert [tab.lock() is None for tab in tabs] == [True] * 4 + [False]
    tabs[-1].release()
    write(alias, "UPDATE django_distlock_browserlock SET fence = fence + 100000000000")
    assert store.sweep(alias, 0) == 0  # else the next row of this name might begin below it


def test_a_lease_with_a_longest_hold_is_renewed_up_to_it(alias: str, name: str) -> None:
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    assert 4 < ada.take(ttl=60, max_hold=5).expires_in <= 5
    found = ada.renew(60)
    assert not isinstance(found, LeaseLost)
    assert found.expires_in <= 5
    assert ada.take(ttl=60, max_hold=500).expires_in <= 5  # asked again: no new hold
    write(alias, "UPDATE django_distlock_browserlock SET ends_at = 5, expires_at = 5")
    assert reason(ada.renew()) == "max_hold"
    bob.take()
    assert reason(ada.renew()) == "max_hold"


def test_why_a_lease_is_lost(alias: str, name: str) -> None:
    ada, bob, eve = Tab(alias, name), Tab(alias, name, "bob"), Tab(alias, name, "eve")
    assert reason(ada.renew()) == "expired"  # there is no row
    ada.take()
    ada.release()
    assert reason(ada.renew()) == "released"
    bob.take()
    store.break_lease(alias, name, bob.fence)
    assert reason(bob.renew()) == "broken"
    eve.take()
    expire(alias, name)
    assert reason(eve.renew()) == "expired"  # never prolonged: its tab has aborted by now
    assert not store.read(alias, [name])[name].held
    ada.take()
    assert reason(eve.renew()) == "expired"
    assert reason(bob.renew()) == "taken"  # the row remembers one lease
    stale, ada.fence = ada.fence, ada.fence - 1
    assert reason(ada.renew()) == "taken"
    ada.fence = stale
    assert not isinstance(ada.renew(), LeaseLost)


def test_the_id_of_another_user_opens_nothing(alias: str, name: str) -> None:
    ada, eve, bob = Tab(alias, name), Tab(alias, name, "eve"), Tab(alias, name, "bob")
    ada.take()
    eve.lease, eve.fence = ada.lease, ada.fence
    assert reason(eve.renew()) == "taken"
    assert not eve.release()
    assert eve.lock() is None
    assert eve.wait().holder is not None
    eve.leave()
    bob.wait()
    eve.lease = bob.lease
    eve.leave()
    eve.release()
    assert store.counts(alias, "user:bob") == (0, 1)
    assert store.read(alias, [name])[name].lease == ada.lease


def test_a_free_name_has_no_name_of_a_person(alias: str, name: str) -> None:
    """Names are personal data."""
    ada = Tab(alias, name)
    ada.take()
    expire(alias, name)
    ada.release()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT principal, label, holder FROM django_distlock_browserlock")
        assert list(cursor.fetchall()) == [("", "", "")]


def test_what_one_user_has_is_listed_and_counted(alias: str) -> None:
    first, second, waiting = Tab(alias, "a"), Tab(alias, "b"), Tab(alias, "c")
    Tab(alias, "c", "bob").take()
    first.take()
    second.take()
    waiting.wait()
    assert {row.name for row in store.held_by(alias, "user:ada")} == {"a", "b"}
    assert store.counts(alias, "user:ada") == (2, 1)
    assert {row.name for row in store.held(alias)} == {"a", "b", "c"}
    write(alias, "UPDATE django_distlock_browserlock SET since = 1 WHERE name = 'c'")
    assert [row.label for row in store.held(alias, limit=1)] == ["Bob"]
    expire(alias, "a")
    waiting.miss()
    assert store.counts(alias, "user:ada") == (1, 0)


def test_sweeping_spares_what_is_held_and_what_was_lately(alias: str) -> None:
    ada, eve = Tab(alias, "a"), Tab(alias, "a", "eve")
    ada.take()
    eve.wait()
    for number in range(3):
        gone, waiting = Tab(alias, f"n{number}"), Tab(alias, f"n{number}", "bob")
        gone.take()
        waiting.wait()
        waiting.miss()
        gone.release()
    assert store.sweep(alias, 3600) == 3  # dead tickets alone
    assert store.sweep(alias, 0, batches=0) == 0
    sweep_all(alias, 3, batch=2)
    assert [row.name for row in store.held(alias)] == ["a"]
    assert tickets(alias) == 1


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
        assert store.lock_for_update(alias, "Abc", tabs[0].lease, tabs[0].fence, other) is None
        assert "Abc" not in {row.name for row in store.held_by(alias, other)}


def test_ids_names_and_labels_are_checked() -> None:
    with pytest.raises(ValueError, match="lease must be"):
        Tab("default", "a", lease="x'; --").ask()
    with pytest.raises(ValueError, match="principal"):
        Tab("default", "a", "p" * 256).ask()
    for wrong in ("", "n" * 513, "a\0b", "\ud800"):
        with pytest.raises(ValueError, match="name"):
            Tab("default", wrong).ask()
    with pytest.raises(TypeError):
        digest_of(5)  # type: ignore[arg-type]


def test_long_names_and_odd_labels_can_be_stored(alias: str) -> None:
    label, name = "a\0da\ud800" + "ä" * 300, "ä😀" * 256
    store.acquire(alias, name, lease=new_id(), principal="user:1", label=label, ttl=TTL, queue=True, interval=1)
    (row,) = store.held(alias)
    assert row.name == name
    assert (row.label[:4], len(row.label)) == ("ada?", 255)


# the queue


def test_first_come_first_served(alias: str, name: str) -> None:
    holder, *waiting = tabs_of(alias, name, 4)
    newcomer = Tab(alias, name)
    holder.take()
    assert [tab.wait().place for tab in waiting] == [0, 1, 2]
    assert [tab.wait().place for tab in reversed(waiting)] == [2, 1, 0]
    holder.take()
    found = newcomer.wait(queue=False)
    assert (found.place, found.queued) == (3, False)
    while waiting:
        holder.release()
        for later in (*waiting[1:], newcomer):
            assert later.wait(queue=later is not newcomer).holder is None
        assert waiting[0].take().fence > holder.fence
        holder, *waiting = waiting
    holder.release()
    newcomer.take(queue=False)
    assert tickets(alias) == 0


def test_a_waiter_that_stops_asking_is_passed_over_and_comes_back_at_the_end(alias: str, name: str) -> None:
    """If it wakes up, the row decides: by tickets alone it would be the first again, beside the one that is in."""
    holder, sleeper, awake, last = tabs_of(alias, name, 4)
    holder.take()
    for tab in (sleeper, awake, last):
        tab.wait()
    sleeper.miss()
    for _ in range(2):  # before it has a ticket again, and with it
        assert [tab.wait().place for tab in (awake, last, sleeper)] == [0, 1, 2]
    sleeper.miss()
    holder.release()
    awake.take()
    assert (last.wait().place, sleeper.wait().place) == (0, 1)
    assert sleeper.wait().holder is not None
    awake.release()
    assert sleeper.wait().place == 1
    last.take()
    last.release()
    sleeper.take()


def test_a_ticket_lives_for_two_intervals_and_a_second(alias: str, name: str) -> None:
    holder, first, second = tabs_of(alias, name, 3)
    holder.take()
    assert first.wait(interval=lambda place: 10 + place).interval == 10
    found = second.wait(interval=lambda place: 10 + place)
    assert (found.place, found.interval) == (1, 11)
    ticket = BrowserTicket.rows.using(alias).get(lease=second.lease)
    assert round((ticket.alive_until - ticket.arrived) / 1_000_000) == 23


def test_a_ticket_is_for_one_name(alias: str) -> None:
    """A client that uses an id for a second name gives up its place for the first."""
    blocker, other, tab = Tab(alias, "a", "bob"), Tab(alias, "b", "eve"), Tab(alias, "a")
    blocker.take()
    other.take()
    tab.wait()
    tab.name = "b"
    tab.wait()
    assert store.counts(alias, tab.principal) == (0, 1)
    assert store.names_of(alias, tab.principal, [tab.lease]) == {tab.lease: ("b", False)}


def test_the_heads_of_many_queues_cost_one_statement(alias: str) -> None:
    names = [f"name{number}" for number in range(4)]
    holders = [Tab(alias, each, "holder") for each in names[:3]]
    for holder in holders:
        holder.take()
    waiting = [Tab(alias, each, f"person{number}") for each in names[:2] for number in range(2)]
    for tab in waiting:
        tab.wait()
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
    assert tickets(alias) <= 51


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

    def meanwhile() -> None:
        expire(alias, name)
        second.take()

    with after_statement(alias, "UPDATE", meanwhile):
        assert first.wait().holder is not None
