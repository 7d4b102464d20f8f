"""save(fence=), and which token a plain save() carries: however the instance was read, a later holder's write is not
undone."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from django.core import serializers
from django.db import DatabaseError, IntegrityError, models, transaction
from django.db.models import F
from django.db.models.signals import post_save, pre_save

from django_distlock import LockLost, LockNotHeld, UnsupportedOperation, advisory_lock, row_lock
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
    row.balance = 1
    rows(using).filter(pk=row.pk).update(fence=LATE + 1)
    models.Model.save_base(row, using=using)
    assert stored(row) == (1, LATE), "Django's own save undoes a later write"


def test_new_rows_and_rows_that_are_gone(using: str) -> None:
    row = Register(owner="ann")
    row.save(using=using, fence=EARLY)
    assert (stored(row), row.fence) == ((0, EARLY), EARLY)
    refused(Register(pk=row.pk, owner="ann").save, IntegrityError, fence=LATE, force_insert=True)
    rows(using).all().delete()
    with pytest.raises(DatabaseError) as caught:
        row.save(fence=LATE, update_fields=["balance"])
    assert not isinstance(caught.value, IntegrityError)
    assert row.fence == EARLY


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


@everywhere
def test_inheritance(using: str) -> None:
    for fields in (None, ["drawer"], ["balance"], ["drawer", "balance"]):
        row = till(using)
        row.drawer, row.balance = 1, 2
        row.save(fence=EARLY, update_fields=fields)
        assert stored(row)[1] == row.fence == EARLY
        write_later(row)
        row.drawer = 9
        with transaction.atomic(using):
            refused(row.save, fence=EARLY, update_fields=fields)
            assert tills(using).filter(drawer=9).count() == 0, "the transaction goes on"
    new = CashRegister(owner="ann")
    new.save(using=using, fence=LATE)
    assert (stored(new), new.fence) == ((0, LATE), LATE)


@everywhere
def test_a_transaction_goes_on_after_a_refused_save(using: str) -> None:
    """Django marks it for rollback after any error of save(), and this one has changed nothing."""
    row, child = register(using), till(using)
    with transaction.atomic(using=using):
        for stale in (row, child):
            write_later(stale)
            refused(stale.save)
        other = register(using, owner="bob")
    assert (stored(row), stored(other)) == ((100, LATE), (0, 0))
    with transaction.atomic(using=using):
        refused(row.save, IntegrityError, force_insert=True)
        assert transaction.get_rollback(using=using), "any other error is as Django has it"


def test_a_handler_that_saves_the_instance_once_more(using: str) -> None:
    calls: list[int] = []

    def again(instance: Register, **kwargs: Any) -> None:
        calls.append(instance.fence)
        if len(calls) == 1:
            rows(using).get(pk=instance.pk).save()
            instance.save(update_fields=["owner"])

    row = register(using, fence=LATE)
    for signal in (pre_save, post_save):
        signal.connect(again, sender=Register)
    try:
        refused(row.save, fence=EARLY)
    finally:
        for signal in (pre_save, post_save):
            signal.disconnect(again, sender=Register)
    assert (stored(row), row.fence) == ((0, LATE), LATE)


def test_an_expression_is_no_token(using: str) -> None:
    row = register(using, fence=EARLY)
    for fence in (F("fence"), None, "7"):
        row.fence = fence
        with pytest.raises(TypeError, match="must be an int"):
            row.save()
    row.save(fence=LATE)
    assert stored(row) == (0, LATE)


# -- deferred fences


def pickled(row: Any) -> Any:
    return pickle.loads(pickle.dumps(row))  # noqa: S301 - our own


def base(using: str) -> Any:
    return Register._base_manager.using(using)


# What has the fence all the same, and what has not.
READ: dict[str, Callable[[str, int], Any]] = {
    "defer": lambda using, pk: rows(using).defer("fence").get(pk=pk),
    "only": lambda using, pk: rows(using).only("balance").get(pk=pk),
    "only, then defer": lambda using, pk: rows(using).only("balance", "fence").defer("fence").get(pk=pk),
    "a fenced queryset": lambda using, pk: rows(using).fenced(EARLY).only("balance").get(pk=pk),
}
UNREAD: dict[str, Callable[[str, int], Any]] = {
    "another manager": lambda using, pk: base(using).only("balance").get(pk=pk),
    "raw": lambda using, pk: next(
        iter(rows(using).raw("SELECT id, balance FROM dataapp_register WHERE id = %s", [pk]))
    ),
    "from_db": lambda using, pk: Register.from_db(using, ["id", "balance"], [pk, 0]),
}
if peers := getattr(models, "FETCH_PEERS", None):  # Django 6.1: its deferred fields are set past refresh_from_db()
    UNREAD["peers"] = lambda using, pk: base(using).fetch_mode(peers).only("balance").get(pk=pk)


@pytest.mark.parametrize("way", [*READ, *UNREAD])
def test_a_stale_holder_undoes_nothing(using: str, way: str) -> None:
    row = (READ | UNREAD)[way](using, register(using, fence=EARLY).pk)
    row.balance = 1
    if way in READ:
        with sent(using) as texts:
            row.save()
        assert (len(texts), stored(row)) == (1, (1, EARLY)), "no question for the fence"
    write_later(row)
    error = LockLost if way in READ else UnsupportedOperation
    refused(row.save, error)
    refused(row.save, error, update_fields=["balance"])
    refused(lambda: asyncio.run(row.asave()), error)
    assert stored(row) == (100, LATE)
    row.save(update_fields=[])  # saves nothing


@pytest.mark.parametrize("way", UNREAD)
def test_a_fence_that_was_read_later_does_not_count(using: str, way: str) -> None:
    """Nor one that is given but is too early. The message advises to read the whole row."""
    row = UNREAD[way](using, register(using, fence=EARLY).pk)
    refused(row.save, fence=EARLY - 1)
    refused(row.save, UnsupportedOperation)  # as it was before
    write_later(row)
    assert row.fence == LATE, "Django fetches it when it is asked for"
    for kept in (row, copy.copy(row), pickled(row)):
        with pytest.raises(UnsupportedOperation, match=r"read the whole row \(refresh_from_db\(\)\)"):
            kept.save()
    with sent(using) as texts:
        row.refresh_from_db()
    assert len(texts) == 1
    row.save()
    row = UNREAD[way](using, row.pk)
    row.save(fence=LATE)  # what is given is worth more than any that was read, and stays
    row.save()
    assert stored(row) == (row.balance, row.fence) == (100 if way != "from_db" else 0, LATE)


def test_a_part_of_the_row_that_is_read_again(using: str) -> None:
    row = register(using, fence=EARLY)
    row.refresh_from_db(fields=["fence"])
    row.refresh_from_db(fields=iter(["balance"]))
    row.save()  # nobody has written
    write_later(row)
    row.refresh_from_db(fields=["owner"])
    refused(row.save)
    for fields in (["fence"], ["balance", "fence"]):
        row.refresh_from_db(fields=fields)
        refused(row.save, UnsupportedOperation)
    row.refresh_from_db()
    row.save()
    row = register(using, fence=EARLY)
    write_later(row)
    row.refresh_from_db(fields=["owner"], from_queryset=rows(using))  # its only() has the fence
    refused(row.save, UnsupportedOperation)
    assert stored(row) == (100, LATE)


def test_a_queryset_that_leaves_out_what_was_read(using: str) -> None:
    """refresh_from_db() gives the later fence then, and keeps the old balance."""
    for queryset in (rows(using).defer("balance"), rows(using).only("owner"), base(using).defer("balance")):
        row = register(using, fence=EARLY)
        write_later(row)
        row.refresh_from_db(from_queryset=queryset)
        assert (row.balance, row.fence) == (0, LATE)
        refused(row.save, UnsupportedOperation)
    row = rows(using).defer("balance").get(pk=register(using, fence=EARLY).pk)
    write_later(row)
    row.refresh_from_db(from_queryset=rows(using).defer("balance"))
    row.save()  # its balance was never read
    assert stored(row) == (100, LATE)


def test_proxies_and_parents(using: str) -> None:
    proxy = RegisterProxy._base_manager.using(using).only("owner").get(pk=register(using).pk)
    child = CashRegister._base_manager.using(using).only("drawer").get(pk=till(using).pk)
    for row in (proxy, child):
        refused(row.save, UnsupportedOperation)
        refused(row.save, UnsupportedOperation, force_insert=True)
    proxy = RegisterProxy.objects.using(using).defer("fence").get(pk=proxy.pk)
    child = tills(using).only("drawer").get(pk=child.pk)
    for row in (proxy, child):
        write_later(row)
        refused(row.save)
        assert stored(row) == (100, LATE)


# -- an instance that a fenced queryset has read carries its token


def locked(found: Any) -> Any:
    with row_lock(found) as (row,):
        return row


WAYS: dict[str, Callable[[Any], Any]] = {
    "index": lambda found: found[0],
    "iterator": lambda found: next(iter(found.iterator())),
    "in_bulk": lambda found: next(iter(found.in_bulk().values())),
    "get_or_create": lambda found: found.get_or_create(owner="ann")[0],
    "select_for_update": lambda found: found.select_for_update().get(),
    "slice": lambda found: found.order_by("pk").using("default").all()[0:1].get(),
    "pickled": lambda found: pickled(found.get()),
    "copied": lambda found: copy.deepcopy(found.get()),
    "row_lock": lambda found: locked(found),
}


def test_ways_to_read(using: str) -> None:
    for way, read in WAYS.items():
        row = register(using)
        with transaction.atomic(using):
            read(rows(using).filter(pk=row.pk).fenced(EARLY)).save()
        assert stored(row) == (0, EARLY), way
    assert rows(using).fenced(EARLY).values_list("owner", flat=True).first() == "ann"


@everywhere
def test_what_a_fenced_queryset_has_read(using: str) -> None:
    for model, made in ((rows, register(using)), (tills, till(using))):
        row = model(using).fenced(EARLY).get(pk=made.pk)
        assert row.fence == 0, "what the row has"
        row.balance = 1
        row.save()
        assert (stored(row), row.fence) == ((1, EARLY), EARLY)
        write_later(row)
        late = model(using).fenced(EARLY).get(pk=made.pk)
        assert late.fence == LATE
        made.refresh_from_db(from_queryset=model(using).fenced(EARLY))
        for stale in (row, late, made):
            refused(stale.save)
            stale.refresh_from_db()
            refused(stale.save, update_fields=["balance"])
        assert stored(row) == (100, LATE)


def test_a_later_token_of_the_same_holder(using: str) -> None:
    pk = register(using).pk
    row, other = (rows(using).fenced(EARLY).get(pk=pk) for _ in range(2))
    row.save(fence=LATE)
    row.save()
    rows(using).fenced(LATE).bulk_update([other], ["balance"])
    other.save()
    assert stored(row) == (0, LATE)


def test_the_lease_is_asked(using: str) -> None:
    pk = register(using).pk
    with advisory_lock("register", using="leasetable") as lease:
        row = rows(using).fenced(lease).get(pk=pk)
        row.save()
        sent_on = pickled(row)
    with sent(using) as texts, pytest.raises(LockNotHeld):
        row.save()
    assert not texts
    sent_on.save()  # in another process the number is all that there is
    assert stored(row) == (0, lease.fence)
