"""Claim, adopt, renew, take over, release and read, on each database."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import connections, transaction

from django_distlock import BackendUnavailable
from django_distlock.editing import store
from django_distlock.editing.records import Busy, EditLease, Lost, Owner, Resource
from django_distlock.editing.resources import resource_of
from django_distlock.editing.signals import edit_broken, edit_taken_over
from django_distlock.storage.dialect import contended
from tests.conftest import eventually
from tests.editing.store.desks import TTL, Desk, expire, make_article, new_id
from tests.support.places import Place, after_statement, at_the_side, end_session, isolate, statements_of


@pytest.fixture
def resource(alias: str) -> Resource:
    return resource_of(make_article(alias))


def row_of(resource: Resource) -> EditLease:
    return store.read([resource])[resource.digest]


def test_a_claim_is_refused_with_the_name_of_the_holder(resource: Resource) -> None:
    assert isinstance(Desk("ada").claim(resource), EditLease)
    found = Desk("bob").claim(resource)
    assert isinstance(found, Busy)
    assert not found.own
    assert not found.saving
    assert found.holder is not None
    assert found.holder.editor is not None
    assert found.holder.editor.label == "Ada"
    assert TTL - 5 < found.holder.expires_in <= TTL


def test_a_claim_whose_answer_was_lost_is_repeated(resource: Resource) -> None:
    """The same id: the same lease, the same fence."""
    ada, lease = Desk("ada"), new_id()
    first = store.claim(resource, ada.owner, lease, TTL)
    again = store.claim(resource, ada.owner, lease, TTL)
    assert isinstance(first, EditLease)
    assert isinstance(again, EditLease)
    assert (first.lease, first.fence, first.since) == (again.lease, again.fence, again.since)


def test_another_tab_of_the_same_person_takes_it_and_the_first_is_told(resource: Resource) -> None:
    first, second = Desk("ada"), Desk("ada")
    held = first.claim(resource)
    taken = second.claim(resource)
    assert taken.fence > held.fence
    lost = first.renew(resource)
    assert isinstance(lost, Lost)
    assert (lost.reason, lost.by) == ("other_tab", "Ada")
    assert isinstance(second.renew(resource), EditLease)


def test_to_adopt_takes_it_from_no_other_tab(resource: Resource) -> None:
    first, second = Desk("ada"), Desk("ada")
    first.claim(resource)
    found = second.adopt(resource)
    assert isinstance(found, Busy)
    assert found.own
    assert isinstance(first.renew(resource), EditLease)


def test_to_adopt_changes_the_id_so_that_a_late_release_frees_nothing(resource: Resource) -> None:
    ada = Desk("ada")
    ada.claim(resource)
    before = ada.lease
    assert isinstance(ada.adopt(resource), EditLease)
    store.release(resource, before, principal=ada.owner.principal)
    assert row_of(resource).held
    assert isinstance(store.renew(resource, before, TTL), Lost)


def test_a_stolen_id_is_no_lease_of_another_person(resource: Resource) -> None:
    ada, eve = Desk("ada"), Desk("eve")
    ada.claim(resource)
    eve.lease = ada.lease
    assert isinstance(eve.renew(resource), Lost)
    assert isinstance(eve.adopt(resource), Busy)
    assert isinstance(store.claim(resource, eve.owner, ada.lease, TTL), Busy)
    eve.lease = ada.lease
    eve.release(resource)
    assert row_of(resource).held


def test_a_beat_revives_an_expired_lease_but_takes_none(resource: Resource) -> None:
    ada, bob = Desk("ada"), Desk("bob")
    ada.claim(resource)
    expire(resource)
    assert isinstance(ada.renew(resource), EditLease)
    expire(resource)
    bob.claim(resource)
    lost = ada.renew(resource)
    assert isinstance(lost, Lost)
    assert (lost.reason, lost.by) == ("expired", "Bob")


def test_a_beat_tells_how_long_nothing_was_typed(resource: Resource) -> None:
    ada = Desk("ada")
    ada.claim(resource)
    found = store.renew(resource, ada.lease, TTL, idle=120)
    assert isinstance(found, EditLease)
    assert 120 <= found.idle < 125


def test_a_page_that_goes_keeps_it_for_its_tab_for_some_seconds(resource: Resource) -> None:
    ada, bob = Desk("ada"), Desk("bob")
    ada.claim(resource)
    ada.release(resource, reserve=5)
    assert isinstance(found := bob.claim(resource), Busy)
    assert found.holder is not None
    assert 0 < found.holder.expires_in <= 5
    lost = ada.renew(resource)  # a beat that was under way
    assert isinstance(lost, Lost)
    assert lost.reason == "released"
    assert row_of(resource).expires_in <= 5
    assert isinstance(ada.adopt(resource), EditLease)
    assert row_of(resource).expires_in > 5


def test_a_release_of_nothing_changes_nothing(resource: Resource) -> None:
    store.release(resource, "no-such-lease")
    assert store.read([resource]) == {}
    Desk("ada").claim(resource)
    store.release(resource, "no-such-lease", 5)
    assert row_of(resource).held


def test_a_free_object_has_no_name_of_anybody(resource: Resource) -> None:
    """Names are personal data."""
    ada = Desk("ada")
    ada.claim(resource)
    ada.release(resource)
    with connections[resource.database].cursor() as cursor:
        cursor.execute("SELECT principal, tab, label FROM django_distlock_editlease")
        assert cursor.fetchall() in ([("", "", "")], (("", "", ""),))


def test_a_takeover_raises_the_fence_and_is_told_to_all_sides(resource: Resource) -> None:
    ada, boss = Desk("ada"), Desk("boss")
    held = ada.claim(resource)
    heard: list[dict[str, Any]] = []

    def hear(**told: Any) -> None:
        heard.append(told)

    edit_taken_over.connect(hear)
    try:
        taken = boss.take_over(resource)
    finally:
        edit_taken_over.disconnect(hear)
    assert taken.fence > held.fence
    lost = ada.renew(resource)
    assert isinstance(lost, Lost)
    assert (lost.reason, lost.by) == ("taken_over", "Boss")
    assert heard[0]["before"].owner.label == "Ada"
    assert heard[0]["reason"] == "it is urgent"


def test_an_operator_ends_it(resource: Resource) -> None:
    ada = Desk("ada")
    ada.claim(resource)
    heard: list[dict[str, Any]] = []

    def hear(**told: Any) -> None:
        heard.append(told)

    edit_broken.connect(hear)
    try:
        assert store.break_lease(resource, "gone home") is not None
        assert store.break_lease(resource) is None
    finally:
        edit_broken.disconnect(hear)
    lost = ada.renew(resource)
    assert isinstance(lost, Lost)
    assert lost.reason == "broken"
    assert [told["reason"] for told in heard] == ["gone home"]


def test_ids_are_checked() -> None:
    with pytest.raises(ValueError, match="lease must be"):
        store.claim(Resource("default", "a.b", "1"), Desk("ada").owner, "x'; --", TTL)
    with pytest.raises(ValueError, match="tab must be"):
        Owner(principal="user:1", tab="ä" * 10, label="Ada")
    with pytest.raises(ValueError, match="principal"):
        Owner(principal="p" * 256, tab=new_id(), label="Ada")


def test_labels_are_cut_and_cleaned(resource: Resource) -> None:
    owner = Owner(principal="user:1", tab=new_id(), label="A\0da\ud800" + "ä" * 300)
    found = store.claim(resource, owner, new_id(), TTL)
    assert isinstance(found, EditLease)
    assert found.owner is not None
    assert found.owner.label.startswith("Ada?ä")
    assert len(found.owner.label) == 255


@pytest.mark.parametrize("keys", [("Abc", "abc", "Abc ", "ABC", "Äbc", "äbc", "a\u0308bc")], ids=["abc"])
def test_keys_are_compared_exactly(alias: str, keys: tuple[str, ...]) -> None:
    """MariaDB's usual collation takes most of them for one."""
    resources = [Resource(alias, "auth.thing", key) for key in keys]
    for number, resource in enumerate(resources):
        assert isinstance(Desk(f"person{number}").claim(resource), EditLease)
    found = store.read(resources)
    assert len(found) == len(keys)
    assert {row.resource.pk for row in store.held(alias)} == set(keys)


def test_the_clock_does_not_stand_still_in_a_transaction(alias: str) -> None:
    """The ``now()`` of a transaction is that of its start."""
    resource, ada = resource_of(make_article(alias)), Desk("ada")
    with transaction.atomic(using=alias):
        assert isinstance(store.claim(resource, ada.owner, new_id(), 0.3), EditLease)
        eventually(lambda: not row_of(resource).held, "the lease does not end within the transaction")


def test_times_do_not_depend_on_the_time_zone_of_the_session(alias: str) -> None:
    resource = resource_of(make_article(alias))
    Desk("ada").claim(resource)
    connection = connections[alias]
    zones = {
        "postgresql": ("SET TIME ZONE 'Pacific/Apia'", "SET TIME ZONE 'UTC'"),
        "mysql": ("SET time_zone = '+13:00'", "SET time_zone = '+00:00'"),
    }
    for setting in zones.get(connection.vendor, ()):
        with connection.cursor() as cursor:
            cursor.execute(setting)
        assert TTL - 10 < row_of(resource).expires_in <= TTL


def test_what_a_beat_costs(resource: Resource) -> None:
    """One UPDATE; MariaDB does not return the row from it."""
    ada, alias = Desk("ada"), resource.database
    ada.claim(resource)
    expected = ["SET", "SELECT"] if alias == "mariadb" else ["UPDATE"]
    assert statements_of(alias, lambda: ada.renew(resource)) == expected
    assert statements_of(alias, lambda: store.read([resource])) == ["SELECT"]


def test_what_a_claim_costs(resource: Resource) -> None:
    """One statement claims; a second one reads who holds it."""
    ada, bob, alias = Desk("ada"), Desk("bob"), resource.database
    ada.claim(resource)
    ada.release(resource)
    assert len(statements_of(alias, lambda: ada.claim(resource))) == (2 if alias == "mariadb" else 1)
    assert len(statements_of(alias, lambda: bob.claim(resource))) <= (3 if alias == "postgres" else 2)


def test_no_one_is_told_held_by_you_if_it_changes_hands_meanwhile(resource: Resource) -> None:
    """Bob gives it back after the claim was refused, and another tab of the same person takes it before it is read."""
    first, second, bob = Desk("ada"), Desk("ada"), Desk("bob")
    bob.claim(resource)

    def meanwhile() -> None:
        bob.release(resource)
        first.claim(resource)

    with after_statement(resource.database, "UPDATE", meanwhile):
        found = second.claim(resource)
    assert isinstance(found, EditLease)
    assert found.lease == second.lease


@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
def test_a_lease_that_is_lost_at_once_is_none(resource: Resource) -> None:
    """MariaDB reads the row by a second statement: it may be that of another holder."""
    ada, bob = Desk("ada"), Desk("bob")
    ada.claim(resource)
    ada.release(resource)
    with after_statement(resource.database, "UPDATE", lambda: bob.take_over(resource)):
        found = ada.claim(resource)
    if isinstance(found, EditLease):
        assert found.lease == ada.lease
    else:
        assert found.holder is not None
        assert found.holder.lease == bob.lease
    assert row_of(resource).lease == bob.lease


@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
def test_a_save_in_progress_keeps_nobody_waiting(resource: Resource) -> None:
    """Not a beat, and not a claim, whether the row is there yet or not."""
    fresh = resource_of(make_article(resource.database))
    ada, bob, place = Desk("ada"), Desk("bob"), Place(resource.database, "READ COMMITTED")
    ada.claim(resource)
    found: dict[str, Any] = {}

    def ask() -> None:
        found["beat"] = ada.renew(resource)
        found["claim"] = bob.claim(resource)
        found["own"] = Desk("ada").claim(resource)
        found["fresh"] = bob.claim(fresh)

    with transaction.atomic(using=resource.database):
        store.lock([resource, fresh])
        at_the_side(place, ask)
    assert (found["beat"].saving, found["beat"].held) == (True, True)
    assert isinstance(found["claim"], Busy)
    assert found["own"].saving
    assert found["fresh"].saving
    assert found["fresh"].holder is None


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_on_a_mysql_without_the_statements_of_mariadb(resource: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    """No SET STATEMENT, no RETURNING: the same answers."""
    connection: Any = connections["mariadb"]
    fresh, ada, bob = resource_of(make_article("mariadb")), Desk("ada"), Desk("bob")
    monkeypatch.setattr(connection, "mysql_is_mariadb", False)
    monkeypatch.setattr(connection.features, "can_return_columns_from_insert", False)
    assert not connection.features.can_return_rows_from_bulk_insert
    assert isinstance(ada.claim(resource), EditLease)
    assert isinstance(ada.renew(resource), EditLease)
    assert isinstance(bob.claim(resource), Busy)
    assert isinstance(bob.take_over(resource), EditLease)
    begun, end = threading.Event(), threading.Event()

    def save() -> None:
        with transaction.atomic(using="mariadb"):
            assert set(store.lock([resource, fresh])) == {resource.digest, fresh.digest}
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=at_the_side, args=(Place("mariadb", "READ COMMITTED"), save))
    thread.start()
    try:
        assert begun.wait(10)
        assert bob.renew(resource).saving
        assert Desk("bob").claim(resource).saving
        assert ada.claim(fresh).saving
    finally:
        end.set()
        thread.join(10)
    with transaction.atomic(using="mariadb"):
        found = store.lock([resource, fresh])
        assert found[resource.digest].lease == bob.lease
        store.wrote([resource, fresh], "Bob")


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_with_parameters_that_are_bound_by_the_server(resource: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Any = connections["postgres"]
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    connection.close()
    try:
        ada, bob = Desk("ada"), Desk("bob")
        assert isinstance(ada.claim(resource), EditLease)
        assert isinstance(ada.renew(resource), EditLease)
        assert isinstance(bob.claim(resource), Busy)
        ada.release(resource, 5)
        assert isinstance(ada.adopt(resource), EditLease)
        assert store.held_by(ada.owner.principal, "postgres", ["x"]) == 1
        assert store.break_lease(resource) is not None
        with transaction.atomic(using="postgres"):
            store.lock([resource])
            store.wrote([resource], "Ada", owner=ada.owner, lease=ada.lease, ttl=5, reserve=True)
        assert store.held("postgres", "articles.article", 5)
        assert store.sweep("postgres", 0) == 0
    finally:
        connection.close()


@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
def test_a_release_during_a_short_save_is_carried_out(resource: Resource) -> None:
    ada, place = Desk("ada"), Place(resource.database, "READ COMMITTED")
    ada.claim(resource)
    with transaction.atomic(using=resource.database):
        store.lock([resource])
        thread = threading.Thread(target=at_the_side, args=(place, lambda: ada.release(resource)))
        thread.start()
        thread.join(0.1)
    thread.join(10)
    assert not row_of(resource).held


def test_rows_are_locked_in_one_order(place: Place) -> None:
    """Saves of the same objects, named in different orders: none ends in a deadlock."""
    resources = [resource_of(make_article(place.alias)) for _ in range(4)]
    errors: list[BaseException] = []
    together = threading.Barrier(4)

    def save(number: int) -> None:
        try:
            isolate(place)
            together.wait(10)
            for _ in range(10):
                with transaction.atomic(using=place.alias):
                    store.lock(resources[number:] + resources[:number])
        except BaseException as error:
            if not contended(error) or "deadlock" in str(error).lower():
                errors.append(error)
        finally:
            connections[place.alias].close()

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
def test_a_lost_connection_is_an_error_that_says_so_and_the_next_call_works(resource: Resource) -> None:
    ada, alias = Desk("ada"), resource.database
    ada.claim(resource)
    end_session(alias)
    with pytest.raises(BackendUnavailable) as caught:
        ada.renew(resource)
    assert caught.value.__cause__ is not None
    connections[alias].close_if_unusable_or_obsolete()
    assert isinstance(ada.renew(resource), EditLease)


def test_sweeping_spares_what_a_form_may_come_back_to(resource: Resource) -> None:
    ada = Desk("ada")
    ada.claim(resource)
    assert store.sweep(resource.database, 0) == 0
    ada.release(resource)
    assert store.sweep(resource.database, 3600) == 0
    assert store.sweep(resource.database, 0) == 1
    assert store.read([resource]) == {}


def test_sweeping_spares_what_was_written_lately(resource: Resource) -> None:
    """A form from before the write must be refused, also if the lease of the row has run out long ago."""
    ada = Desk("ada")
    ada.claim(resource)
    expire(resource)
    assert store.count_write(resource, "a command")
    assert store.sweep(resource.database, 3600) == 0
    assert row_of(resource).changed_by == "a command"


def test_fences_rise_also_over_a_sweep(resource: Resource) -> None:
    ada = Desk("ada")
    fences = []
    for _ in range(3):
        fences.append(ada.claim(resource).fence)
        ada.release(resource)
        fences.append(ada.claim(resource).fence)
        ada.release(resource)
        store.sweep(resource.database, 0)
        # SQLite counts milliseconds; a row is swept days after its last use
        eventually(lambda: time.time() * 1_000_000 > fences[-1] + 2_000, "the clock stands still")
    assert fences == sorted(set(fences))


def test_leases_of_one_person_are_counted(resource: Resource) -> None:
    ada, other = Desk("ada"), resource_of(make_article(resource.database))
    ada.claim(resource)
    ada.claim(other)
    Desk("bob").claim(resource_of(make_article(resource.database)))
    assert store.held_by(ada.owner.principal, resource.database) == 2
    assert store.held_by(ada.owner.principal, resource.database, [other.digest]) == 1
