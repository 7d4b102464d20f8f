"""save(fence=) and the token of a plain save(): however it was read, it undoes no later holder's write."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from django.core import serializers
from django.db import DatabaseError, IntegrityError, models, transaction
from django.db.models import F
from django.db.models.signals import pre_save

from django_distlock import LockLost, UnsupportedOperation, row_lock
from tests.data.app.models import CashRegister, Register, RegisterProxy
from tests.data.world import EARLY, LATE, everywhere, register, rows, sent, stored, till, tills

if TYPE_CHECKING:
    from collections.abc import Callable


def write_later(row: Any) -> None:
    rows(row._state.db).filter(pk=row.pk).update(balance=100, fence=LATE)


def refused(save: Callable[..., Any], error: type[Exception] = LockLost, **arguments: Any) -> None:
    with pytest.raises(error):
        save(**arguments)


@everywhere
def test_save(using: str) -> None:
    row = register(using)
    row.balance, row.owner = 1, "bob"
    with transaction.atomic(using), sent(using) as texts:
        row.save(fence=EARLY, update_fields=["balance"])
    assert len(texts) == 1, texts
    assert (stored(row), row.fence, rows(using).get(pk=row.pk).owner) == ((1, EARLY), EARLY, "ann")
    row.balance = F("balance") + 1
    row.save(fence=EARLY)
    assert stored(row) == (2, EARLY)
    write_later(row)
    row.balance = 3
    with pytest.raises(LockLost, match=f"with the later fencing token {LATE}; this write with {EARLY} came too late"):
        row.save(fence=EARLY)
    refused(lambda: asyncio.run(row.asave(fence=EARLY - 1, update_fields=iter(["balance"]))))
    with sent(using) as texts:
        row.save(fence=LATE, update_fields=[])
    assert not texts
    assert (stored(row), row.fence) == ((100, LATE), EARLY)
    asyncio.run(row.asave(fence=LATE))
    assert stored(row) == (3, LATE)
    for fence in (F("fence"), None, "7"):  # an expression is no token
        row.fence = fence
        refused(row.save, TypeError)


def test_new_rows_and_rows_that_are_gone(using: str) -> None:
    for new in (Register(owner="ann"), CashRegister(owner="ann")):
        new.save(using=using, fence=EARLY)
        assert (stored(new), new.fence) == ((0, EARLY), EARLY)
        rows(using).all().delete()
        with pytest.raises(DatabaseError) as caught:
            new.save(fence=LATE, update_fields=["balance"])
        assert not isinstance(caught.value, IntegrityError)
        assert new.fence == EARLY


@everywhere
def test_a_fence_in_the_table_of_the_parent(using: str) -> None:
    for fields in (None, ["drawer"], ["balance"], ["drawer", "balance"]):
        row = till(using)
        row.drawer, row.balance = 1, 2
        row.save(fence=EARLY, update_fields=fields)
        assert stored(row)[1] == row.fence == EARLY
        write_later(row)
        row.drawer = 9
        with transaction.atomic(using):
            with transaction.atomic(using):
                refused(row.save, fence=EARLY, update_fields=fields)
                assert transaction.get_rollback(using)
            assert tills(using).filter(drawer=9).count() == 0


def test_a_handler_that_saves_the_instance_once_more(using: str) -> None:
    def again(instance: Register, **kwargs: Any) -> None:
        pre_save.disconnect(again, sender=Register)
        rows(using).get(pk=instance.pk).save()
        instance.save(update_fields=["owner"])

    row = register(using, fence=LATE)
    pre_save.connect(again, sender=Register)
    refused(row.save, fence=EARLY)
    assert (stored(row), row.fence) == ((0, LATE), LATE)


# -- A plain save() has the fence that was read with the row, or the token of the fenced queryset that read it.


def base(model: Any, using: str) -> Any:
    return model._base_manager.using(using)


def pickled(row: Any) -> Any:
    return pickle.loads(pickle.dumps(row))  # noqa: S301 - our own


def fenced(using: str, pk: int) -> Any:
    return rows(using).filter(pk=pk).fenced(EARLY)


def locked(found: Any) -> Any:
    with row_lock(found) as (row,):
        return row


Found = dict[str, "Callable[[str, int], Any]"]
READ: Found = {
    "get": lambda using, pk: rows(using).get(pk=pk),
    "fenced index": lambda using, pk: fenced(using, pk)[0],
    "fenced only": lambda using, pk: fenced(using, pk).only("balance").get(),
    "fenced iterator": lambda using, pk: next(iter(fenced(using, pk).iterator())),
    "fenced in_bulk": lambda using, pk: next(iter(fenced(using, pk).in_bulk().values())),
    "fenced get_or_create": lambda using, pk: fenced(using, pk).get_or_create(owner="ann")[0],
    "fenced select_for_update": lambda using, pk: fenced(using, pk).select_for_update().get(),
    "fenced slice": lambda using, pk: fenced(using, pk).order_by("pk").using(using).all()[0:1].get(),
    "fenced, pickled": lambda using, pk: pickled(fenced(using, pk).get()),
    "fenced, copied": lambda using, pk: copy.deepcopy(fenced(using, pk).get()),
    "fenced row_lock": lambda using, pk: locked(fenced(using, pk)),
}
UNREAD: Found = {
    "defer": lambda using, pk: rows(using).defer("fence").get(pk=pk),
    "proxy": lambda using, pk: RegisterProxy.objects.using(using).only("balance").get(pk=pk),
    "child": lambda using, pk: tills(using).only("drawer").get(pk=pk),
    "raw": lambda using, pk: next(
        iter(rows(using).raw("SELECT id, balance FROM dataapp_register WHERE id = %s", [pk]))
    ),
    "from_db": lambda using, pk: Register.from_db(using, ["id", "balance"], [pk, 0]),
}
if peers := getattr(models, "FETCH_PEERS", None):  # Django 6.1: its deferred fields are set past refresh_from_db()
    UNREAD["peers"] = lambda using, pk: base(Register, using).fetch_mode(peers).only("balance").get(pk=pk)


@everywhere
def test_a_stale_holder_undoes_nothing(using: str) -> None:
    for way, find in (READ | UNREAD).items():
        with transaction.atomic(using):
            row = find(using, till(using, fence=EARLY - 1).pk)
            if way in READ:
                with sent(using) as texts:
                    row.save()
                assert not [text for text in texts if text.startswith("SELECT")], "no question for the fence"
                assert stored(row)[1] == row.fence == (EARLY if "fenced" in way else EARLY - 1), way
            write_later(row)
            error = LockLost if way in READ else UnsupportedOperation
            for fields in (None, ["balance"]):
                with transaction.atomic(using):
                    refused(row.save, error, update_fields=fields)
            assert stored(row) == (100, LATE), way
            row.save(update_fields=[])  # saves nothing
        refused(lambda row=row: asyncio.run(row.asave()), error)


@everywhere
def test_instances_that_were_never_read(using: str) -> None:
    """A made-up instance of a later row is no insert."""
    row = register(using, fence=LATE, balance=7)
    text = serializers.serialize("json", [row])
    (deserialized,) = (found.object for found in serializers.deserialize("json", text, using=using))
    rows(using).filter(pk=row.pk).update(balance=100, fence=LATE + 1)
    for stale in (Register(pk=row.pk, owner="ann"), deserialized):
        refused(stale.save, using=using)
        refused(stale.save, using=using, fence=EARLY)
    assert stored(row) == (100, LATE + 1)


def test_a_fence_that_was_read_later_does_not_count(using: str) -> None:
    """Nor one that is given but is too early. The message advises to read the whole row."""
    for way, find in UNREAD.items():
        row = find(using, till(using, fence=EARLY).pk)
        refused(row.save, fence=EARLY - 1)
        refused(row.save, UnsupportedOperation)  # as it was before
        refused(row.save, UnsupportedOperation, force_insert=True)
        write_later(row)
        assert row.fence == LATE, "Django fetches it when it is asked for"
        for kept in (row, copy.copy(row), pickled(row)):
            with pytest.raises(UnsupportedOperation, match="read the instance again"):
                kept.save()
        row = find(using, row.pk)
        row.save(fence=LATE)  # what is given is worth more than any that was read, and stays
        row.save()
        assert stored(row) == (row.balance, row.fence) == (100 if way != "from_db" else 0, LATE)


# What is read again after the later write, and with which error the rest is kept from undoing it.
AGAIN: list[tuple[Callable[[str], dict[str, Any]], type[Exception]]] = [
    (lambda using: {"fields": ["owner"]}, LockLost),
    (lambda using: {"fields": iter(["balance", "fence"])}, UnsupportedOperation),
    (lambda using: {"from_queryset": rows(using).defer("balance")}, UnsupportedOperation),
]


def test_a_part_of_the_row_that_is_read_again(using: str) -> None:
    for options, error in AGAIN:
        row = register(using, fence=EARLY)
        row.refresh_from_db(fields=["fence"])
        row.save()  # nobody has written
        write_later(row)
        row.refresh_from_db(**options(using))
        refused(row.save, error)
        assert stored(row) == (100, LATE)
        row.refresh_from_db()  # the remedy that the message names
        row.save()
        assert stored(row) == (100, LATE)
    row = register(using, fence=EARLY)
    write_later(row)
    row.refresh_from_db()
    row.save()
    assert stored(row) == (100, LATE)
    row = register(using, fence=EARLY)
    write_later(row)
    row.refresh_from_db(from_queryset=Register._base_manager.using(using).select_for_update())  # as an edit lock does
    row.save()
    assert stored(row) == (100, LATE)
    row = rows(using).only("owner").get(pk=row.pk)
    row.refresh_from_db()  # it does not read what is deferred
    refused(row.save, UnsupportedOperation)
    assert row.fence == LATE
    row.refresh_from_db()
    row.save()


def test_a_part_of_the_row_that_is_written_with_a_later_token(using: str) -> None:
    """The rest was read before a holder in between wrote it."""
    row = register(using)
    rows(using).filter(pk=row.pk).update(balance=100, fence=EARLY)
    for _ in range(2):
        row.save(fence=LATE, update_fields=["owner"])
        for fields in (None, ["balance"]):
            refused(row.save, UnsupportedOperation, update_fields=fields)
    assert stored(row) == (100, LATE)
    row.refresh_from_db()
    row.save()
    row.save(fence=LATE, update_fields=["owner"])
    row.save()  # nothing is older than the token
    assert stored(row) == (100, LATE)


def test_a_later_token_of_the_same_holder(using: str) -> None:
    pk = register(using).pk
    row, other = (rows(using).fenced(EARLY).get(pk=pk) for _ in range(2))
    assert row.fence == 0, "what the row has"
    row.save(fence=LATE)
    row.save()
    rows(using).fenced(LATE).bulk_update([other], ["balance"])
    other.save()
    assert stored(row) == (0, LATE)
