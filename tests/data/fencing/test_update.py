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
from tests.data.app.models import Account, CashRegister, FencedLedger, Register
from tests.data.fences import EARLY, LATE, register, rows, sent, stored, till, tills
from tests.engines.statements import counted


def test_without_the_fence_a_late_write_is_accepted(alias: str) -> None:
    row = register(alias, fence=LATE, balance=1)
    assert rows(alias).filter(pk=row.pk).update(balance=2) == 1
    assert stored(row) == (2, LATE)


def test_a_later_token_writes_and_an_earlier_one_is_refused(alias: str) -> None:
    row = register(alias)
    assert rows(alias).fenced(LATE).filter(pk=row.pk).update(balance=1) == 1
    assert rows(alias).fenced(LATE).filter(pk=row.pk).update(balance=2) == 1, "the same holder may write twice"
    with pytest.raises(LockLost, match=f"the later fencing token {LATE}; this write with {EARLY} came too late"):
        rows(alias).fenced(EARLY).filter(pk=row.pk).update(balance=3)
    assert stored(row) == (2, LATE)


def test_a_filter_without_a_match_is_no_loss(alias: str) -> None:
    row = register(alias, fence=LATE, balance=1)
    assert rows(alias).fenced(EARLY).filter(pk=row.pk + 1).update(balance=3) == 0
    assert rows(alias).fenced(EARLY).filter(pk=row.pk, balance=7).update(balance=3) == 0
    assert rows(alias).fenced(EARLY).none().update(balance=3) == 0
    assert rows(alias).fenced(EARLY).filter(pk__in=[]).update(balance=3) == 0


@pytest.mark.parametrize("inside", [False, True])
def test_one_late_row_among_several_refuses_all(alias: str, inside: bool) -> None:
    first, second = register(alias, balance=1), register(alias, fence=LATE, balance=2)

    def write() -> None:
        with pytest.raises(LockLost):
            rows(alias).fenced(EARLY).filter(owner="ann").update(balance=9)
        assert [stored(first), stored(second)] == [(1, 0), (2, LATE)]
        # the transaction goes on
        assert rows(alias).fenced(EARLY).filter(pk=first.pk).update(balance=3) == 1

    if inside:
        with transaction.atomic(alias):
            write()
    else:
        write()
    assert [stored(first), stored(second)] == [(3, EARLY), (2, LATE)]


def test_filters_before_and_after(alias: str) -> None:
    ann, bob = register(alias), register(alias, owner="bob")
    assert rows(alias).filter(owner="bob").fenced(EARLY).exclude(pk=ann.pk).update(balance=F("balance") + 4) == 1
    assert [stored(ann), stored(bob)] == [(0, 0), (4, EARLY)]
    assert rows(alias).order_by("-owner").fenced(LATE).select_related(None).update(balance=F("fence")) == 2
    assert [stored(ann), stored(bob)] == [(0, LATE), (EARLY, LATE)]
    named = rows(alias).annotate(more=F("balance") + 1).fenced(LATE).filter(more__gt=EARLY)
    assert named.update(balance=F("more")) == 1
    assert stored(bob) == (EARLY + 1, LATE)


def test_no_field_raises_only_the_fence(alias: str) -> None:
    row = register(alias, balance=1)
    assert rows(alias).fenced(EARLY).filter(pk=row.pk).update() == 1
    assert stored(row) == (1, EARLY)


def test_a_slice_and_a_union_are_refused(alias: str) -> None:
    with pytest.raises(TypeError, match="Cannot update a query once a slice has been taken"):
        rows(alias).fenced(EARLY)[:1].update(balance=1)
    with pytest.raises(TypeError, match="Combine the querysets first"):
        rows(alias).fenced(EARLY) | rows(alias)
    with pytest.raises(TypeError, match="Combine the querysets first"):
        rows(alias) & rows(alias).fenced(EARLY)
    with pytest.raises(TypeError, match="'fence' is set by fenced"):
        rows(alias).fenced(EARLY).update(fence=LATE)


def test_a_name_that_must_be_quoted(alias: str) -> None:
    row = FencedLedger.objects.using(alias).create(fence=LATE)
    with pytest.raises(LockLost):
        FencedLedger.objects.using(alias).fenced(EARLY).filter(pk=row.pk).update(amount=1)


def test_a_copy_keeps_the_token(alias: str) -> None:
    row = register(alias, fence=LATE)
    with pytest.raises(LockLost):
        copy.deepcopy(rows(alias).fenced(EARLY).filter(pk=row.pk)).update(balance=1)


def test_aupdate(alias: str) -> None:
    row = register(alias, fence=LATE)
    with pytest.raises(LockLost):
        asyncio.run(rows(alias).fenced(EARLY).filter(pk=row.pk).aupdate(balance=1))
    assert stored(row) == (0, LATE)


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_statements(databases: None, using: str) -> None:
    """One for a row by its key; the question who was late only where a row may have been passed over."""
    alias = "mariadb" if using == "mysql" else using
    row = register(alias)
    for condition, expected in (({"pk": row.pk}, 1), ({"pk__in": [row.pk]}, 1), ({"owner": "ann"}, 2)):
        with counted(using) as found:
            rows(alias).fenced(EARLY).filter(**condition).update(balance=1)
        assert sum(found[text] for text in found if text.startswith(("UPDATE", "SELECT"))) == expected, found
    rows(alias).all().delete()


class TestInheritance:
    """The fence is in the parent's table."""

    def test_fields_of_both_tables(self, alias: str) -> None:
        row = till(alias)
        assert tills(alias).fenced(LATE).filter(pk=row.pk).update(drawer=1, balance=2) == 1
        assert tills(alias).fenced(LATE).filter(drawer=1).update(drawer=3) == 1
        assert tills(alias).fenced(LATE).filter(balance=2).update() == 1
        for fields in ({"drawer": 9}, {"balance": 9}, {"drawer": 9, "balance": 9}):
            with pytest.raises(LockLost):
                tills(alias).fenced(EARLY).filter(pk=row.pk).update(**fields)
        row.refresh_from_db()
        assert (row.drawer, row.balance, row.fence) == (3, 2, LATE)

    def test_one_late_row_refuses_all(self, alias: str) -> None:
        first, _ = till(alias), till(alias, fence=LATE)
        with transaction.atomic(alias):
            with pytest.raises(LockLost):
                tills(alias).fenced(EARLY).update(drawer=9)
            assert tills(alias).filter(drawer=9).count() == 0
        assert stored(first) == (0, 0)


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

    def during(self, later: Any) -> Any:
        """What came of the write, that was sent while the later one was not committed."""
        with transaction.atomic(self.alias):
            later()
            self.thread.start()
            wait_for_a_waiter(self.alias)
        self.thread.join(30)
        return self.result


def wait_for_a_waiter(alias: str) -> None:
    query = {
        "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
        # INNODB_LOCK_WAITS is a copy that is renewed only when nobody has looked for 0.1 s
        "mysql": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
    }[connections[alias].vendor]
    from tests.conftest import eventually

    with connections[alias].cursor() as cursor:

        def waits() -> bool:
            cursor.execute(query)
            return int(cursor.fetchone()[-1]) > 0

        eventually(waits, "nobody waits")


@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
class TestRace:
    """The later holder commits while the early write waits for the row."""

    def later(self, alias: str, row: Register) -> Any:
        return lambda: rows(alias).fenced(LATE).filter(pk=row.pk).update(balance=100)

    def test_the_row_is_judged_as_it_is_after_the_wait(self, alias: str) -> None:
        row = register(alias)
        write = Meanwhile(alias, lambda: rows(alias).fenced(EARLY).filter(pk=row.pk).update(balance=1))
        assert isinstance(write.during(self.later(alias, row)), LockLost)
        assert stored(row) == (100, LATE)

    def test_several_rows(self, alias: str) -> None:
        """The snapshot of the question must not be older than the write of the other."""
        assert isinstance(self.of_several_rows(alias), LockLost)

    def of_several_rows(self, alias: str, *, compares: bool = False) -> Any:
        """What came of a write of two rows, one of which the other wrote after the snapshot was taken."""
        first, row = register(alias), register(alias)

        def early() -> int:
            if alias == "mariadb":
                with connections[alias].cursor() as cursor:
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    if connections[alias].mysql_is_mariadb:
                        cursor.execute("SET SESSION innodb_snapshot_isolation = %s", [compares])
            with transaction.atomic(alias):
                list(rows(alias).all())  # takes the snapshot
                return rows(alias).fenced(EARLY).filter(pk__in=[first.pk, row.pk]).update(balance=1)  # type: ignore[no-any-return]

        came = Meanwhile(alias, early).during(self.later(alias, row))
        assert [stored(first), stored(row)] == [(0, 0), (100, LATE)]
        return came

    def test_a_filter_over_a_join(self, alias: str) -> None:
        """Django moves the condition into a subselect there, and PostgreSQL does not look at that again."""
        row = till(alias)
        joined = {"cashregister__drawer": 0, "pk": row.pk}

        def naive() -> int:
            return rows(alias).filter(fence__lte=EARLY, **joined).update(balance=1, fence=EARLY)  # type: ignore[no-any-return]

        accepted = Meanwhile(alias, naive).during(self.later(alias, row))
        if alias == "postgres":
            assert accepted == 1
            assert stored(row) == (1, EARLY), "a stale write over a join"
        rows(alias).filter(pk=row.pk).update(balance=0, fence=0)
        write = Meanwhile(alias, lambda: rows(alias).fenced(EARLY).filter(**joined).update(balance=1))
        assert isinstance(write.during(self.later(alias, row)), LockLost)
        assert stored(row) == (100, LATE)


@pytest.mark.parametrize("alias", ["mariadb"], indirect=True)
def test_a_server_that_compares_with_the_snapshot_refuses_the_late_write_itself(alias: str) -> None:
    """MariaDB, by default from 11.6.2 on, as PostgreSQL does; nothing is written."""
    if not connections[alias].mysql_is_mariadb:
        pytest.skip("a setting of MariaDB")
    refusal = TestRace().of_several_rows(alias, compares=True)
    assert isinstance(refusal, OperationalError)
    assert refusal.args[0] == 1020


def test_a_filter_over_a_join_and_an_aggregate(alias: str) -> None:
    row = till(alias, drawer=4)
    register(alias)
    assert rows(alias).fenced(EARLY).filter(cashregister__drawer=4).update(balance=1) == 1
    some = rows(alias).annotate(n=Count("cashregister")).filter(n=1).fenced(EARLY)
    assert some.update(balance=F("balance") + 1) == 1
    assert stored(row) == (2, EARLY)
    with pytest.raises(LockLost):
        rows(alias).fenced(EARLY - 1).filter(cashregister__drawer=4).update(balance=9)
    assert stored(row) == (2, EARLY)


@pytest.mark.parametrize(
    ("token", "error", "message"),
    [
        (True, TypeError, "fence must be a lease or an int, not bool."),
        (None, TypeError, "fence must be a lease or an int, not NoneType."),
        (1.0, TypeError, "fence must be a lease or an int, not float."),
        ("1", TypeError, "fence must be a lease or an int, not str."),
        (-1, ValueError, "fence must be from 0 to 2**63 - 1, not -1."),
        (2**63, ValueError, "fence must be from 0 to 2**63 - 1, not 9223372036854775808."),
    ],
)
def test_bad_tokens(token: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        Register.objects.fenced(token)
    assert str(caught.value) == message
    with pytest.raises(error) as caught:
        Register(owner="ann").save(fence=token if token is not None else "none")
    assert str(caught.value).startswith("fence must be ")


def test_a_model_without_a_fence() -> None:
    from django_distlock.data import FencedQuerySet

    with pytest.raises(TypeError, match="Account has no fence; let it inherit from"):
        FencedQuerySet(Account).fenced(EARLY)


def test_the_highest_token(alias: str) -> None:
    row = register(alias)
    assert rows(alias).fenced(2**63 - 1).filter(pk=row.pk).update(balance=1) == 1
    assert stored(row) == (1, 2**63 - 1)


def test_nothing_is_sent_for_a_refusal(alias: str) -> None:
    with sent(alias) as texts, pytest.raises(TypeError):
        tills(alias).fenced(EARLY).update(fence=1)
    assert not texts
    assert CashRegister.objects.using(alias).fenced(EARLY)._fence is not None
