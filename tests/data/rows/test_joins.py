"""Queries with joins: what the engine can lock is locked, each row once; what it cannot lock it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction
from django.db.models import Count, Q, Window
from django.db.models.functions import Rank

from django_distlock import LockNotAcquired, UnsupportedOperation, row_lock
from tests.data.app.models import Entry, Node, Place, Restaurant, Wallet
from tests.data.world import everywhere

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


OUTER = {
    "select_related": lambda rows: rows.select_related("parent"),
    "or": lambda rows: rows.filter(Q(parent__name="root") | Q(name="root")),
    "reverse": lambda rows: rows.filter(children__isnull=True),
}


def test_a_row_that_may_be_missing_is_locked_where_the_engine_can(using: str) -> None:
    """PostgreSQL refuses, in a transaction that is broken by it; of=("self",) is for every engine."""
    every = nodes(using)
    for case, query in OUTER.items():
        rows = query(every)
        if using == "postgres":
            with transaction.atomic(using):
                with pytest.raises(UnsupportedOperation, match="nullable side"):
                    row_lock(rows).__enter__()
                assert connections[using].needs_rollback
        else:
            with row_lock(rows) as locked:
                assert locked, case
        with row_lock(rows, of=("self",)) as locked:
            assert locked, case


def test_rows_that_stand_for_others_are_locked_where_the_engine_can(using: str) -> None:
    nodes(using)
    every = Node.objects.using(using)
    ranked = every.annotate(rank=Window(Rank(), order_by="pk"))
    for rows in (every.distinct(), every.annotate(number=Count("pk")), ranked):
        if using == "postgres":
            with pytest.raises(UnsupportedOperation, match="FOR UPDATE is not allowed"):
                row_lock(rows).__enter__()
            assert not connections[using].in_atomic_block
        else:
            with row_lock(rows) as locked:
                assert len(locked) == 2


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


def test_the_row_of_a_parent_is_locked_if_only_fields_of_the_child_are_read(using: str) -> None:
    inn = Restaurant.objects.using(using).create(name="Inn", seats=4)

    def rival() -> None:
        try:
            with row_lock(Place.objects.using(using).filter(pk=inn.pk), nowait=True):
                pass
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool, row_lock(Restaurant.objects.using(using).only("seats")) as rows:
        with pytest.raises(LockNotAcquired):
            pool.submit(rival).result()
        assert rows == [inn]


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
