"""Under LOCK TABLES each table and alias must be named: those of the ORM are, and for others the error says how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db.models import Exists, OuterRef

from django_distlock import LockNotHeld, table_lock
from tests.data.app.models import Account, Course, Currency, Ledger, Node, Place, Restaurant, Student

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("fresh")
DB = "mariadb"
THROUGH = Student.courses.through


@pytest.fixture(autouse=True)
def clean(fresh: None) -> Iterator[None]:
    yield
    for model in (Node, Restaurant, Place, Student, Course, Ledger, Account):
        model.objects.using(DB).all().delete()


def nodes() -> Any:
    return Node.objects.using(DB)


QUERIES = {
    "join": lambda: nodes().filter(parent__parent__name="x"),
    "three joins": lambda: nodes().filter(parent__parent__parent__parent__name="x"),
    "exclude": lambda: nodes().exclude(children__name="x"),
    "exclude twice": lambda: nodes().exclude(children__children__name="x"),
    "subquery": lambda: nodes().filter(parent__in=Node.objects.filter(parent__name="x")),
    "exists": lambda: nodes().filter(Exists(Node.objects.filter(parent=OuterRef("pk")))),
    "exists in exists": lambda: nodes().filter(
        Exists(Node.objects.filter(Exists(Node.objects.filter(parent=OuterRef("pk"))), parent=OuterRef("pk")))
    ),
    "select_related": lambda: nodes().select_related("parent__parent"),
    "prefetch_related": lambda: nodes().prefetch_related("children"),
}


def test_self_joins() -> None:
    with table_lock(Node, using=DB):
        top = nodes().create(name="x")
        nodes().create(name="y", parent=top)
        for query in QUERIES.values():
            list(query())
    with table_lock(Node, using=DB, aliases={Node: [f"X{number}" for number in range(64)]}):
        list(nodes())


def test_an_alias_beyond_those() -> None:
    deep = {"parent__parent__parent__parent__parent__name": "x"}
    with table_lock(Node, using=DB), pytest.raises(LockNotHeld, match=r"aliases=\{Node: \['T6'\]\}") as caught:
        list(nodes().filter(**deep))
    assert caught.value.__cause__ is not None
    with table_lock(Node, using=DB, aliases={Node: ["T6"]}):
        list(nodes().filter(**deep))


def test_an_alias_of_another_model() -> None:
    """Of the aliases that the ORM makes, each belongs to one table: whoever asks for one gets it (1066)."""
    query = Currency.objects.using(DB).filter(Exists(Node.objects.filter(name=OuterRef("code"))))
    with table_lock(Currency, Node, using=DB), pytest.raises(LockNotHeld, match=r"aliases=\{Node: \['U0'\]\}"):
        list(query)
    with table_lock(Currency, Node, using=DB, aliases={Node: ["U0", "T2"]}):
        list(query)


def test_many_to_many() -> None:
    student = Student.objects.using(DB).create(name="x")
    course = Course.objects.using(DB).create(title="y")
    locks, told = table_lock(Student, Course, using=DB), r"name Student\.courses\.through in write"
    with locks, pytest.raises(LockNotHeld, match=told):
        student.courses.add(course)
    with table_lock(Student, Course, THROUGH, using=DB):
        student.courses.add(course)
        assert list(student.courses.all()) == [course]
        assert list(Student.objects.using(DB).filter(courses__title="y")) == [student]


def test_a_name_that_must_be_quoted() -> None:
    with table_lock(Ledger, using=DB):
        Ledger.objects.using(DB).create(amount=1)
        assert Ledger.objects.using(DB).filter(amount=1).count() == 1
    with table_lock(Account, using=DB), pytest.raises(LockNotHeld, match=r"O'Hara Ledger.*name Ledger in"):
        Ledger.objects.using(DB).count()


def test_a_table_that_is_not_named() -> None:
    with table_lock(Account, using=DB), pytest.raises(LockNotHeld, match=r"name Currency in table_lock\(\.\.\.\)"):
        Currency.objects.using(DB).count()


def test_a_table_for_reading_only() -> None:
    with table_lock(read=[Account], using=DB), pytest.raises(LockNotHeld, match=r"name Account in write=\[\.\.\.\]"):
        Account.objects.using(DB).create(owner="x")
