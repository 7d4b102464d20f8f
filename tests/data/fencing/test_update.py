"""Writes under fenced(): all rows or none, in one statement where one row is named; and what a lease does to them."""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.db.models import Count, F

from django_distlock import LockLost, LockNotHeld, UnsupportedOperation, advisory_lock
from django_distlock.data import FencedQuerySet
from django_distlock.manager.release import lose
from tests.data.app.models import Account, FencedLedger, Register
from tests.data.world import (
    EARLY,
    LATE,
    everywhere,
    on_servers,
    register,
    rows,
    run,
    sent,
    somebody_waits_for_a_row,
    stored,
    till,
    tills,
)
from tests.faults.server import is_mariadb

if TYPE_CHECKING:
    from collections.abc import Callable


Write = "Callable[[Any, Any], Any]"
# On a fenced queryset, with one row to write.
WRITES: dict[str, Write] = {
    "update": lambda found, row: found.filter(pk=row.pk).update(balance=9),
    "of a copy": lambda found, row: copy.deepcopy(found.filter(pk=row.pk)).update(balance=9),
    "of no field": lambda found, row: found.filter(pk=row.pk).update(),
    "of an expression": lambda found, row: found.filter(owner="ann").exclude(pk=0).update(balance=F("balance") + 9),
    "ordered": lambda found, row: found.order_by("-owner").select_related(None).update(balance=F("fence")),
    "delete": lambda found, row: found.filter(owner="ann").delete(),
    "bulk_update": lambda found, row: found.bulk_update([*rows(found.db).order_by("pk")], ["balance"], batch_size=1),
    "update_or_create": lambda found, row: found.update_or_create({"balance": 9}, {"balance": 1}, pk=row.pk),
    "annotated": lambda found, row: found.annotate(more=F("balance") + 1).filter(more__gt=0).update(balance=F("more")),
}
OF_JOINS: dict[str, Write] = {
    "join": lambda found, row: found.filter(cashregister__drawer=0).update(balance=9),
    "aggregate": lambda found, row: found.annotate(n=Count("cashregister")).filter(n=1).update(balance=9),
}


@everywhere
@pytest.mark.parametrize(
    ("make", "writes"),
    [(register, WRITES), (till, OF_JOINS)],
    ids=["rows", "joins"],
)
def test_a_later_token_writes_and_an_earlier_one_is_refused(using: str, make: Any, writes: Any) -> None:
    """One late row among several refuses all, and the transaction goes on."""
    for way, write in writes.items():
        first, late = make(using, fence=EARLY), make(using, fence=LATE)
        with transaction.atomic(using):
            with pytest.raises(LockLost, match=f"later fencing token {LATE}; this write with {EARLY} came too late"):
                write(rows(using).fenced(EARLY), late)
            assert [stored(first), stored(late)] == [(0, EARLY), (0, LATE)], way
            assert rows(using).fenced(LATE).filter(pk=first.pk).update(balance=1) == 1
        write(rows(using).fenced(LATE + 1), late)
        assert rows(using).filter(pk=late.pk, fence__lte=LATE).count() == 0, way
        assert rows(using).filter(pk=first.pk, fence__lt=LATE).count() == 0, way
        rows(using).all().delete()


@everywhere
def test_what_is_written(using: str) -> None:
    row = register(using)
    mine = rows(using).filter(pk=row.pk)
    for _ in range(2):
        assert mine.fenced(LATE).update(balance=F("balance") + 1) == 1, "the same holder may write twice"
    assert stored(row) == (2, LATE)
    early = rows(using).fenced(EARLY)
    for nothing in (early.filter(pk=row.pk + 1), early.filter(balance=7), early.none(), early.filter(pk__in=[])):
        assert nothing.update(balance=3) == 0, "a filter without a match is no loss"
    assert early.values_list("owner", flat=True).get() == early[:1][0].owner == "ann", "reads are as ever"
    assert mine.fenced(2**63 - 1).update() == 1, "no field raises only the fence"
    assert stored(row) == (2, 2**63 - 1)
    assert mine.update(balance=9) == 1, "without the fence a late write is accepted"
    ledger = FencedLedger.objects.using(using).create(fence=LATE)  # a name that must be quoted
    with pytest.raises(LockLost):
        FencedLedger.objects.using(using).fenced(EARLY).filter(pk=ledger.pk).update(amount=1)


SET = "'fence' is set by fenced"
COMBINED = "Combine the querysets first"
CONFLICTS = {"update_conflicts": True, "update_fields": ["balance"]}
REFUSED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda found: found.fenced(EARLY)[:1].update(balance=1), TypeError, "once a slice has been taken"),
    (lambda found: found.fenced(EARLY) | found.all(), TypeError, COMBINED),
    (lambda found: found.all() & found.fenced(EARLY), TypeError, COMBINED),
    (lambda found: found.fenced(EARLY).update(fence=LATE), TypeError, SET),
    (lambda found: found.fenced(EARLY).create(owner="ann", fence=1), TypeError, "multiple values"),
    (lambda found: tills(found.db).fenced(EARLY), TypeError, "CashRegister has no fence in its own table"),
    (lambda found: found.fenced(EARLY).bulk_create([], **CONFLICTS), UnsupportedOperation, "cannot be fenced"),
    (
        lambda found: FencedQuerySet(Account).fenced(EARLY),
        TypeError,
        "Account has no fence in its own",
    ),
    (lambda found: found.fenced(True), TypeError, "fence must be a lease or an int, not bool."),
    (lambda found: found.fenced(None), TypeError, "fence must be a lease or an int, not NoneType."),
    (lambda found: found.fenced(1.0), TypeError, "fence must be a lease or an int, not float."),
    (lambda found: found.model(owner="ann").save(fence="1"), TypeError, "fence must be a lease or an int, not str."),
    (lambda found: found.fenced(-1), ValueError, r"fence must be from 0 to 2\*\*63 - 1, not -1."),
    (lambda found: found.fenced(2**63), ValueError, "fence must be from 0 to .* not 9223372036854775808."),
]


def test_what_is_refused_before_anything_is_sent(using: str) -> None:
    for call, error, message in REFUSED:
        with sent(using) as texts, pytest.raises(error, match=message):
            call(rows(using))
        assert not texts


def came_of(write: Callable[[], Any], using: str, row: Any) -> Any:
    """What came of a write that was sent while a later holder had written the row and not committed yet."""

    def early() -> Any:
        try:
            return write()
        except Exception as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using):
            rows(using).fenced(LATE).filter(pk=row.pk).update(balance=100)
            came = pool.submit(early)
            somebody_waits_for_a_row(using)
        return came.result()


@on_servers
def test_the_row_is_judged_as_it_is_after_the_wait(using: str) -> None:
    """Also over a join: PostgreSQL does not look again at the subselect into which Django moves the condition."""
    row = till(using)
    joined = {"cashregister__drawer": 0, "pk": row.pk}
    naive = rows(using).filter(fence__lte=EARLY, **joined)
    accepted = came_of(lambda: naive.update(balance=1, fence=EARLY), using, row)
    if using == "postgres":
        assert (accepted, stored(row)) == (1, (1, EARLY)), "a stale write over a join"
    for condition in ({"pk": row.pk}, joined):
        rows(using).filter(pk=row.pk).update(balance=0, fence=0)
        fenced = rows(using).fenced(EARLY).filter(**condition)
        assert isinstance(came_of(lambda fenced=fenced: fenced.update(balance=1), using, row), LockLost)
        assert stored(row) == (100, LATE)


@on_servers
def test_several_rows_are_judged_after_the_wait(using: str) -> None:
    """Also if MariaDB does not refuse the late write itself (1020)."""
    first, row = register(using), register(using)

    def early() -> Any:
        if using == "mariadb":
            run(using, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if is_mariadb():
                run(using, "SET SESSION innodb_snapshot_isolation = OFF")
        with transaction.atomic(using):
            list(rows(using).all())  # takes the snapshot
            return rows(using).fenced(EARLY).filter(pk__in=[first.pk, row.pk]).update(balance=1)

    came = came_of(early, using, row)
    assert [stored(first), stored(row)] == [(0, 0), (100, LATE)]
    assert isinstance(came, LockLost)


@on_servers
@pytest.mark.parametrize("asks", [False, True])
def test_a_save_is_judged_by_what_is_there_now(using: str, asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With select_on_save Django takes a row that its snapshot still shows for one that was updated."""
    monkeypatch.setattr(Register._meta, "select_on_save", asks)
    row = register(using)
    if using == "mariadb":
        run(using, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if is_mariadb():
            run(using, "SET SESSION innodb_snapshot_isolation = OFF")
    with transaction.atomic(using):
        mine = rows(using).get(pk=row.pk)
        for _ in range(2):
            mine.save(fence=EARLY)  # its own write is no later one
    with ThreadPoolExecutor(1) as pool, transaction.atomic(using):
        mine = rows(using).get(pk=row.pk)  # takes the snapshot
        pool.submit(write_late, using, row).result()
        with pytest.raises(LockLost):
            mine.save(fence=EARLY)
    assert (stored(row), mine.fence) == ((100, LATE), EARLY)


def write_late(using: str, row: Any) -> None:
    try:
        rows(using).fenced(LATE).filter(pk=row.pk).update(balance=100)
    finally:
        connections.close_all()


@everywhere
def test_what_creates_carries_the_token(using: str) -> None:
    assert stored(rows(using).fenced(EARLY).create(owner="eve")) == (0, EARLY)
    writes = rows(using).fenced
    some = writes(LATE).bulk_create([Register(owner="eve"), Register(owner="eve")])
    assert {row.fence for row in some} == {LATE}
    assert rows(using).filter(fence=LATE).count() == 2
    row, created = writes(EARLY).get_or_create(owner="ann", defaults={"balance": 1})
    assert (created, stored(row)) == (True, (1, EARLY))
    assert writes(EARLY - 1).get_or_create(owner="ann")[1] is False, "it only reads"
    row, created = writes(LATE).update_or_create({"balance": 2}, {"balance": 3}, owner="ann")
    assert (created, stored(row), row.fence) == (False, (2, LATE), LATE)
    row, _ = asyncio.run(writes(LATE).aupdate_or_create(owner="bob", create_defaults={"balance": 5}))
    assert stored(row) == (5, LATE)
    assert writes(LATE).bulk_update([row], ["balance"]) == 1
    assert writes(LATE).filter(pk=row.pk).delete() == (1, {"dataapp.Register": 1})
    # Register.objects.delete() would empty the table; Django keeps it off managers
    assert not {"delete", "adelete"} & set(dir(Register.objects))


def writes_of(lease: Any, row: Register) -> list[Callable[[], Any]]:
    writes = Register.objects.fenced(lease)
    carried = writes.get(pk=row.pk)  # a plain save() has the lease that it was read with
    return [
        lambda: writes.filter(pk=row.pk).update(balance=1),
        lambda: writes.filter(pk=row.pk).delete(),
        lambda: writes.bulk_update([row], ["balance"]),
        lambda: writes.create(owner="bob"),
        lambda: writes.bulk_create([Register(owner="bob")]),
        lambda: writes.get_or_create(owner="bob"),
        lambda: writes.update_or_create({"balance": 1}, owner="ann"),
        lambda: row.save(fence=lease),
        lambda: Register(owner="bob").save(fence=lease),
        carried.save,
    ]


@pytest.mark.parametrize("error", [LockLost, LockNotHeld])
def test_a_lease_that_is_over_sends_no_write(using: str, name: str, error: type[Exception]) -> None:
    row = register(using)
    lease = advisory_lock(name, using="leasetable").acquire()
    row.save(fence=lease)
    assert stored(row) == (0, lease.fence)
    writes = writes_of(lease, row)
    if error is LockLost:
        lose(lease._hold, "stolen")
    else:
        lease.release()
    for write in writes:
        with sent(using) as texts, pytest.raises(error):
            write()
        assert not [text for text in texts if text.startswith(("UPDATE", "INSERT", "DELETE"))]
