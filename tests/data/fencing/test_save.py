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
from tests.data.conftest import every_database
from tests.data.fences import EARLY, LATE, register, rows, sent, stored, till, tills

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("fenced")
TABLE = Register._meta.db_table


def write_later(row: Any) -> None:
    rows(row._state.db).filter(pk=row.pk).update(balance=100, fence=LATE)


@every_database
def test_save(alias: str) -> None:
    row = register(alias, balance=0)
    row.balance, row.owner = 1, "bob"
    with transaction.atomic(alias), sent(alias) as texts:
        row.save(fence=EARLY, update_fields=["balance"])
    assert len(texts) == 1, texts
    assert (stored(row), row.fence, rows(alias).get(pk=row.pk).owner) == ((1, EARLY), EARLY, "ann")
    row.balance = F("balance") + 1  # type: ignore[assignment]
    row.save(fence=EARLY)
    assert stored(row) == (2, EARLY)
    write_later(row)
    row.balance = 3
    with pytest.raises(LockLost, match=f"with the later fencing token {LATE}; this write with {EARLY} came too late"):
        row.save(fence=EARLY)
    with pytest.raises(LockLost):
        asyncio.run(row.asave(fence=EARLY - 1, update_fields=iter(["balance"])))
    with sent(alias) as texts:
        row.save(fence=LATE, update_fields=[])
    assert not texts
    assert (stored(row), row.fence) == ((100, LATE), EARLY)
    asyncio.run(row.asave(fence=LATE))
    assert stored(row) == (3, LATE)
    row.balance = 1
    models.Model.save_base(row, using=alias)
    rows(alias).filter(pk=row.pk).update(fence=LATE + 1)
    models.Model.save_base(row, using=alias)
    assert stored(row) == (1, LATE), "Django's own save undoes a later write"


def test_new_rows_and_rows_that_are_gone(alias: str) -> None:
    row = Register(owner="ann")
    row.save(using=alias, fence=EARLY)
    assert (stored(row), row.fence) == ((0, EARLY), EARLY)
    with pytest.raises(IntegrityError):
        Register(pk=row.pk, owner="ann").save(using=alias, fence=LATE, force_insert=True)
    rows(alias).all().delete()
    with pytest.raises(DatabaseError) as caught:
        row.save(fence=LATE, update_fields=["balance"])
    assert not isinstance(caught.value, IntegrityError)
    assert row.fence == EARLY


@every_database
def test_instances_that_were_never_read(alias: str) -> None:
    """A made-up instance of a later row is no insert."""
    row = register(alias, fence=LATE, balance=7)
    text = serializers.serialize("json", [row])
    (deserialized,) = (found.object for found in serializers.deserialize("json", text, using=alias))
    rows(alias).filter(pk=row.pk).update(balance=100, fence=LATE + 1)
    for stale in (Register(pk=row.pk, owner="ann"), deserialized):
        for token in ({}, {"fence": EARLY}):
            with pytest.raises(LockLost):
                stale.save(using=alias, **token)
    assert stored(row) == (100, LATE + 1)


@every_database
def test_inheritance(alias: str) -> None:
    for fields in (None, ["drawer"], ["balance"], ["drawer", "balance"]):
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


@every_database
def test_a_transaction_goes_on_after_a_refused_save(alias: str) -> None:
    """Django marks it for rollback after any error of save(), and this one has changed nothing."""
    row, child = register(alias), till(alias)
    with transaction.atomic(using=alias):
        for stale in (row, child):
            write_later(stale)
            with pytest.raises(LockLost):
                stale.save()
        other = register(alias, owner="bob")
    assert (stored(row), stored(other)) == ((100, LATE), (0, 0))
    with transaction.atomic(using=alias):
        with pytest.raises(IntegrityError):
            row.save(force_insert=True)
        assert transaction.get_rollback(using=alias), "any other error is as Django has it"


@pytest.fixture
def handled() -> Iterator[None]:
    """Signal handlers that save the instance once more, before and after."""
    calls: list[int] = []

    def again(instance: Register, **kwargs: Any) -> None:
        calls.append(instance.fence)
        if len(calls) == 1:
            Register.objects.using(instance._state.db).get(pk=instance.pk).save()
            instance.save(update_fields=["owner"])

    for signal in (pre_save, post_save):
        signal.connect(again, sender=Register)
    yield
    for signal in (pre_save, post_save):
        signal.disconnect(again, sender=Register)


def test_a_handler_that_saves(alias: str, handled: None) -> None:
    rows(alias).bulk_create([Register(owner="ann", fence=LATE)])
    row = rows(alias).get()
    with pytest.raises(LockLost):
        row.save(fence=EARLY)
    assert (stored(row), row.fence) == ((0, LATE), LATE)


def test_an_expression_is_no_token(alias: str) -> None:
    row = register(alias, fence=EARLY)
    for fence in (F("fence"), None, "7"):
        row.fence = fence  # type: ignore[assignment]
        with pytest.raises(TypeError, match="must be an int"):
            row.save()
    row.balance = 2
    row.save(fence=LATE)
    assert stored(row) == (2, LATE)


# -- deferred fences


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


@pytest.mark.parametrize("way", [*READ, *UNREAD])
def test_a_stale_holder_undoes_nothing(alias: str, way: str) -> None:
    row = (READ | UNREAD)[way](alias, register(alias, fence=EARLY).pk)
    write_later(row)
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
def test_the_fence_comes_with_the_row(alias: str, way: str) -> None:
    row = READ[way](alias, register(alias, fence=EARLY).pk)
    with sent(alias) as texts:
        row.balance = 1
        row.save()
    assert len(texts) == 1, "no question for the fence"
    assert stored(row) == (1, EARLY)


@pytest.mark.parametrize("way", UNREAD)
def test_a_fence_that_was_read_later_does_not_count(alias: str, way: str) -> None:
    """Nor one that is given but is too early. The message advises to read the whole row."""
    row = UNREAD[way](alias, register(alias, fence=EARLY).pk)
    with pytest.raises(LockLost):
        row.save(fence=EARLY - 1)
    with pytest.raises(UnsupportedOperation):
        row.save()  # as it was before
    write_later(row)
    assert row.fence == LATE, "Django fetches it when it is asked for"
    for kept in (row, copy.copy(row), pickled(row)):
        with pytest.raises(UnsupportedOperation, match=r"read the whole row \(refresh_from_db\(\)\)"):
            kept.save()
    with sent(alias) as texts:
        row.refresh_from_db()
    assert len(texts) == 1
    row.save()
    row = UNREAD[way](alias, row.pk)
    row.save(fence=LATE)  # what is given is worth more than any that was read, and stays
    row.save()
    assert stored(row) == (row.balance, row.fence) == (100 if way != "from_db" else 0, LATE)


def test_a_part_of_the_row_that_is_read_again(alias: str) -> None:
    row = register(alias, fence=EARLY)
    row.refresh_from_db(fields=["fence"])
    row.refresh_from_db(fields=iter(["balance"]))
    row.save()  # nobody has written
    write_later(row)
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
    write_later(row)
    row.refresh_from_db(fields=["owner"], from_queryset=rows(alias))  # its only() has the fence
    with pytest.raises(UnsupportedOperation):
        row.save()
    assert stored(row) == (100, LATE)


def test_a_queryset_that_leaves_out_what_was_read(alias: str) -> None:
    """refresh_from_db() gives the later fence then, and keeps the old balance."""
    for queryset in (rows(alias).defer("balance"), rows(alias).only("owner"), base(alias).defer("balance")):
        row = register(alias, fence=EARLY)
        write_later(row)
        row.refresh_from_db(from_queryset=queryset)
        assert (row.balance, row.fence) == (0, LATE)
        with pytest.raises(UnsupportedOperation):
            row.save()
        assert stored(row) == (100, LATE)
    row = rows(alias).defer("balance").get(pk=register(alias, fence=EARLY).pk)
    write_later(row)
    row.refresh_from_db(from_queryset=rows(alias).defer("balance"))
    row.save()  # its balance was never read
    assert stored(row) == (100, LATE)


def test_proxies_and_parents(alias: str) -> None:
    proxy = RegisterProxy._base_manager.using(alias).only("owner").get(pk=register(alias).pk)
    child = CashRegister._base_manager.using(alias).only("drawer").get(pk=till(alias).pk)
    for row in (proxy, child):
        for arguments in ({}, {"force_insert": True}):
            with pytest.raises(UnsupportedOperation):
                row.save(**arguments)
    proxy = RegisterProxy.objects.using(alias).defer("fence").get(pk=proxy.pk)
    child = tills(alias).only("drawer").get(pk=child.pk)
    for row in (proxy, child):
        write_later(row)
        with pytest.raises(LockLost):
            row.save()
        assert stored(row) == (100, LATE)


def test_only_and_defer_are_djangos_otherwise(alias: str) -> None:
    pk = till(alias).pk
    assert rows(alias).only("owner").get(pk=pk).get_deferred_fields() == {"balance"}
    assert rows(alias).defer("owner").get(pk=pk).get_deferred_fields() == {"owner"}
    assert not rows(alias).defer("owner").defer(None).get(pk=pk).get_deferred_fields()
    assert not rows(alias).only().get(pk=pk).get_deferred_fields()
    with pytest.raises(TypeError):
        rows(alias).only(None)
    assert list(rows(alias).values("owner").filter(pk=pk)) == [{"owner": "ann"}]


# -- an instance that a fenced queryset has read carries its token


WAYS: dict[str, Callable[[Any], Any]] = {
    "index": lambda found: found[0],
    "iterator": lambda found: next(iter(found.iterator())),
    "in_bulk": lambda found: next(iter(found.in_bulk().values())),
    "get_or_create": lambda found: found.get_or_create(owner="ann")[0],
    "select_for_update": lambda found: found.select_for_update().get(),
    "slice": lambda found: found.order_by("pk").using("default").all()[0:1].get(),
    "pickled": lambda found: pickled(found.get()),
    "copied": lambda found: copy.deepcopy(found.get()),
}


def test_ways_to_read(alias: str) -> None:
    for way, read in WAYS.items():
        row = register(alias)
        with transaction.atomic(alias):
            read(rows(alias).filter(pk=row.pk).fenced(EARLY)).save()
        assert stored(row) == (0, EARLY), way
    row = register(alias)
    with row_lock(rows(alias).filter(pk=row.pk).fenced(EARLY)) as (locked,):
        locked.save()
    assert stored(row) == (0, EARLY)


@every_database
def test_what_a_fenced_queryset_has_read(alias: str) -> None:
    for model, made in ((rows, register(alias)), (tills, till(alias))):
        row = model(alias).fenced(EARLY).get(pk=made.pk)
        assert row.fence == 0, "what the row has"
        row.balance = 1
        row.save()
        assert (stored(row), row.fence) == ((1, EARLY), EARLY)
        write_later(row)
        late = model(alias).fenced(EARLY).get(pk=made.pk)
        assert late.fence == LATE
        made.refresh_from_db(from_queryset=model(alias).fenced(EARLY))
        for stale in (row, late, made):
            with pytest.raises(LockLost):
                stale.save()
            stale.refresh_from_db()
            with pytest.raises(LockLost):
                stale.save(update_fields=["balance"])
        assert stored(row) == (100, LATE)


def test_a_later_token_of_the_same_holder(alias: str) -> None:
    pk = register(alias).pk
    row, other = (rows(alias).fenced(EARLY).get(pk=pk) for _ in range(2))
    row.save(fence=LATE)
    row.save()
    rows(alias).fenced(LATE).bulk_update([other], ["balance"])
    other.save()
    assert stored(row) == (0, LATE)


def test_the_lease_is_asked(alias: str) -> None:
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
