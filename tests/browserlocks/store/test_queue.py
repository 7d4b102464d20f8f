"""First come, first served; a waiter that stops asking is passed over."""

from __future__ import annotations

import time

import pytest
from django.db import connections

from django_distlock.browser import store
from django_distlock.browser.records import Head
from tests.browserlocks.store.tabs import Tab, expire
from tests.conftest import eventually
from tests.support.places import after_statement, statements_of
from tests.support.timing import within


def tabs_of(alias: str, name: str, count: int) -> list[Tab]:
    return [Tab(alias, name, f"person{number}") for number in range(count)]


def test_first_come_first_served(alias: str, name: str) -> None:
    holder, *waiting = tabs_of(alias, name, 6)
    holder.take()
    assert [tab.wait().place for tab in waiting] == [0, 1, 2, 3, 4]
    assert [tab.wait().place for tab in reversed(waiting)] == [4, 3, 2, 1, 0]
    while waiting:
        holder.release()
        for later in waiting[1:]:
            assert later.wait().holder is None
        assert waiting[0].take().fence > holder.fence
        holder, *waiting = waiting
        assert [tab.wait().place for tab in waiting] == list(range(len(waiting)))


def test_a_newcomer_does_not_pass_the_queue(alias: str, name: str) -> None:
    holder, first, newcomer = tabs_of(alias, name, 3)
    holder.take()
    first.wait()
    holder.release()
    assert newcomer.wait(queue=False).place == 1
    assert newcomer.wait().place == 1
    first.take()


def test_if_available_keeps_no_ticket(alias: str, name: str) -> None:
    holder, other, third = tabs_of(alias, name, 3)
    holder.take()
    found = other.wait(queue=False)
    assert (found.queued, found.place) == (False, 0)
    assert store.counts(alias, other.principal) == (0, 0)
    holder.release()
    third.take(queue=False)


def test_a_waiter_that_stops_asking_is_passed_over_and_comes_back_at_the_end(alias: str, name: str) -> None:
    holder, sleeper, awake, last = tabs_of(alias, name, 4)
    holder.take()
    for tab in (sleeper, awake, last):
        tab.wait()
    sleeper.miss()
    holder.release()
    awake.take()
    assert (last.wait().place, sleeper.wait().place) == (0, 1)
    awake.release()
    assert sleeper.wait().place == 1
    last.take()
    last.release()
    sleeper.take()


def test_a_passed_over_waiter_that_wakes_up_does_not_get_in(alias: str, name: str) -> None:
    """The row decides: tickets alone let two in, see test_naive."""
    holder, sleeper, awake = tabs_of(alias, name, 3)
    holder.take()
    sleeper.wait()
    awake.wait()
    sleeper.miss()
    holder.release()
    awake.take()
    assert sleeper.wait().holder is not None


@pytest.mark.tier2
def test_a_ticket_lives_for_two_intervals_and_a_second(alias: str, name: str) -> None:
    holder, waiting = tabs_of(alias, name, 2)
    holder.take()
    began = time.monotonic()
    waiting.wait(interval=0.1)
    eventually(lambda: store.counts(alias, waiting.principal) == (0, 0), "it lives on")
    within(time.monotonic() - began, 5, least=1.2)


def test_the_interval_follows_from_the_place(alias: str, name: str) -> None:
    holder, first, second = tabs_of(alias, name, 3)
    holder.take()
    assert first.wait(interval=lambda place: 10 + place).interval == 10
    found = second.wait(interval=lambda place: 10 + place)
    assert (found.place, found.interval) == (1, 11)


def test_the_holder_asks_again_though_others_wait(alias: str, name: str) -> None:
    holder, waiting = tabs_of(alias, name, 2)
    fence = holder.take().fence
    waiting.wait()
    assert holder.take().fence == fence
    expire(alias, name)
    assert holder.wait().place == 1  # its hold has ended: it queues like the others
    waiting.take()


def test_a_ticket_is_for_one_name(alias: str) -> None:
    """A client that uses an id for a second name gives up its place for the first."""
    blocker, other, tab = Tab(alias, "a", "bob"), Tab(alias, "b", "eve"), Tab(alias, "a")
    blocker.take()
    other.take()
    tab.wait()
    tab.name = "b"
    tab.wait()
    assert store.counts(alias, tab.principal) == (0, 1)
    assert store.heads(alias, ["a", "b"]) == {
        "a": Head(blocker.holder, None),
        "b": Head(other.holder, tab.holder),
    }
    assert store.names_of(alias, tab.principal, [tab.lease]) == {tab.lease: ("b", False)}


def test_the_heads_of_many_queues_cost_one_statement(alias: str) -> None:
    names = [f"name{number}" for number in range(5)]
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
        names[4]: Head("", None),
    }
    assert store.heads(alias, []) == {}


def tickets(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM django_distlock_browserticket")
        return int(cursor.fetchone()[0])


def test_the_ticket_goes_with_the_grant_and_dead_ones_go_too(alias: str, name: str) -> None:
    holder, gone, waiting = tabs_of(alias, name, 3)
    holder.take()
    gone.wait()
    waiting.wait()
    gone.miss()
    holder.release()
    waiting.take()
    assert tickets(alias) == 0


def test_many_dead_tickets_are_cleared_away_while_the_name_is_held(alias: str, name: str) -> None:
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
