"""Which token a plain save() carries: however the instance was read, a later holder's write is not undone."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from django.core import serializers
from django.db import models
from django.db.models import F

from django_distlock import LockLost, LockNotHeld, UnsupportedOperation, advisory_lock, row_lock
from tests.data.app.models import CashRegister, Register, RegisterProxy
from tests.data.fences import EARLY, LATE, register, rows, sent, stored, till, tills

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = Register._meta.db_table
SQLITE = pytest.mark.parametrize("alias", ["default"], indirect=True)  # what no engine can change


def pickled(row: Any) -> Any:
    return pickle.loads(pickle.dumps(row))  # noqa: S301 - our own


def base(alias: str) -> Any:
    return Register._base_manager.using(alias)


# What has the fence all the same, and what has not.
READ: dict[str, Callable[[str, int], Any]] = {
    "defer": lambda alias, pk: rows(alias).defer("fence").get(pk=pk),
    "only": lambda alias, pk: rows(alias).only("balance").get(pk=pk),
    "only, then defer": lambda alias, pk: rows(alias).only("balance", "fence").defer("fence").get(pk=pk),
    "a fenced queryset": lambda alias, pk: rows(alias).fenced(EARLY).only("balance").get(pk=pk),
}
UNREAD: dict[str, Callable[[str, int], Any]] = {
    "another manager": lambda alias, pk: base(alias).only("balance").get(pk=pk),
    "raw": lambda alias, pk: next(iter(rows(alias).raw(f"SELECT id, balance FROM {TABLE} WHERE id = {pk}"))),
    "from_db": lambda alias, pk: Register.from_db(alias, ["id", "balance"], [pk, 0]),
}
if peers := getattr(models, "FETCH_PEERS", None):  # Django 6.1: its deferred fields are set past refresh_from_db()
    UNREAD["peers"] = lambda alias, pk: base(alias).fetch_mode(peers).only("balance").get(pk=pk)


def written_later(alias: str, row: Any) -> None:
    rows(alias).filter(pk=row.pk).update(balance=100, fence=LATE)


@pytest.mark.parametrize("way", [*READ, *UNREAD])
def test_a_stale_holder_undoes_nothing(alias: str, way: str) -> None:
    pk = register(alias, fence=EARLY).pk
    row = (READ | UNREAD)[way](alias, pk)
    written_later(alias, row)
    row.balance = 1
    error = LockLost if way in READ else UnsupportedOperation
    for arguments in ({}, {"update_fields": ["balance"]}):
        with pytest.raises(error):
            row.save(**arguments)
    with pytest.raises(error):
        asyncio.run(row.asave())
    assert stored(row) == (100, LATE)
    row.save(update_fields=[])  # saves nothing


@pytest.mark.parametrize("way", READ)
@SQLITE
def test_the_fence_comes_with_the_row(alias: str, way: str) -> None:
    row = READ[way](alias, register(alias, fence=EARLY).pk)
    with sent(alias) as texts:
        row.balance = 1
        row.save()
    assert len(texts) == 1, "no question for the fence"
    assert stored(row) == (1, EARLY)


@pytest.mark.parametrize("way", UNREAD)
@SQLITE
def test_a_fence_that_was_read_later_does_not_count(alias: str, way: str) -> None:
    row = UNREAD[way](alias, register(alias, fence=EARLY).pk)
    written_later(alias, row)
    assert row.fence == LATE, "Django fetches it when it is asked for"
    for kept in (row, copy.copy(row), pickled(row)):
        with pytest.raises(UnsupportedOperation, match=r"read the whole row \(refresh_from_db\(\)\)"):
            kept.save()
    row.refresh_from_db()
    row.save()
    assert stored(row) == (100, LATE)


@SQLITE
def test_a_part_of_the_row_that_is_read_again(alias: str) -> None:
    row = register(alias, fence=EARLY)
    row.refresh_from_db(fields=["fence"])
    row.refresh_from_db(fields=iter(["balance"]))
    row.save()  # nobody has written
    written_later(alias, row)
    row.refresh_from_db(fields=["owner"])
    with pytest.raises(LockLost):
        row.save()
    for fields in (["fence"], ["balance", "fence"]):
        row.refresh_from_db(fields=fields)
        with pytest.raises(UnsupportedOperation):
            row.save()
    row.refresh_from_db()
    row.save()
    row = register(alias, fence=EARLY)
    written_later(alias, row)
    row.refresh_from_db(fields=["owner"], from_queryset=rows(alias))  # its only() has the fence
    with pytest.raises(UnsupportedOperation):
        row.save()
    assert stored(row) == (100, LATE)


@SQLITE
def test_a_queryset_that_leaves_out_what_was_read(alias: str) -> None:
    """refresh_from_db() gives the later fence then, and keeps the old balance."""
    for queryset in (rows(alias).defer("balance"), rows(alias).only("owner"), base(alias).defer("balance")):
        row = register(alias, fence=EARLY)
        written_later(alias, row)
        row.refresh_from_db(from_queryset=queryset)
        assert (row.balance, row.fence) == (0, LATE)
        with pytest.raises(UnsupportedOperation):
            row.save()
        assert stored(row) == (100, LATE)
    row = rows(alias).defer("balance").get(pk=register(alias, fence=EARLY).pk)
    written_later(alias, row)
    row.refresh_from_db(from_queryset=rows(alias).defer("balance"))
    row.save()  # its balance was never read
    assert stored(row) == (100, LATE)


@pytest.mark.parametrize("way", UNREAD)
@SQLITE
def test_the_whole_row_is_read_with_its_fence(alias: str, way: str) -> None:
    """What the message of save() advises, also for a fence that is still deferred."""
    row = UNREAD[way](alias, register(alias, fence=EARLY).pk)
    written_later(alias, row)
    with sent(alias) as texts:
        row.refresh_from_db()
    assert len(texts) == 1
    row.save()
    assert stored(row) == (100, LATE)
    row = UNREAD[way](alias, row.pk)
    rows(alias).filter(pk=row.pk).delete()
    with pytest.raises(Register.DoesNotExist):
        row.refresh_from_db()
    assert "fence" in row.get_deferred_fields()


def test_an_expression_is_no_token(alias: str) -> None:
    row = register(alias, fence=EARLY)
    written_later(alias, row)
    for fence in (F("fence"), None, "7"):
        row.fence = fence  # type: ignore[assignment]
        with pytest.raises(TypeError, match="must be an int"):
            row.save()
    assert stored(row) == (100, LATE)
    row.balance = 2
    row.save(fence=LATE)
    assert stored(row) == (2, LATE)


@SQLITE
def test_a_token_that_is_given(alias: str) -> None:
    """It is worth more than any that was read, and stays."""
    pk = register(alias, fence=EARLY).pk
    for way in UNREAD:
        row = UNREAD[way](alias, pk)
        with pytest.raises(LockLost):
            row.save(fence=EARLY - 1)
        with pytest.raises(UnsupportedOperation):
            row.save()  # as it was before
        row.save(fence=EARLY)
        row.save()
        assert row.fence == EARLY


@SQLITE
def test_instances_that_were_never_read(alias: str) -> None:
    row = register(alias, fence=LATE, balance=7)
    made_up = Register(pk=row.pk, owner="ann")
    text = serializers.serialize("json", [row])
    (deserialized,) = (found.object for found in serializers.deserialize("json", text, using=alias))
    rows(alias).filter(pk=row.pk).update(balance=100, fence=LATE + 1)
    for stale in (made_up, deserialized):
        with pytest.raises(LockLost):
            stale.save(using=alias)
    assert stored(row) == (100, LATE + 1)


@SQLITE
def test_proxies_and_parents(alias: str) -> None:
    proxy = RegisterProxy._base_manager.using(alias).only("owner").get(pk=register(alias).pk)
    child = CashRegister._base_manager.using(alias).only("drawer").get(pk=till(alias).pk)
    for row in (proxy, child):
        with pytest.raises(UnsupportedOperation):
            row.save()
        with pytest.raises(UnsupportedOperation):
            row.save(force_insert=True)
    proxy = RegisterProxy.objects.using(alias).defer("fence").get(pk=proxy.pk)
    child = tills(alias).only("drawer").get(pk=child.pk)
    for row in (proxy, child):
        written_later(alias, row)
        with pytest.raises(LockLost):
            row.save()
        assert stored(row) == (100, LATE)


@SQLITE
def test_only_and_defer_are_djangos_otherwise(alias: str) -> None:
    pk = till(alias).pk
    assert rows(alias).only("owner").get(pk=pk).get_deferred_fields() == {"balance"}
    assert rows(alias).defer("owner").get(pk=pk).get_deferred_fields() == {"owner"}
    assert not rows(alias).defer("owner").defer(None).get(pk=pk).get_deferred_fields()
    assert not rows(alias).only().get(pk=pk).get_deferred_fields()
    with pytest.raises(TypeError):
        rows(alias).only(None)
    assert list(rows(alias).values("owner").filter(pk=pk)) == [{"owner": "ann"}]


class TestFencedRead:
    """An instance that a fenced queryset has read carries its token."""

    def test_save(self, alias: str) -> None:
        pk = register(alias).pk
        row = rows(alias).fenced(EARLY).get(pk=pk)
        assert row.fence == 0, "what the row has"
        row.balance = 1
        row.save()
        assert (stored(row), row.fence) == ((1, EARLY), EARLY)
        written_later(alias, row)
        late = rows(alias).fenced(EARLY).get(pk=pk)
        assert late.fence == LATE
        for stale in (row, late):
            with pytest.raises(LockLost):
                stale.save()
            stale.refresh_from_db()
            with pytest.raises(LockLost):
                stale.save(update_fields=["balance"])
        assert stored(row) == (100, LATE)

    @pytest.mark.parametrize(
        "read",
        [
            lambda found: found[0],
            lambda found: found.first(),
            lambda found: next(iter(found.iterator())),
            lambda found: next(iter(found.in_bulk().values())),
            lambda found: found.get_or_create(owner="ann")[0],
            lambda found: found.select_for_update().get(),
            lambda found: found.order_by("pk").using("default").all()[0:1].get(),
            lambda found: pickled(found.get()),
            lambda found: copy.deepcopy(found.get()),
        ],
    )
    @SQLITE
    def test_ways_to_read(self, alias: str, read: Any) -> None:
        pk = register(alias).pk
        row = read(rows(alias).filter(pk=pk).fenced(EARLY))
        row.save()
        assert stored(row) == (0, EARLY)

    @SQLITE
    def test_read_again(self, alias: str) -> None:
        row = register(alias)
        written_later(alias, row)
        row.refresh_from_db(from_queryset=rows(alias).fenced(EARLY))
        assert row.fence == LATE
        with pytest.raises(LockLost):
            row.save()
        assert stored(row) == (100, LATE)

    @SQLITE
    def test_locked(self, alias: str) -> None:
        pk = register(alias).pk
        with row_lock(rows(alias).filter(pk=pk).fenced(EARLY)) as (row,):
            row.save()
        assert stored(row) == (0, EARLY)

    @SQLITE
    def test_inheritance(self, alias: str) -> None:
        row = tills(alias).fenced(EARLY).get(pk=till(alias).pk)
        row.drawer = 4
        row.save()
        assert stored(row) == (0, EARLY)
        written_later(alias, row)
        with pytest.raises(LockLost):
            row.save()

    @SQLITE
    def test_values_are_values(self, alias: str) -> None:
        register(alias)
        assert list(rows(alias).fenced(EARLY).values_list("fence", flat=True)) == [0]
        assert list(rows(alias).values("fence").fenced(EARLY)) == [{"fence": 0}]
        assert rows(alias).fenced(EARLY).count() == 1

    @SQLITE
    def test_a_later_token_of_the_same_holder(self, alias: str) -> None:
        pk = register(alias).pk
        row, other = (rows(alias).fenced(EARLY).get(pk=pk) for _ in range(2))
        row.save(fence=LATE)
        row.save()
        rows(alias).fenced(LATE).bulk_update([other], ["balance"])
        other.save()
        assert stored(row) == (0, LATE)

    @SQLITE
    def test_the_lease_is_asked(self, alias: str) -> None:
        pk = register(alias).pk
        with advisory_lock("register", using="leasetable") as lease:
            row = rows(alias).fenced(lease).get(pk=pk)
            row.save()
            sent_on = pickled(row)
        with sent(alias) as texts, pytest.raises(LockNotHeld):
            row.save()
        assert not texts
        sent_on.save()  # in another process the number is all that there is
        assert stored(row) == (0, lease.fence)
