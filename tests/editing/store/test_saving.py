"""The write rule beyond its histories: what a save costs, what it sees, and how it fails."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError

from django_distlock.editing import store
from django_distlock.editing.grants import EditGrant, open_grant
from django_distlock.editing.records import EditConflict
from django_distlock.editing.resources import resource_of
from django_distlock.editing.saving import saving
from django_distlock.editing.signals import edit_refused
from django_distlock.editing.versions import Inline
from testproject.articles.models import Source
from tests.data.app.models import Course, Restaurant, Student
from tests.editing.store.desks import Desk, hearing, make_article, text_of, until_somebody_waits, write_behind
from tests.support.places import REPEATABLE_READ, Place, at_the_side, statements_of

every_server = pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
on_sqlite = pytest.mark.parametrize("alias", ["default"], indirect=True)
SOURCES = Inline(model="articles.source", fk="article", fields=("name",))


def refused(desk: Desk) -> EditConflict:
    with pytest.raises(EditConflict) as caught:
        desk.save("mine")
    return caught.value


def opened(desk: Desk, obj: Any, **options: Any) -> EditGrant:
    found = open_grant([resource_of(obj)], principal=desk.owner.principal, **options)
    return found.grant


# what other writers do


@every_server
def test_the_write_rule_makes_the_other_writer_wait(alias: str) -> None:
    """A command that knows no edit locks waits for the end of the save, and nothing is lost."""
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)
    place = Place(alias, "READ COMMITTED")
    thread = threading.Thread(target=at_the_side, args=(place, lambda: write_behind(article, "theirs")))

    def meanwhile(save: object) -> None:
        thread.start()
        until_somebody_waits(alias)

    ada.save("mine", meanwhile)
    thread.join(30)
    assert text_of(article) == "0;mine;theirs"


def test_a_save_on_sqlite_has_the_write_lock_before_it_reads(databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the settings say DEFERRED, which would end with "database is locked" at once."""
    article, ada = make_article("default"), Desk("ada")
    monkeypatch.setattr(connections["default"], "transaction_mode", "DEFERRED")
    ada.open(article)
    name = connections["default"].settings_dict["NAME"]
    other = sqlite3.connect(name, timeout=0, isolation_level=None)

    def meanwhile(save: object) -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("UPDATE articles_article SET title = 'theirs' WHERE id = ?", [article.pk])

    try:
        ada.save("mine", meanwhile)
        assert text_of(article) == "0;mine"
        assert connections["default"].transaction_mode == "DEFERRED"  # type: ignore[attr-defined]
    finally:
        other.close()
        article.delete()


# what is seen, and what is locked


@on_sqlite
def test_inline_rows_are_part_of_the_version(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    source = Source.objects.using(alias).create(article=article, name="a")
    for change in (
        lambda: Source.objects.using(alias).filter(pk=source.pk).update(name="b"),
        lambda: Source.objects.using(alias).create(article=article, name="c"),
        lambda: Source.objects.using(alias).filter(name="c").delete(),
    ):
        ada.grant = opened(ada, article, fields=["title", "body"], inlines=[SOURCES])
        change()
        assert refused(ada).reason == "changed"
    grant = opened(ada, article, fields=["title", "body"], inlines=[SOURCES])
    with saving(grant, ada.owner) as save:
        assert [row.pk for row in save.inlines[SOURCES]] == [source.pk]


def is_locked(obj: Any) -> bool:
    """Is its row locked by the transaction of this thread?"""
    found: list[bool] = []

    def look() -> None:
        with transaction.atomic(using=obj._state.db):
            rows = type(obj)._base_manager.using(obj._state.db).filter(pk=obj.pk)
            found.append(not rows.select_for_update(skip_locked=True).exists())

    at_the_side(Place(obj._state.db, "READ COMMITTED"), look)
    return found[0]


@every_server
def test_rows_of_inlines_and_of_the_parent_are_locked_too(alias: str) -> None:
    """Multi-table inheritance: the lock of a restaurant is that of its place."""
    article, ada, bob = make_article(alias), Desk("ada"), Desk("bob")
    source = Source.objects.using(alias).create(article=article, name="a")
    with saving(opened(ada, article, fields=["body"], inlines=[SOURCES]), ada.owner):
        assert is_locked(source)
    restaurant = Restaurant.objects.using(alias).create(name="Ratskeller", seats=5)
    assert resource_of(restaurant) == resource_of(restaurant.place_ptr)
    try:
        mine, theirs = opened(ada, restaurant), opened(bob, restaurant.place_ptr)
        with saving(mine, ada.owner) as save:
            assert is_locked(restaurant.place_ptr)
            save.object.seats = 6
            save.object.save()
            save.wrote()
        with pytest.raises(EditConflict), saving(theirs, bob.owner):
            pytest.fail("the child was written since")
    finally:
        restaurant.delete()


@on_sqlite
def test_many_to_many_rows_are_seen_through_the_counter(alias: str) -> None:
    student, course = Student.objects.using(alias).create(name="s"), Course.objects.using(alias).create(title="c")
    ada, bob = Desk("ada"), Desk("bob")
    try:
        mine, theirs = opened(ada, student), opened(bob, student)
        with saving(mine, ada.owner) as save:
            save.object.courses.add(course)
            save.wrote()
        with pytest.raises(EditConflict, match="changed by Ada"), saving(theirs, bob.owner):
            pytest.fail("the courses were changed since")
    finally:
        student.delete()
        course.delete()


@on_sqlite
def test_several_objects_of_one_grant(alias: str) -> None:
    """One refused object refuses all; one save counts for all."""
    first, second, ada, bob = make_article(alias), make_article(alias), Desk("ada"), Desk("bob")
    resources = [resource_of(first), resource_of(second)]
    found = open_grant(resources, principal=ada.owner.principal, fields=["body"])
    bob.claim(resources[1])
    with hearing(edit_refused) as heard, pytest.raises(EditConflict, match="Bob") as caught:
        saving(found.grant, ada.owner).__enter__()
    assert caught.value.resource == resources[1]
    assert [told["conflict"] for told in heard] == [caught.value]
    bob.release(resources[1])
    with saving(found.grant, ada.owner) as save:
        assert set(save.objects) == set(resources)
        save.wrote()
    assert {row.changed_by for row in store.read(resources).values()} == {"Ada"}


# transactions


def test_a_save_inside_a_transaction_ends_with_it(alias: str) -> None:
    article, ada, bob = make_article(alias), Desk("ada"), Desk("bob")
    ada.open(article)
    bob.open(article)
    with transaction.atomic(using=alias):
        ada.save("never")
        transaction.set_rollback(True, using=alias)
    with transaction.atomic(using=alias):
        ada.save("mine")
    assert text_of(article) == "0;mine"
    with transaction.atomic(using=alias):
        assert refused(bob).reason == "changed"
        ada.claim(resource_of(article))
        assert refused(bob).reason == "held"
    assert text_of(article) == "0;mine"


@pytest.mark.parametrize(
    "place",
    [Place("postgres", "READ COMMITTED"), Place("postgres", REPEATABLE_READ), Place("mariadb", "READ COMMITTED")],
    ids=str,
    indirect=True,
)
def test_a_save_inside_a_transaction_that_has_read_before_loses_nothing(place: Place) -> None:
    article, ada, bob = make_article(place.alias), Desk("ada"), Desk("bob")
    ada.open(article)
    bob.open(article)
    with transaction.atomic(using=place.alias):
        assert text_of(article) == "0"
        at_the_side(place, lambda: ada.save("mine"))
        assert refused(bob).reason == ("saving" if place.level == REPEATABLE_READ else "changed")
    assert text_of(article) == "0;mine"


def test_mysql_with_another_isolation_reads_what_is_out_of_date(
    monkeypatch: pytest.MonkeyPatch, databases: None
) -> None:
    article, ada = make_article("mariadb"), Desk("ada")
    ada.open(article)
    monkeypatch.setattr(connections["mariadb"], "isolation_level", "repeatable read")
    try:
        with pytest.raises(TransactionManagementError, match="other code has begun"), transaction.atomic("mariadb"):
            ada.save("mine")
        ada.save("mine")
    finally:
        article.delete()


def test_once_more_if_the_database_gave_up_then_a_page(databases: None) -> None:
    article, ada = make_article("mariadb"), Desk("ada")
    left: list[DatabaseError] = []

    def refuse(execute: Any, sql: str, *more: Any) -> Any:
        if sql.startswith("UPDATE") and left:
            raise left.pop()
        return execute(sql, *more)

    with connections["mariadb"].execute_wrapper(refuse):
        for number in (1020, 1205, 1213):
            busy = OperationalError(number, "another transaction was first")
            ada.open(article)
            before = text_of(article)
            left[:] = [busy, busy]
            assert refused(ada).reason == "saving"
            assert text_of(article) == before
            left[:] = [busy]
            ada.save("mine")
            assert text_of(article) == f"{before};mine"
        ada.open(article)
        left[:] = [DatabaseError("a constraint")]
        with pytest.raises(DatabaseError, match="constraint"):
            ada.save("never")
    article.delete()


@pytest.mark.parametrize(
    "place", [Place("postgres", REPEATABLE_READ), Place("mariadb", REPEATABLE_READ)], ids=str, indirect=True
)
def test_a_beat_while_the_save_waits_for_its_lock(place: Place) -> None:
    """The row of the lease changes after the snapshot of the save: 40001 or 1020, which the save survives."""
    article, ada, bob = make_article(place.alias), Desk("ada"), Desk("bob")
    resource = resource_of(article)
    ada.open(article)
    ada.claim(resource)
    begun = threading.Event()

    def hold() -> None:
        with transaction.atomic(using=place.alias):
            store.lock([resource])
            begun.set()
            until_somebody_waits(place.alias)
            store.wrote([resource_of(make_article(place.alias))], "somebody")
            with connections[place.alias].cursor() as cursor:
                cursor.execute("UPDATE django_distlock_editlease SET seen = seen + 1")

    thread = threading.Thread(target=at_the_side, args=(place, hold))
    thread.start()
    assert begun.wait(30)
    ada.save("mine")
    thread.join(30)
    bob.open(article)
    assert bob.shown == "0;mine"


# what it costs


def test_a_form_costs_two_statements_and_its_save_three_more(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    assert statements_of(alias, lambda: ada.open(article)) == ["SELECT", "SELECT"]

    def naive() -> None:
        with transaction.atomic(using=alias):
            article.body = "naive"
            article.save(using=alias, update_fields=["title", "body"], force_update=True)

    before = statements_of(alias, naive)
    for _ in range(2):  # the first save makes the row
        ada.open(article)
        after = statements_of(alias, lambda: ada.save("mine"))
        assert len(after) - len(before) == 3, after


# a separate database


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_locks_in_another_database(alias: str, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"DATABASE": alias}
    article, ada, bob = make_article("default"), Desk("ada"), Desk("bob")
    resource = resource_of(article)
    ada.open(article)
    ada.claim(resource)
    assert not bob.claim(resource).own
    ada.save("mine")
    bob.open(article)
    assert refused(bob).reason == "held"
    ada.release(resource)
    bob.save("bob")
    write_behind(article, "behind")
    assert text_of(article) == "0;mine;bob;behind"
    assert store.held("default") == []
    article.delete()
