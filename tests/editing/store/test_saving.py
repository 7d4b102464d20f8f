"""The write rule beyond its histories: what a save costs, what it sees, and how it fails."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from django_distlock.editing import store
from django_distlock.editing.conf import config
from django_distlock.editing.grants import EditGrant, open_grant
from django_distlock.editing.records import EditConflict, EditLease
from django_distlock.editing.resources import resource_of
from django_distlock.editing.saving import run_save, saving
from django_distlock.editing.signals import edit_refused
from django_distlock.editing.versions import Inline
from testproject.articles.models import Article, Source
from tests.data.app.models import Course, Restaurant, Student
from tests.editing.store.desks import Desk, expire, make_article, text_of, write_behind
from tests.support.places import REPEATABLE_READ, Place, at_the_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.editing.saving import Save

every_server = pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
SOURCES = Inline(model="articles.source", fk="article", fields=("name",))


def refused(desk: Desk) -> EditConflict:
    with pytest.raises(EditConflict) as caught:
        desk.save("mine")
    return caught.value


def opened(desk: Desk, obj: Any, **options: Any) -> Any:
    found = open_grant([resource_of(obj)], principal=desk.owner.principal, **options)
    assert found is not None
    desk.grant = found.grant
    return found.obj


# who is refused, and who is not


def test_somebody_who_held_it_and_left_is_no_reason(alias: str) -> None:
    article, ada, bob = make_article(alias), Desk("ada"), Desk("bob")
    ada.open(article)
    bob.claim(resource_of(article))
    bob.release(resource_of(article))
    ada.save("mine")
    assert text_of(article) == "0;mine"


def test_an_expired_lease_that_nobody_wanted_is_taken_again(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    resource = resource_of(article)
    ada.open(article)
    ada.claim(resource)
    expire(resource)
    ada.save("mine", reserve=None)
    row = store.read([resource])[resource.digest]
    assert (row.held, row.lease, row.changed_by) == (True, ada.lease, "Ada")


def test_a_page_that_stays_keeps_its_lease(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    resource = resource_of(article)
    ada.open(article)
    ada.claim(resource)

    def work(save: Save) -> None:
        save.wrote()
        save.keep()

    assert ada.grant is not None
    run_save(ada.grant, ada.owner, ada.lease, work)
    row = store.read([resource])[resource.digest]
    assert (row.held, row.lease, row.reserved) == (True, ada.lease, False)
    assert row.expires_in > 5


def test_after_a_save_the_lease_waits_some_seconds_for_the_next_page(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    resource = resource_of(article)
    ada.open(article)
    ada.claim(resource)
    ada.save("mine", reserve=5.0)
    row = store.read([resource])[resource.digest]
    assert row.held
    assert row.expires_in <= 5
    assert isinstance(ada.renew(resource), EditLease)  # a page that stayed
    assert store.read([resource])[resource.digest].expires_in > 5


def test_without_a_script_the_version_decides(alias: str) -> None:
    article, ada, bob = make_article(alias), Desk("ada"), Desk("bob")
    ada.open(article)
    bob.open(article)
    ada.save("ada")
    conflict = refused(bob)
    assert (conflict.reason, conflict.changed_by) == ("changed", "Ada")
    assert conflict.obj.body == "0;ada"


def test_the_other_tab_of_the_same_person_refuses_nothing_until_it_saves(alias: str) -> None:
    article, first, second = make_article(alias), Desk("ada"), Desk("ada")
    resource = resource_of(article)
    first.open(article)
    second.open(article)
    second.claim(resource)
    first.save("mine")
    assert store.read([resource])[resource.digest].lease == second.lease
    assert refused(second).reason == "changed"


def test_the_holder_is_named(alias: str) -> None:
    article, ada, bob = make_article(alias), Desk("ada"), Desk("bob")
    ada.open(article)
    bob.claim(resource_of(article))
    heard: list[Any] = []

    def hear(**told: Any) -> None:
        heard.append(told["conflict"])

    edit_refused.connect(hear)
    try:
        conflict = refused(ada)
    finally:
        edit_refused.disconnect(hear)
    assert conflict.reason == "held"
    assert conflict.holder is not None
    assert conflict.holder.label == "Bob"
    assert heard == [conflict]
    assert "Bob" in str(conflict)


def test_mode_warn_saves_and_says_so(alias: str) -> None:
    article, ada, bob = make_article(alias), Desk("ada"), Desk("bob")
    resource = resource_of(article)
    opened(ada, article, fields=["body"], options=config(mode="warn"))
    bob.claim(resource)
    assert ada.grant is not None
    with saving(ada.grant, ada.owner) as save:
        assert [warning.reason for warning in save.warnings] == ["held"]
        save.wrote()
    row = store.read([resource])[resource.digest]
    assert (row.lease, row.changed_by) == (bob.lease, "Ada")


def test_a_deleted_object_does_not_come_back(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)
    Article.objects.using(alias).filter(pk=article.pk).delete()
    assert refused(ada).reason == "deleted"
    assert not Article.objects.using(alias).filter(pk=article.pk).exists()


def test_the_holder_learns_that_the_object_was_deleted(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    resource = resource_of(article)
    ada.open(article)
    ada.claim(resource)
    assert ada.grant is not None
    with saving(ada.grant, ada.owner, ada.lease) as save:
        save.object.delete()
        save.deleted()
    assert ada.renew(resource).reason == "deleted"


# what is seen, and what is kept


def test_a_field_that_is_not_in_the_form_is_kept_and_is_no_conflict(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)
    Article.objects.using(alias).filter(pk=article.pk).update(section="sport")
    ada.save("mine")
    article.refresh_from_db()
    assert (article.body, article.section) == ("0;mine", "sport")


def test_inline_rows_are_part_of_the_version(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    source = Source.objects.using(alias).create(article=article, name="a")
    for change in (
        lambda: Source.objects.using(alias).filter(pk=source.pk).update(name="b"),
        lambda: Source.objects.using(alias).create(article=article, name="c"),
        lambda: Source.objects.using(alias).filter(name="c").delete(),
    ):
        opened(ada, article, fields=["title", "body"], inlines=[SOURCES])
        change()
        assert refused(ada).reason == "changed"
    opened(ada, article, fields=["title", "body"], inlines=[SOURCES])
    assert ada.grant is not None
    with saving(ada.grant, ada.owner) as save:
        assert [row.pk for row in save.inlines[SOURCES]] == [source.pk]


@every_server
def test_inline_rows_are_locked(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    source = Source.objects.using(alias).create(article=article, name="a")
    opened(ada, article, fields=["body"], inlines=[SOURCES])
    assert ada.grant is not None
    found: list[bool] = []

    def look() -> None:
        with transaction.atomic(using=alias):
            rows = Source.objects.using(alias).filter(pk=source.pk).select_for_update(skip_locked=True)
            found.append(rows.exists())

    with saving(ada.grant, ada.owner):
        at_the_side(Place(alias, "READ COMMITTED"), look)
    assert found == [False]


@every_server
def test_the_row_of_the_parent_is_locked_too(alias: str) -> None:
    """Multi-table inheritance: the lock of a restaurant is that of its place."""
    restaurant = Restaurant.objects.using(alias).create(name="Ratskeller", seats=5)
    place_of_it = restaurant.place_ptr
    assert resource_of(restaurant) == resource_of(place_of_it)
    ada, bob = Desk("ada"), Desk("bob")
    found: list[bool] = []

    def look() -> None:
        with transaction.atomic(using=alias):
            rows = type(place_of_it)._base_manager.using(alias).filter(pk=place_of_it.pk)
            found.append(rows.select_for_update(skip_locked=True).exists())

    try:
        opened(ada, restaurant)
        opened(bob, place_of_it)
        assert ada.grant is not None
        assert bob.grant is not None
        with saving(ada.grant, ada.owner) as save:
            at_the_side(Place(alias, "READ COMMITTED"), look)
            save.object.seats = 6
            save.object.save()
            save.wrote()
        assert found == [False]
        with pytest.raises(EditConflict), saving(bob.grant, bob.owner):
            pytest.fail("the child was written since")
    finally:
        restaurant.delete()


def test_many_to_many_rows_are_seen_through_the_counter(alias: str) -> None:
    student, course = Student.objects.using(alias).create(name="s"), Course.objects.using(alias).create(title="c")
    ada, bob = Desk("ada"), Desk("bob")
    try:
        opened(ada, student)
        opened(bob, student)
        assert ada.grant is not None
        assert bob.grant is not None
        with saving(ada.grant, ada.owner) as save:
            save.object.courses.add(course)
            save.wrote()
        with pytest.raises(EditConflict, match="changed by Ada"), saving(bob.grant, bob.owner):
            pytest.fail("the courses were changed since")
    finally:
        student.delete()
        course.delete()


def test_several_objects_of_one_grant(alias: str) -> None:
    """One refused object refuses all; one save counts for all."""
    first, second, ada, bob = make_article(alias), make_article(alias), Desk("ada"), Desk("bob")
    resources = [resource_of(first), resource_of(second)]
    found = open_grant(resources, principal=ada.owner.principal, fields=["body"])
    assert found is not None
    bob.claim(resources[1])
    with pytest.raises(EditConflict) as caught, saving(found.grant, ada.owner):
        pytest.fail("the second one is held")
    assert caught.value.resource == resources[1]
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


def test_an_error_rolls_everything_back(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)

    def fail(save: Any) -> None:
        save.object.body = "never"
        save.object.save()
        save.wrote()
        raise LookupError

    with pytest.raises(LookupError):
        ada.save("mine", fail)
    assert text_of(article) == "0"
    ada.save("mine")


class Refusing:
    """Fails the first statements that begin with a word, as the database would."""

    def __init__(self, word: str, error: DatabaseError, times: int) -> None:
        self.word, self.error, self.times = word, error, times
        self.seen = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(self.word):
            self.seen += 1
            if self.seen <= self.times:
                raise self.error
        return execute(sql, params, many, context)


@pytest.fixture(params=[1020, 1205, 1213])
def busy(request: pytest.FixtureRequest) -> OperationalError:
    return OperationalError(request.param, "another transaction was first")


def test_once_more_if_the_database_gave_up(alias: str, busy: OperationalError) -> None:
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)
    calls: list[int] = []
    with connections[alias].execute_wrapper(Refusing("UPDATE", busy, 1)):
        ada.save("mine", lambda save: calls.append(1))
    assert len(calls) == 2
    assert text_of(article) == "0;mine"


def test_if_it_gives_up_again_the_page_says_so(alias: str, busy: OperationalError) -> None:
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)
    with connections[alias].execute_wrapper(Refusing("UPDATE", busy, 100)):
        assert refused(ada).reason == "saving"
    assert text_of(article) == "0"


def test_another_error_is_not_repeated(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)
    refusing = Refusing("UPDATE", DatabaseError("a constraint"), 100)
    with connections[alias].execute_wrapper(refusing), pytest.raises(DatabaseError, match="constraint"):
        ada.save("mine")
    assert refusing.seen == 1


@pytest.mark.parametrize(
    "place", [Place("postgres", REPEATABLE_READ), Place("mariadb", REPEATABLE_READ)], ids=str, indirect=True
)
def test_a_beat_while_the_save_waits_for_its_lock(place: Place) -> None:
    """The row of the lease changes after the snapshot of the save: 40001 or 1020, which the save survives."""
    article, ada, bob = make_article(place.alias), Desk("ada"), Desk("bob")
    resource = resource_of(article)
    ada.open(article)
    ada.claim(resource)
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic(using=place.alias):
            store.lock([resource])
            begun.set()
            go.wait(10)
            store.wrote([resource_of(make_article(place.alias))], "somebody")
            with connections[place.alias].cursor() as cursor:
                cursor.execute("UPDATE django_distlock_editlease SET seen = seen + 1")

    thread = threading.Thread(target=at_the_side, args=(place, hold))
    thread.start()
    assert begun.wait(10)
    threading.Timer(0.3, go.set).start()
    ada.save("mine")
    thread.join(10)
    bob.open(article)
    assert bob.shown == "0;mine"


# what it costs


def test_a_save_costs_three_statements_more(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    ada.open(article)

    def naive() -> None:
        with transaction.atomic(using=alias):
            article.body = "naive"
            article.save(using=alias, update_fields=["title", "body"], force_update=True)

    with CaptureQueriesContext(connections[alias]) as before:
        naive()
    ada.open(article)
    for _ in range(2):  # the first save makes the row
        with CaptureQueriesContext(connections[alias]) as after:
            ada.save("mine")
        assert len(after) - len(before) == 3, [query["sql"] for query in after]
        ada.open(article)


def test_a_form_costs_two_statements(alias: str) -> None:
    article, ada = make_article(alias), Desk("ada")
    with CaptureQueriesContext(connections[alias]) as queries:
        ada.open(article)
    assert [query["sql"].split(None, 1)[0] for query in queries] == ["SELECT", "SELECT"]


# a separate database


@pytest.fixture
def locks_elsewhere(databases: None, settings: Any) -> Iterator[None]:
    settings.DISTLOCK_EDITING = {"DATABASE": "postgres"}
    yield
    for name in ("default", "postgres"):
        Article.objects.using(name).all().delete()
        with connections[name].cursor() as cursor:
            cursor.execute("DELETE FROM django_distlock_editlease")


def test_locks_in_another_database(locks_elsewhere: None) -> None:
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
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM django_distlock_editlease")
        assert cursor.fetchone()[0] == 0


def test_a_grant_without_a_version_asks_who_holds_it_alone(alias: str) -> None:
    """As an API does without If-Match."""
    article, ada, bob = make_article(alias), Desk("ada"), Desk("bob")
    resource = resource_of(article)
    grant = EditGrant(resources=(resource,), principal=ada.owner.principal)
    write_behind(article, "behind")
    run_save(grant, ada.owner, "", lambda save: save.wrote())
    bob.claim(resource)
    with pytest.raises(EditConflict, match="Bob"):
        run_save(grant, ada.owner, "", lambda save: save.wrote())
