"""Queries with joins get the same answers from row_lock on every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import FieldError
from django.db import transaction
from django.db.models import F, Q

from django_distlock import row_lock
from tests.data.app.models import Entry, Node, Restaurant, Wallet
from tests.data.world import everywhere, sent

if TYPE_CHECKING:
    from django.db.models import QuerySet

pytestmark = everywhere


def nodes(using: str) -> QuerySet[Node]:
    """A root and its child."""
    root = Node.objects.using(using).create(name="root")
    Node.objects.using(using).create(name="child", parent=root)
    return Node.objects.using(using)


def entered(using: str, entries: int) -> Wallet:
    wallet: Wallet = Wallet.objects.using(using).create(owner="ann")
    for _ in range(entries):
        Entry.objects.using(using).create(wallet=wallet)
    return wallet


def test_of_must_name_what_the_query_follows(using: str) -> None:
    """At once: nothing is sent."""
    rows = nodes(using).select_related("parent")
    wrong: list[Any] = [["nope"], ("self", "nope"), ("children",), ("parent__nope",)]
    for of in wrong:
        for lock in (row_lock(rows, of=of), row_lock(Node, pk=1, of=of, using=using)):
            with sent(using) as texts, pytest.raises(FieldError, match="Invalid field name"):
                lock.__enter__()
            assert not texts


OUTER = {
    "select_related": lambda rows: rows.select_related("parent"),
    "select_related of all": lambda rows: rows.select_related("parent__parent"),
    "or": lambda rows: rows.filter(Q(parent__name="root") | Q(name="root")),
    "annotation": lambda rows: rows.annotate(above=F("parent__name")),
    "reverse": lambda rows: rows.filter(children__isnull=True),
    "slice": lambda rows: rows.order_by("parent__name")[:2],
}


def test_a_row_that_may_be_missing_cannot_be_locked(using: str) -> None:
    every = nodes(using)
    for case, query in OUTER.items():
        rows = query(every)
        options: Any = {"nowait": True} if case == "slice" else {}
        with sent(using) as texts, pytest.raises(ValueError, match=r"the rows of dataapp_node .* of=\('self',\)"):
            row_lock(rows, **options).__enter__()
        assert not texts, case
        with row_lock(rows, of=("self",), **options) as locked:
            assert locked, case
    with pytest.raises(ValueError, match="may not find"):
        row_lock(every.select_related("parent"), of=("self", "parent")).__enter__()


def test_rows_that_are_there_are_locked_with_it(using: str) -> None:
    wallet = entered(using, 1)
    entries = Entry.objects.using(using).select_related("wallet")
    for of in ((), ("self",), ("self", "wallet")):
        with row_lock(entries, of=of) as (entry,):
            assert entry.wallet == wallet
    place = Restaurant.objects.using(using).create(name="Inn", seats=4)
    with row_lock(Restaurant.objects.using(using).filter(name="Inn"), of=("self", "place_ptr")) as rows:
        assert rows == [place]
    with row_lock(nodes(using).select_related("parent").filter(parent__name="root"), of=("self", "parent")) as rows:
        assert [node.parent.name for node in rows] == ["root"]
    with row_lock(Node.objects.using(using).filter(parent__isnull=True)) as rows:  # no join is left
        assert [node.name for node in rows] == ["root"]
    with row_lock(Node.objects.using(using).prefetch_related("children")) as rows:
        assert [[child.name for child in node.children.all()] for node in rows] == [["child"], []]


def test_a_row_that_is_found_twice_is_one_instance(using: str) -> None:
    """Two would overwrite each other when they are saved in turn."""
    found = Wallet.objects.using(using).filter(entries__open=True)
    first = entered(using, 3)
    with transaction.atomic(using):
        assert found.lock_row() == first
    second = entered(using, 2)
    with row_lock(found) as wallets:
        assert wallets == [first, second]
        for wallet in wallets:
            wallet.balance += 1
            wallet.save()
    assert list(Wallet.objects.using(using).values_list("balance", flat=True)) == [1, 1]
    with row_lock(found.order_by("pk")[:4]) as wallets:
        assert wallets == [first, second]
    with transaction.atomic(using), pytest.raises(Wallet.MultipleObjectsReturned):
        found.lock_row()
