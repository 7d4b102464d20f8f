"""save(fence=) and asave(fence=), and what a plain save() does to a row with a fence."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, IntegrityError, models, transaction
from django.db.models import F
from django.db.models.signals import post_save, pre_save

from django_distlock import LockLost
from tests.data.app.models import CashRegister, Register
from tests.data.fences import EARLY, LATE, register, rows, sent, stored, till, tills

if TYPE_CHECKING:
    from collections.abc import Iterator


def write_later(row: Register) -> None:
    rows(row._state.db or "default").filter(pk=row.pk).update(balance=100, fence=LATE)


def test_djangos_own_save_undoes_a_later_write(alias: str) -> None:
    """Without a fence: what the tests below guard against."""
    row = register(alias)
    write_later(row)
    row.balance = 1
    models.Model.save_base(row, using=alias)
    assert stored(row) == (1, 0)


def test_save(alias: str) -> None:
    row = register(alias)
    row.balance = 1
    row.save(fence=EARLY)
    assert (stored(row), row.fence) == ((1, EARLY), EARLY)
    row.balance = 2
    row.save(fence=EARLY)
    assert stored(row) == (2, EARLY)
    write_later(row)
    row.balance = 3
    with pytest.raises(LockLost, match=f"with the later fencing token {LATE}; this write with {EARLY} came too late"):
        row.save(fence=EARLY)
    assert (stored(row), row.fence) == ((100, LATE), EARLY)
    row.save(fence=LATE)
    assert stored(row) == (3, LATE)


def test_update_fields(alias: str) -> None:
    row = register(alias, balance=1)
    row.balance, row.owner = 2, "bob"
    row.save(fence=EARLY, update_fields=["balance"])
    assert (stored(row), row.fence) == ((2, EARLY), EARLY)
    assert rows(alias).get(pk=row.pk).owner == "ann"
    with pytest.raises(LockLost):
        row.save(fence=EARLY - 1, update_fields=iter(["balance"]))
    with sent(alias) as texts:
        row.save(fence=LATE, update_fields=[])
    assert not texts
    assert row.fence == EARLY, "nothing was written"


def test_asave(alias: str) -> None:
    row = register(alias, fence=LATE)
    with pytest.raises(LockLost):
        asyncio.run(row.asave(fence=EARLY))
    asyncio.run(row.asave(fence=LATE + 1, update_fields=["balance"]))
    assert stored(row) == (0, LATE + 1)


def test_a_new_row_carries_the_token(alias: str) -> None:
    row = Register(owner="ann")
    row.save(using=alias, fence=EARLY)
    assert (stored(row), row.fence) == ((0, EARLY), EARLY)
    again = Register(pk=row.pk + 1, owner="ann")
    again.save(using=alias, fence=EARLY)
    assert stored(again) == (0, EARLY)
    with pytest.raises(IntegrityError):
        Register(pk=row.pk, owner="ann").save(using=alias, fence=LATE, force_insert=True)


def test_a_made_up_instance_of_a_later_row_is_no_insert(alias: str) -> None:
    row = register(alias, fence=LATE, balance=7)
    with pytest.raises(LockLost):
        Register(pk=row.pk, owner="ann").save(using=alias, fence=EARLY)
    with pytest.raises(LockLost):
        Register(pk=row.pk, owner="ann").save(using=alias)
    assert stored(row) == (7, LATE)


def test_a_row_that_is_gone(alias: str) -> None:
    row = register(alias, fence=EARLY)
    rows(alias).all().delete()
    with pytest.raises(DatabaseError) as caught:
        row.save(fence=LATE, update_fields=["balance"])
    assert not isinstance(caught.value, IntegrityError)
    assert row.fence == EARLY


@pytest.mark.parametrize("fields", [None, ["drawer"], ["balance"], ["drawer", "balance"]])
def test_inheritance(alias: str, fields: Any) -> None:
    row = till(alias)
    row.drawer, row.balance = 1, 2
    row.save(fence=EARLY, update_fields=fields)
    assert stored(row)[1] == row.fence == EARLY
    write_later(row)
    row.drawer = 9
    with transaction.atomic(alias):
        with pytest.raises(LockLost):
            row.save(fence=EARLY, update_fields=fields)
        assert tills(alias).filter(drawer=9).count() == 0, "the transaction goes on"
    new = CashRegister(owner="ann")
    new.save(using=alias, fence=LATE)
    assert (stored(new), new.fence) == ((0, LATE), LATE)


class TestPlainSave:
    """It carries the token that the instance was read with."""

    def test_it_does_not_undo_a_later_write(self, alias: str) -> None:
        row = register(alias)
        row.balance = 1
        row.save()
        assert stored(row) == (1, 0)
        write_later(row)
        for fields in (None, ["owner"]):
            with pytest.raises(LockLost):
                row.save(update_fields=fields)
        assert stored(row) == (100, LATE)

    def test_an_expression(self, alias: str) -> None:
        row = register(alias, fence=EARLY, balance=1)
        row.balance = F("balance") + 1  # type: ignore[assignment]
        row.save(fence=LATE)
        assert stored(row) == (2, LATE)


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Signal handlers that save the instance once more, before and after."""
    calls: list[int] = []

    def again(instance: Register, **kwargs: Any) -> None:
        calls.append(instance.fence)
        if len(calls) == 1:
            Register.objects.using(instance._state.db).get(pk=instance.pk).save()
            instance.save(update_fields=["owner"])

    for signal in (pre_save, post_save):
        signal.connect(again, sender=Register)
    yield calls
    for signal in (pre_save, post_save):
        signal.disconnect(again, sender=Register)


def test_a_transaction_goes_on_after_a_refused_save(alias: str) -> None:
    """Django marks it for rollback after any error of save(), and this one has changed nothing."""
    row, child = register(alias), till(alias)
    with transaction.atomic(using=alias):
        write_later(row)
        write_later(child)
        for stale in (row, child):
            with pytest.raises(LockLost):
                stale.save()
        other = register(alias, owner="bob")
    assert stored(row) == (100, LATE)
    assert stored(other) == (0, 0)
    with transaction.atomic(using=alias):
        with pytest.raises(IntegrityError):
            row.save(force_insert=True)
        assert transaction.get_rollback(using=alias), "any other error is as Django has it"


def test_a_handler_that_saves(alias: str, handled: list[int]) -> None:
    row = rows(alias).model(owner="ann", fence=LATE)
    rows(alias).bulk_create([row])
    row = rows(alias).get()
    with pytest.raises(LockLost):
        row.save(fence=EARLY)
    assert stored(row) == (0, LATE)
    assert row.fence == LATE


def test_one_statement_inside_a_transaction(alias: str) -> None:
    row = register(alias)
    with transaction.atomic(alias), sent(alias) as texts:
        row.save(fence=EARLY)
    assert len(texts) == 1, texts
    assert texts[0].count("fence") >= 2
