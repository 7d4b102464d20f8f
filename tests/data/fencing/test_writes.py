"""delete, bulk_update, create and their kin under fenced(), and what a lease does to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_distlock import LockLost, LockNotHeld, UnsupportedOperation, advisory_lock
from django_distlock.manager.release import lose
from tests.data.app.models import CashRegister, Register
from tests.data.conftest import every_database
from tests.data.fences import EARLY, LATE, LEASES, register, rows, sent, stored, till, tills

if TYPE_CHECKING:
    from django_distlock import Lease

pytestmark = pytest.mark.usefixtures("fenced")


@every_database
def test_delete(alias: str) -> None:
    row = register(alias, fence=LATE)
    with pytest.raises(LockLost):
        rows(alias).fenced(EARLY).filter(pk=row.pk).delete()
    assert stored(row) == (0, LATE)
    assert rows(alias).fenced(LATE).filter(pk=row.pk).delete() == (1, {"dataapp.Register": 1})
    assert rows(alias).fenced(LATE).filter(pk=row.pk).delete()[0] == 0
    first, second = till(alias), till(alias, fence=LATE)
    with pytest.raises(LockLost):
        tills(alias).fenced(EARLY).delete()
    assert [stored(first), stored(second)] == [(0, 0), (0, LATE)]
    assert asyncio.run(tills(alias).fenced(LATE).adelete())[1] == {"dataapp.CashRegister": 2, "dataapp.Register": 2}
    # Register.objects.delete() would empty the table; Django keeps it off managers
    assert not {"delete", "adelete"} & set(dir(Register.objects))


@every_database
def test_bulk_update(alias: str) -> None:
    some = [register(alias, balance=1) for _ in range(5)]
    for row in some:
        row.balance = 2
    assert rows(alias).fenced(LATE).bulk_update(some, ["balance"], batch_size=2) == 5
    assert {stored(row) for row in some} == {(2, LATE)}
    assert {row.fence for row in some} == {LATE}
    rows(alias).filter(pk=some[4].pk).update(fence=LATE + 1)
    for row in some:
        row.balance = 3
    with transaction.atomic(alias):
        with pytest.raises(LockLost):
            rows(alias).fenced(LATE).bulk_update(some, ["balance"], batch_size=2)
        assert rows(alias).filter(balance=3).count() == 0, "the batches before are undone too"
    with pytest.raises(TypeError, match="'fence' is set by fenced"):
        rows(alias).fenced(LATE).bulk_update(some, ["fence"])


def test_create_carries_the_token(alias: str) -> None:
    for manager in (rows, tills):
        assert stored(manager(alias).fenced(EARLY).create(owner="ann")) == (0, EARLY)
    some = rows(alias).fenced(LATE).bulk_create([Register(owner="bob"), Register(owner="eve")])
    assert {row.fence for row in some} == {LATE}
    assert rows(alias).filter(fence=LATE).count() == 2
    with pytest.raises(UnsupportedOperation, match="cannot be fenced"):
        rows(alias).fenced(EARLY).bulk_create(some, update_conflicts=True, update_fields=["balance"])
    with pytest.raises(TypeError, match="'fence' is set by fenced"):
        rows(alias).fenced(EARLY).create(owner="ann", fence=1)


@every_database
def test_get_and_update_or_create(alias: str) -> None:
    writes = rows(alias).fenced
    row, created = writes(EARLY).get_or_create(owner="ann", defaults={"balance": 1})
    assert (created, stored(row)) == (True, (1, EARLY))
    assert writes(EARLY - 1).get_or_create(owner="ann")[1] is False, "it only reads"
    row, created = writes(LATE).update_or_create({"balance": 2}, {"balance": 3}, owner="ann")
    assert (created, stored(row), row.fence) == (False, (2, LATE), LATE)
    with transaction.atomic(alias):
        with pytest.raises(LockLost):
            writes(EARLY).update_or_create(owner="ann", defaults={"balance": 4})
        assert stored(row) == (2, LATE)
    row, _ = asyncio.run(writes(LATE).aupdate_or_create(owner="bob", create_defaults={"balance": 5}))
    assert stored(row) == (5, LATE)


def write_all(alias: str, lease: Lease, row: Register) -> list[Any]:
    writes = rows(alias).fenced(lease)
    return [
        lambda: writes.filter(pk=row.pk).update(balance=1),
        lambda: writes.filter(pk=row.pk).delete(),
        lambda: writes.bulk_update([row], ["balance"]),
        lambda: writes.create(owner="bob"),
        lambda: writes.bulk_create([Register(owner="bob")]),
        lambda: writes.get_or_create(owner="bob"),
        lambda: writes.update_or_create(owner="ann"),
        lambda: row.save(fence=lease),
        lambda: Register(owner="bob").save(using=alias, fence=lease),
    ]


@pytest.mark.parametrize("state", ["lost", "released"])
def test_a_lease_that_is_over_sends_no_write(alias: str, name: str, state: str) -> None:
    lease = advisory_lock(name, using=LEASES[alias]).acquire()
    row = register(alias)
    assert rows(alias).fenced(lease).filter(pk=row.pk).update(balance=1) == 1
    row.refresh_from_db()
    row.save(fence=lease)
    assert stored(row) == (1, lease.fence)
    writes = write_all(alias, lease, row)
    if state == "lost":
        lose(lease._hold, "stolen")
    else:
        lease.release()
    for write in writes:
        with sent(alias) as texts, pytest.raises(LockLost if state == "lost" else LockNotHeld):
            write()
        assert not [text for text in texts if text.startswith(("UPDATE", "INSERT", "DELETE"))]
    assert stored(row) == (1, lease.fence)


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_an_engine_without_tokens(using: str, name: str) -> None:
    with advisory_lock(name, using=using) as lease:
        with pytest.raises(UnsupportedOperation):
            Register.objects.fenced(lease)
        with pytest.raises(UnsupportedOperation):
            Register(owner="ann").save(fence=lease)


def test_pages_and_reads_are_as_ever(alias: str) -> None:
    row = register(alias, fence=LATE)
    fenced = rows(alias).fenced(EARLY)
    assert list(fenced[:1]) == [row]
    assert fenced.get(pk=row.pk) == row
    assert fenced.values_list("owner", flat=True).first() == "ann"
    assert CashRegister.objects.using(alias).fenced(EARLY).count() == 0
