"""Claim, adopt, renew, take over, release and read, on each database."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from django_distlock.concurrency import clock
from django_distlock.editing.records import EditLease
from django_distlock.editing.resources import resource_of
from django_distlock.leases import rows, upkeep
from django_distlock.leases.records import Busy, Lost, Resource
from django_distlock.storage.dialect import contended
from tests.browserlocks.store.tabs import Tab
from tests.editing.store.desks import TTL, Desk, expire, make_article, new_id
from tests.support.places import READ_COMMITTED, Place, after_statement, at_the_side, isolate, statements_of

if TYPE_CHECKING:
    from collections.abc import Callable

on_servers = pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
on_postgres = pytest.mark.parametrize("alias", ["postgres"], indirect=True)


@pytest.fixture
def resource(alias: str) -> Resource:
    return resource_of(make_article(alias))


def row_of(resource: Resource) -> EditLease:
    return rows.read([resource])[resource.digest]


def test_the_life_of_an_object(dialect: str) -> None:
    resource, ada, bob = resource_of(make_article(dialect)), Desk("ada"), Desk("bob")
    ada.claim(resource)
    assert isinstance(ada.renew(resource), EditLease)
    assert isinstance(bob.claim(resource), Busy)
    ada.release(resource, 60)
    assert isinstance(ada.adopt(resource), EditLease)
    assert upkeep.break_lease(resource) is not None
    assert ada.renew(resource).reason == "broken"
    with transaction.atomic(using=dialect):
        rows.lock([resource])
        rows.wrote([resource], ada.owner, lease=ada.lease, ttl=60)
        if dialect != "default":
            at_the_side(Place(dialect, READ_COMMITTED), lambda: bob.claim(resource))
    assert [row.lease for row in upkeep.held(dialect, of_objects=True, model="articles.article", limit=5)] == [
        ada.lease
    ]
    assert upkeep.sweep(dialect, 0, of_objects=True) == 0
    assert bob.take_over(resource).lease == bob.lease
    assert (ada.renew(resource).reason, ada.renew(resource).by) == ("taken_over", "Bob")


def test_e1_e11_claims(resource: Resource) -> None:
    first, second, lease = Desk("ada"), Desk("ada"), new_id()
    held = rows.take("claim", resource, first.owner, lease, TTL)
    again = rows.take("claim", resource, first.owner, lease, TTL)  # the answer was lost
    assert (held.lease, held.fence, held.since) == (again.lease, again.fence, again.since)
    found = Desk("bob").claim(resource)
    assert (found.own, found.saving, found.holder.label) == (False, False, "Ada")
    assert 0 < found.holder.expires_in <= TTL
    assert second.claim(resource).fence > held.fence  # another tab of the same person
    lost = rows.renew(resource, lease, TTL)
    assert (lost.reason, lost.by) == ("other_tab", "Ada")


def test_a_stolen_id_is_no_lease_of_another_person(resource: Resource) -> None:
    ada, eve = Desk("ada"), Desk("eve")
    ada.claim(resource)
    eve.lease = ada.lease
    assert isinstance(eve.renew(resource), Lost)
    assert isinstance(eve.adopt(resource), Busy)
    assert isinstance(rows.take("claim", resource, eve.owner, ada.lease, TTL), Busy)
    eve.release(resource)
    assert row_of(resource).held


def test_e12_beats_and_pages_that_go_and_come_back(resource: Resource) -> None:
    ada, bob = Desk("ada"), Desk("bob")
    ada.claim(resource)
    expire(resource)
    assert 120 <= rows.renew(resource, ada.lease, TTL, idle=120).idle < 300, "it is not revived"
    ada.release(resource, reserve=60)
    assert 0 < bob.claim(resource).holder.expires_in <= 60
    assert ada.renew(resource).reason == "released"  # a beat that was under way
    assert row_of(resource).expires_in <= 60
    before = ada.lease
    assert isinstance(ada.adopt(resource), EditLease)
    assert row_of(resource).expires_in > 60
    rows.release(resource, before, principal=ada.owner.principal)  # late, and frees nothing
    assert row_of(resource).held
    assert isinstance(rows.renew(resource, before, TTL), Lost)
    expire(resource)
    bob.claim(resource)
    lost = ada.renew(resource)
    assert (lost.reason, lost.by) == ("expired", "Bob")


def test_e1_what_a_claim_and_a_beat_cost(resource: Resource) -> None:
    """One statement each; MariaDB does not return the row from it. A second one reads who holds it."""
    ada, alias = Desk("ada"), resource.database
    ada.claim(resource)
    ada.release(resource)
    assert len(statements_of(alias, lambda: ada.claim(resource))) == (2 if alias == "mariadb" else 1)
    assert len(statements_of(alias, lambda: Desk("bob").claim(resource))) <= (3 if alias == "postgres" else 2)
    expected = ["SET", "SELECT"] if alias == "mariadb" else ["UPDATE"]
    assert statements_of(alias, lambda: ada.renew(resource)) == expected
    assert statements_of(alias, lambda: rows.read([resource])) == ["SELECT"]


def test_no_one_is_told_held_by_you_if_it_changes_hands_meanwhile(resource: Resource) -> None:
    """Bob gives it back after the claim was refused, and another tab of the same person takes it before it is read."""
    first, second, bob = Desk("ada"), Desk("ada"), Desk("bob")
    bob.claim(resource)
    with after_statement(resource.database, "UPDATE", lambda: (bob.release(resource), first.claim(resource))):
        found = second.claim(resource)
    assert found.lease == second.lease


@on_servers
def test_e9_a_save_in_progress_keeps_nobody_waiting(resource: Resource) -> None:
    """Not a beat, and not a claim, whether the row is there yet or not."""
    fresh = resource_of(make_article(resource.database))
    ada, bob, place = Desk("ada"), Desk("bob"), Place(resource.database, READ_COMMITTED)
    ada.claim(resource)

    def ask() -> tuple[Any, ...]:
        return ada.renew(resource), bob.claim(resource), Desk("ada").claim(resource), bob.claim(fresh)

    with transaction.atomic(using=resource.database):
        rows.lock([resource, fresh])
        beat, busy, own, of_fresh = at_the_side(place, ask)
    assert (beat.saving, beat.held) == (True, True)
    assert isinstance(busy, Busy)
    assert own.saving
    assert (of_fresh.saving, of_fresh.holder) == (True, None)


@on_servers
@pytest.mark.tier2
def test_a_release_during_a_short_save_is_carried_out(resource: Resource) -> None:
    """It asks again for a second."""
    ada, place = Desk("ada"), Place(resource.database, READ_COMMITTED)
    ada.claim(resource)
    with transaction.atomic(using=resource.database):
        rows.lock([resource])
        thread = threading.Thread(target=at_the_side, args=(place, lambda: ada.release(resource)))
        thread.start()
        thread.join(0.1)
    thread.join(30)
    assert not row_of(resource).held


@pytest.mark.parametrize("alias", ["default"], indirect=True)
def test_beside_a_long_writer_of_sqlite_nothing_is_tried_for_minutes(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement that writes waits for the busy timeout of the driver: it is not sent ten times."""
    ada, bob, fresh, sent = Desk("ada"), Desk("bob"), resource_of(make_article("default")), []
    ada.claim(resource)
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + 5 * len(sent))

    def locked(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.split(None, 1)[0] in ("UPDATE", "INSERT"):
            sent.append(sql)
            raise OperationalError("database is locked")
        return execute(sql, *rest)

    def sent_by(work: Callable[[], Any]) -> int:
        sent.clear()
        work()
        return len(sent)

    with connections["default"].execute_wrapper(locked):
        assert sent_by(lambda: bob.claim(fresh)) <= 2  # there is no row yet
        assert sent_by(lambda: ada.claim(resource)) == 1
        assert sent_by(lambda: ada.release(resource)) == 1
        assert sent_by(Tab("default", "cart:5").wait) <= 3  # neither a row nor a ticket


@on_servers
def test_e4_rows_are_locked_in_one_order(alias: str) -> None:
    """Saves of the same objects, named in different orders: none ends in a deadlock."""
    resources = [resource_of(make_article(alias)) for _ in range(4)]
    errors: list[BaseException] = []
    together = threading.Barrier(4)

    def save(number: int) -> None:
        try:
            isolate(Place(alias, READ_COMMITTED))
            together.wait(30)
            for _ in range(10):
                with transaction.atomic(using=alias):
                    rows.lock(resources[number:] + resources[:number])
        except BaseException as error:
            if not contended(error) or "deadlock" in str(error).lower():
                errors.append(error)
        finally:
            connections[alias].close()

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
