"""Model.objects.fenced(token).update(): all rows or none, in one statement where one row is named."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.db.models import Count, F

from django_distlock import LockLost
from django_distlock.data import FencedQuerySet
from tests.conftest import PATIENCE, eventually
from tests.data.app.models import Account, FencedLedger, Register
from tests.data.asking import run
from tests.data.conftest import every_database
from tests.data.fences import EARLY, LATE, register, rows, sent, stored, till, tills
from tests.engines.statements import counted
from tests.faults.server import is_mariadb

pytestmark = pytest.mark.usefixtures("fenced")


@every_database
def test_a_later_token_writes_and_an_earlier_one_is_refused(alias: str) -> None:
    row = register(alias)
    mine = rows(alias).filter(pk=row.pk)
    assert rows(alias).fenced(LATE).filter(pk=row.pk).update(balance=1) == 1
    assert mine.fenced(LATE).update(balance=2) == 1, "the same holder may write twice"
    with pytest.raises(LockLost, match=f"the later fencing token {LATE}; this write with {EARLY} came too late"):
        rows(alias).fenced(EARLY).filter(pk=row.pk).update(balance=3)
    with pytest.raises(LockLost):
        copy.deepcopy(mine.fenced(EARLY)).update(balance=1)
    with pytest.raises(LockLost):
        asyncio.run(mine.fenced(EARLY).aupdate(balance=1))
    assert stored(row) == (2, LATE)
    assert mine.fenced(2**63 - 1).update() == 1, "no field raises only the fence"
    assert stored(row) == (2, 2**63 - 1)
    assert mine.update(balance=9) == 1, "without the fence a late write is accepted"


def test_a_filter_without_a_match_is_no_loss(alias: str) -> None:
    row = register(alias, fence=LATE, balance=1)
    early = rows(alias).fenced(EARLY)
    for nothing in (early.filter(pk=row.pk + 1), early.filter(balance=7), early.none(), early.filter(pk__in=[])):
        assert nothing.update(balance=3) == 0


@every_database
def test_one_late_row_among_several_refuses_all(alias: str) -> None:
    first, second = register(alias, balance=1), register(alias, fence=LATE, balance=2)
    for _ in range(2):
        with pytest.raises(LockLost):
            rows(alias).fenced(EARLY).filter(owner="ann").update(balance=9)
        assert [stored(first), stored(second)] == [(1, 0), (2, LATE)]
    with transaction.atomic(alias):
        with pytest.raises(LockLost):
            rows(alias).fenced(EARLY).filter(owner="ann").update(balance=9)
        assert [stored(first), stored(second)] == [(1, 0), (2, LATE)]
        # the transaction goes on
        assert rows(alias).fenced(EARLY).filter(pk=first.pk).update(balance=3) == 1
    assert [stored(first), stored(second)] == [(3, EARLY), (2, LATE)]


@every_database
def test_filters_before_and_after(alias: str) -> None:
    ann, bob = register(alias), register(alias, owner="bob")
    assert rows(alias).filter(owner="bob").fenced(EARLY).exclude(pk=ann.pk).update(balance=F("balance") + 4) == 1
    assert [stored(ann), stored(bob)] == [(0, 0), (4, EARLY)]
    assert rows(alias).order_by("-owner").fenced(LATE).select_related(None).update(balance=F("fence")) == 2
    assert [stored(ann), stored(bob)] == [(0, LATE), (EARLY, LATE)]
    named = rows(alias).annotate(more=F("balance") + 1).fenced(LATE).filter(more__gt=EARLY)
    assert named.update(balance=F("more")) == 1
    assert stored(bob) == (EARLY + 1, LATE)


@every_database
def test_a_filter_over_a_join_and_an_aggregate(alias: str) -> None:
    row = till(alias, drawer=4)
    register(alias)
    assert rows(alias).fenced(EARLY).filter(cashregister__drawer=4).update(balance=1) == 1
    some = rows(alias).annotate(n=Count("cashregister")).filter(n=1).fenced(EARLY)
    assert some.update(balance=F("balance") + 1) == 1
    with pytest.raises(LockLost):
        rows(alias).fenced(EARLY - 1).filter(cashregister__drawer=4).update(balance=9)
    assert stored(row) == (2, EARLY)
    ledger = FencedLedger.objects.using(alias).create(fence=LATE)  # a name that must be quoted
    with pytest.raises(LockLost):
        FencedLedger.objects.using(alias).fenced(EARLY).filter(pk=ledger.pk).update(amount=1)


def test_what_is_refused_before_anything_is_sent(alias: str) -> None:
    with sent(alias) as texts:
        for model in (rows, tills):
            with pytest.raises(TypeError, match="Cannot update a query once a slice has been taken"):
                model(alias).fenced(EARLY)[:1].update(balance=1)
            with pytest.raises(TypeError, match="Combine the querysets first"):
                model(alias).fenced(EARLY) | model(alias)
            with pytest.raises(TypeError, match="Combine the querysets first"):
                model(alias) & model(alias).fenced(EARLY)
            with pytest.raises(TypeError, match="'fence' is set by fenced"):
                model(alias).fenced(EARLY).update(fence=LATE)
        with pytest.raises(TypeError, match="Account has no fence; let it inherit from"):
            FencedQuerySet(Account).fenced(EARLY)
    assert not texts


BAD: list[tuple[Any, type[Exception], str]] = [
    (True, TypeError, "fence must be a lease or an int, not bool."),
    (None, TypeError, "fence must be a lease or an int, not NoneType."),
    (1.0, TypeError, "fence must be a lease or an int, not float."),
    ("1", TypeError, "fence must be a lease or an int, not str."),
    (-1, ValueError, "fence must be from 0 to 2**63 - 1, not -1."),
    (2**63, ValueError, "fence must be from 0 to 2**63 - 1, not 9223372036854775808."),
]


def test_bad_tokens() -> None:
    for token, error, message in BAD:
        with pytest.raises(error) as caught:
            Register.objects.fenced(token)
        assert str(caught.value) == message
        with pytest.raises(error, match=r"^fence must be "):
            Register(owner="ann").save(fence=token if token is not None else "none")


@pytest.mark.parametrize(("using", "alias"), [("postgres", "postgres"), ("mysql", "mariadb")])
def test_statements(using: str, alias: str) -> None:
    """One for a row by its key; the question who was late only where a row may have been passed over."""
    row = register(alias)
    for condition, expected in (({"pk": row.pk}, 1), ({"pk__in": [row.pk]}, 1), ({"owner": "ann"}, 2)):
        with counted(using) as found:
            rows(alias).fenced(EARLY).filter(**condition).update(balance=1)
        assert sum(found[text] for text in found if text.startswith(("UPDATE", "SELECT"))) == expected, found


@every_database
def test_a_fence_in_the_table_of_the_parent(alias: str) -> None:
    row, late = till(alias), till(alias, fence=LATE + 1)
    assert tills(alias).fenced(LATE).filter(pk=row.pk).update(drawer=1, balance=2) == 1
    assert tills(alias).fenced(LATE).filter(drawer=1).update(drawer=3) == 1
    assert tills(alias).fenced(LATE).filter(balance=2).update() == 1
    for fields in ({"drawer": 9}, {"balance": 9}, {"drawer": 9, "balance": 9}):
        with pytest.raises(LockLost):
            tills(alias).fenced(EARLY).filter(pk=row.pk).update(**fields)
    with transaction.atomic(alias):
        with pytest.raises(LockLost):
            tills(alias).fenced(LATE).update(drawer=9)
        assert tills(alias).filter(drawer=9).count() == 0
    row.refresh_from_db()
    assert (row.drawer, row.balance, row.fence) == (3, 2, LATE)
    assert stored(late) == (0, LATE + 1)


class Meanwhile:
    """A write that waits for a row, because a later holder has written it and not committed yet."""

    def __init__(self, alias: str, write: Any) -> None:
        self.alias, self.write, self.result = alias, write, None
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            self.result = self.write()
        except Exception as error:
            self.result = error
        finally:
            connections.close_all()

    def during(self, row: Register) -> Any:
        """What came of the write, that was sent while the later one was not committed."""
        query = {
            "postgres": "SELECT count(*) FROM pg_locks WHERE NOT granted",
            # INNODB_LOCK_WAITS is a copy that is renewed only when nobody has looked for 0.1 s
            "mariadb": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
        }[self.alias]
        with transaction.atomic(self.alias):
            rows(self.alias).fenced(LATE).filter(pk=row.pk).update(balance=100)
            self.thread.start()
            eventually(lambda: int(run(self.alias, query)[0][-1]) > 0, "nobody waits")
        self.thread.join(PATIENCE)
        return self.result


@pytest.mark.parametrize("alias", ["postgres", "mariadb"])
class TestRace:
    """The later holder commits while the early write waits for the row."""

    def test_the_row_is_judged_as_it_is_after_the_wait(self, alias: str) -> None:
        row = register(alias)
        write = Meanwhile(alias, lambda: rows(alias).fenced(EARLY).filter(pk=row.pk).update(balance=1))
        assert isinstance(write.during(row), LockLost)
        assert stored(row) == (100, LATE)

    def test_several_rows(self, alias: str) -> None:
        """The snapshot of the question must not be older than the write of the other. A server that compares with the
        snapshot, MariaDB by default from 11.6.2 on, refuses the late write itself (1020)."""
        came = self.of_several_rows(alias, compares=False)
        assert isinstance(came, LockLost)
        if alias == "mariadb" and is_mariadb():
            came = self.of_several_rows(alias, compares=True)
            assert isinstance(came, OperationalError)
            assert came.args[0] == 1020

    def of_several_rows(self, alias: str, *, compares: bool) -> Any:
        """What came of a write of two rows, one of which the other wrote after the snapshot was taken."""
        first, row = register(alias), register(alias)

        def early() -> Any:
            if alias == "mariadb":
                run(alias, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                if is_mariadb():
                    run(alias, "SET SESSION innodb_snapshot_isolation = %s", compares)
            with transaction.atomic(alias):
                list(rows(alias).all())  # takes the snapshot
                return rows(alias).fenced(EARLY).filter(pk__in=[first.pk, row.pk]).update(balance=1)

        came = Meanwhile(alias, early).during(row)
        assert [stored(first), stored(row)] == [(0, 0), (100, LATE)]
        return came

    def test_a_filter_over_a_join(self, alias: str) -> None:
        """Django moves the condition into a subselect there, and PostgreSQL does not look at that again."""
        row = till(alias)
        joined = {"cashregister__drawer": 0, "pk": row.pk}

        def naive() -> Any:
            return rows(alias).filter(fence__lte=EARLY, **joined).update(balance=1, fence=EARLY)

        accepted = Meanwhile(alias, naive).during(row)
        if alias == "postgres":
            assert accepted == 1
            assert stored(row) == (1, EARLY), "a stale write over a join"
        rows(alias).filter(pk=row.pk).update(balance=0, fence=0)
        write = Meanwhile(alias, lambda: rows(alias).fenced(EARLY).filter(**joined).update(balance=1))
        assert isinstance(write.during(row), LockLost)
        assert stored(row) == (100, LATE)
