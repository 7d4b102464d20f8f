"""The write rule beyond its histories: what a save costs, what it sees, and how it fails."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError

from django_distlock.editing.grants import EditGrant, open_grant
from django_distlock.editing.records import EditConflict
from django_distlock.editing.resources import resource_of
from django_distlock.editing.saving import saving
from django_distlock.editing.signals import edit_refused
from django_distlock.editing.versions import Inline
from django_distlock.leases import rows
from testproject.articles.models import Source
from tests.data.app.models import Restaurant
from tests.editing.store.desks import Desk, hearing, make_article, text_of
from tests.support.places import READ_COMMITTED, REPEATABLE_READ, Place, at_the_side, statements_of

if TYPE_CHECKING:
    from testproject.articles.models import Article

every_server = pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
on_sqlite = pytest.mark.parametrize("alias", ["default"], indirect=True)
on_mariadb = pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
SOURCES = Inline(model="articles.source", fk="article", fields=("name",))


@pytest.fixture
def alias_or_place(request: pytest.FixtureRequest) -> str:
    if "place" in request.fixturenames:
        return request.getfixturevalue("place").alias
    return request.getfixturevalue("alias")


@pytest.fixture
def article(alias_or_place: str) -> Article:
    return make_article(alias_or_place)


def opened_by(person: str, article: Article) -> Desk:
    desk = Desk(person)
    desk.open(article)
    return desk


@pytest.fixture
def ada(article: Article) -> Desk:
    """With an open form."""
    return opened_by("ada", article)


@pytest.fixture
def bob(article: Article) -> Desk:
    return opened_by("bob", article)


def refused(desk: Desk) -> str:
    with pytest.raises(EditConflict) as caught:
        desk.save("mine")
    return caught.value.reason


def grant_of(desk: Desk, obj: Any, **options: Any) -> EditGrant:
    return open_grant(obj, principal=desk.owner.principal, **options).grant


# what other writers do


@on_sqlite
def test_e4_a_save_on_sqlite_has_the_write_lock_before_it_reads(
    alias: str, article: Article, ada: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the settings say DEFERRED, which would end with "database is locked" at once."""
    connection: Any = connections[alias]
    monkeypatch.setattr(connection, "transaction_mode", "DEFERRED")
    other = sqlite3.connect(connection.settings_dict["NAME"], timeout=0, isolation_level=None)

    def meanwhile(save: object) -> None:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("UPDATE articles_article SET title = 'theirs' WHERE id = ?", [article.pk])

    try:
        ada.save("mine", meanwhile)
        assert text_of(article) == "0;mine"
        assert connection.transaction_mode == "DEFERRED"
    finally:
        other.close()


# what is seen, and what is locked


@on_sqlite
def test_e6_inline_rows_are_part_of_the_version(alias: str, article: Article, ada: Desk) -> None:
    sources = Source.objects.using(alias)
    source = sources.create(article=article, name="a")
    for change in (
        lambda: sources.filter(pk=source.pk).update(name="b"),
        lambda: sources.create(article=article, name="c"),
        lambda: sources.filter(name="c").delete(),
    ):
        ada.grant = grant_of(ada, article, fields=["title", "body"], inlines=[SOURCES])
        change()
        assert refused(ada) == "changed"
    with saving(grant_of(ada, article, inlines=[SOURCES]), ada.owner) as save:
        assert save.inlines[SOURCES] == [source]


def is_locked(obj: Any) -> bool:
    """Is its row locked by the transaction of this thread?"""
    alias = obj._state.db

    def look() -> bool:
        with transaction.atomic(using=alias):
            present = type(obj)._base_manager.using(alias).filter(pk=obj.pk)
            return not present.select_for_update(skip_locked=True).exists()

    return at_the_side(Place(alias, READ_COMMITTED), look)


@every_server
def test_e4_the_object_its_inline_rows_and_its_parent_are_locked(alias: str, article: Article) -> None:
    """A command that knows no edit locks waits for the save. Multi-table inheritance: the lock of a restaurant is that
    of its place."""
    ada, bob = Desk("ada"), Desk("bob")
    source = Source.objects.using(alias).create(article=article, name="a")
    with saving(grant_of(ada, article, fields=["body"], inlines=[SOURCES]), ada.owner):
        assert is_locked(article)
        assert is_locked(source)
    restaurant = Restaurant.objects.using(alias).create(name="Ratskeller", seats=5)
    try:
        mine, theirs = grant_of(ada, restaurant), grant_of(bob, restaurant.place_ptr)
        with saving(mine, ada.owner) as save:
            assert is_locked(restaurant.place_ptr)
            save.object.seats = 6
            save.object.save()
            save.wrote()
        with pytest.raises(EditConflict), saving(theirs, bob.owner):
            pytest.fail("the child was written since")
        partly = Restaurant.objects.using(alias).only("seats").get(pk=restaurant.pk)  # as a view has loaded it
        with saving(grant_of(ada, restaurant), ada.owner, obj=partly):
            assert is_locked(restaurant.place_ptr)
    finally:
        restaurant.delete()


@on_sqlite
def test_e2_several_objects_of_one_grant(alias: str, article: Article) -> None:
    """One refused object refuses all; one save counts for all."""
    other, ada, bob = make_article(alias), Desk("ada"), Desk("bob")
    resource = resource_of(other)
    grant = EditGrant(resources=(resource_of(article), resource), principal=ada.owner.principal)
    bob.claim(resource)
    with hearing(edit_refused) as heard, pytest.raises(EditConflict, match="Bob") as caught:
        saving(grant, ada.owner).__enter__()
    assert caught.value.resource == resource
    assert [told["conflict"] for told in heard] == [caught.value]
    bob.release(resource)
    with saving(grant, ada.owner) as save:
        assert set(save.objects) == {resource, resource_of(article)}
        save.wrote()
    assert {row.changed_by for row in rows.read(save.objects).values()} == {"Ada"}


# transactions


@pytest.mark.parametrize(
    "place",
    [Place("postgres", READ_COMMITTED), Place("postgres", REPEATABLE_READ), Place("mariadb", READ_COMMITTED)],
    ids=str,
    indirect=True,
)
def test_e9_a_save_inside_a_transaction_that_has_read_before_loses_nothing(
    place: Place, article: Article, ada: Desk, bob: Desk
) -> None:
    with transaction.atomic(using=place.alias):
        assert text_of(article) == "0"
        at_the_side(place, lambda: ada.save("mine"))
        assert refused(bob) == ("saving" if place.level == REPEATABLE_READ else "changed")
    assert text_of(article) == "0;mine"


@on_mariadb
def test_mysql_with_another_isolation_reads_what_is_out_of_date(
    alias: str, ada: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings[alias]["OPTIONS"], "isolation_level", "repeatable read")
    with pytest.raises(TransactionManagementError, match="other code has begun"), transaction.atomic(alias):
        ada.save("mine")
    ada.save("mine")


@on_mariadb
def test_e9_once_more_if_the_database_gave_up_then_a_page(alias: str, article: Article, ada: Desk) -> None:
    left: list[DatabaseError] = []

    def refuse(execute: Any, sql: str, *more: Any) -> Any:
        if sql.startswith("UPDATE") and left:
            raise left.pop()
        return execute(sql, *more)

    with connections[alias].execute_wrapper(refuse):
        for number in (1020, 1205, 1213):
            busy = OperationalError(number, "another transaction was first")
            ada.open(article)
            before = text_of(article)
            left[:] = [busy, busy]
            assert refused(ada) == "saving"
            assert text_of(article) == before
            left[:] = [busy]
            ada.save("mine")
            assert text_of(article) == f"{before};mine"
        ada.open(article)
        left[:] = [DatabaseError("a constraint")]
        with pytest.raises(DatabaseError, match="constraint"):
            ada.save("never")


def test_e4_a_form_costs_two_statements_and_its_save_three_more(alias: str, article: Article, ada: Desk) -> None:
    assert statements_of(alias, lambda: ada.open(article)) == ["SELECT", "SELECT"]

    def naive() -> None:
        with transaction.atomic(using=alias):
            article.save(using=alias, update_fields=["title", "body"], force_update=True)

    before = statements_of(alias, naive)
    for _ in range(2):  # the first save makes the row
        ada.open(article)
        after = statements_of(alias, lambda: ada.save("mine"))
        assert len(after) - len(before) == 3, after
