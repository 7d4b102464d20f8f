"""Who holds a row keeps the others out, in other processes: until the timeout, the release, or the holder's death."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock import DeadlockDetected, LockNotAcquired, LockTimeout
from django_distlock.data.row import row_lock
from tests.data.app.models import Account
from tests.data.rows import ENGINES, SERVERS, SLACK, accounts, balances, held_elsewhere, rows_of, took
from tests.processes import Child

if TYPE_CHECKING:
    from tests.child import Link

pytestmark = pytest.mark.usefixtures("databases")


def add(link: Link, using: str, pk: int, times: int, locked: bool) -> None:
    """Read, think, write: ``times`` times, beginning with the others."""
    link.say("ready")
    link.hear()
    for _ in range(times):
        if locked:
            with row_lock(Account, pk=pk, using=using) as account:
                account.balance += 1
                account.save()
        else:
            with transaction.atomic(using=using):
                account = Account.objects.using(using).get(pk=pk)
                account.balance += 1
                account.save()
    link.say("done")


def race(using: str, times: int, locked: bool) -> int:
    """The balance after two processes have each added one ``times`` times."""
    (pk,) = accounts(using, 0)
    with Child(add, using, pk, times, locked) as one, Child(add, using, pk, times, locked) as other:
        assert (one.hear(), other.hear()) == ("ready", "ready")
        one.say("go")
        other.say("go")
        assert (one.hear(), other.hear()) == ("done", "done")
    return balances(using)[0]


@pytest.mark.parametrize("using", ENGINES)
def test_no_addition_is_lost(using: str) -> None:
    assert race(using, 300, locked=True) == 600


@pytest.mark.parametrize("using", SERVERS)
def test_without_the_lock_additions_are_lost(using: str) -> None:
    """The fault is real. (These settings begin every transaction on SQLite with its write lock.)"""
    assert race(using, 300, locked=False) < 600


@pytest.mark.parametrize("using", ENGINES)
def test_a_busy_row_is_given_up_at_the_timeout(using: str) -> None:
    """R5"""
    pks = accounts(using, 1, 2)
    with held_elsewhere(using, pks):
        with took(0.3, 0.3 + SLACK), pytest.raises(LockTimeout) as error, row_lock(rows_of(using, pks), timeout=0.3):
            raise AssertionError
        assert error.value.__cause__ is not None
        assert "0.3 s" in str(error.value)
        assert not connections[using].in_atomic_block
        for options in ({"nowait": True}, {"timeout": 0}):
            with took(0, SLACK), pytest.raises(LockNotAcquired) as busy, row_lock(rows_of(using, pks), **options):
                raise AssertionError
            assert type(busy.value) is LockNotAcquired
    with row_lock(rows_of(using, pks), timeout=0) as rows:
        assert [row.pk for row in rows] == pks


@pytest.mark.parametrize("using", ENGINES)
def test_a_killed_holder_frees_the_rows_at_once(using: str) -> None:
    pks = accounts(using, 1)
    with held_elsewhere(using, pks) as child:
        with pytest.raises(LockNotAcquired), row_lock(rows_of(using, pks), nowait=True):
            raise AssertionError
        child.kill()
        with took(0, 1), row_lock(rows_of(using, pks), timeout=5):
            pass


@pytest.mark.parametrize("using", ENGINES)
def test_a_waiter_sees_what_the_holder_has_written(using: str) -> None:
    (pk,) = accounts(using, 1)
    with Child(write_then_release, using, pk) as child:
        assert child.hear() == "held"
        child.say("release")
        with row_lock(Account, pk=pk, using=using, timeout=5) as account:
            assert account.balance == 100


def write_then_release(link: Link, using: str, pk: int) -> None:
    with row_lock(Account, pk=pk, using=using) as account:
        account.balance = 100
        account.save()
        link.say("held")
        link.hear()


@pytest.mark.parametrize("using", SERVERS)
def test_a_table_locked_by_somebody_else_is_given_up_as_well(using: str) -> None:
    """NOWAIT and SKIP LOCKED are about rows; a table lock would make them wait for ever."""
    pks = accounts(using, 1)
    for options in ({"nowait": True}, {"skip_locked": True}):
        with Child(hold_table, using) as child:
            assert child.hear() == "held"
            with took(0, 2 * SLACK), pytest.raises(LockNotAcquired), row_lock(rows_of(using, pks), **options):
                raise AssertionError
            child.say("release")


def hold_table(link: Link, using: str) -> None:
    connection = connections.create_connection(using)
    statements = {
        "postgres": ["BEGIN", "LOCK TABLE dataapp_account IN ACCESS EXCLUSIVE MODE"],
        "mariadb": ["LOCK TABLES dataapp_account WRITE"],
    }
    with connection.cursor() as cursor:
        for statement in statements[using]:
            cursor.execute(statement)
        link.say("held")
        link.hear()
    connection.close()


@pytest.mark.parametrize("using", SERVERS)
def test_skip_locked_gives_disjoint_sets(using: str) -> None:
    pks = accounts(using, 1, 2, 3, 4)
    queue: Any = Account.objects.using(using).filter(pk__in=pks).order_by("-balance")
    with held_elsewhere(using, pks[2:]), row_lock(queue[:1], skip_locked=True) as first:
        assert [row.pk for row in first] == [pks[1]]
        with row_lock(rows_of(using, pks), skip_locked=True) as rest:
            assert [row.pk for row in rest] == pks[:2]


def test_skip_locked_on_sqlite_skips_everything_while_somebody_writes() -> None:
    pks = accounts("default", 1, 2)
    with held_elsewhere("default", pks), row_lock(rows_of("default", pks), skip_locked=True) as rows:
        assert rows == []
    with row_lock(rows_of("default", pks), skip_locked=True) as rows:
        assert [row.pk for row in rows] == pks


def cross(link: Link, using: str, pks: list[int], ordered: bool) -> None:
    """Lock two rows, one after the other as the caller names them, or both with row_lock."""
    try:
        if ordered:
            link.say("begun")
            link.hear()
            for _ in range(50):
                with row_lock(rows_of(using, pks)):
                    pass
        else:
            with transaction.atomic(using=using):
                row_lock(Account, pk=pks[0], using=using).__enter__()
                link.say("begun")
                link.hear()
                row_lock(Account, pk=pks[1], using=using).__enter__()
    except DeadlockDetected:
        link.say("deadlock")
    else:
        link.say("done")


@pytest.mark.parametrize(("ordered", "ends"), [(False, {"deadlock", "done"}), (True, {"done"})])
@pytest.mark.parametrize("using", SERVERS)
def test_the_order_of_the_primary_keys_prevents_deadlocks(using: str, ordered: bool, ends: set[str]) -> None:
    """R8: a circle, which exists only where the callers lock in their own order, is told as DeadlockDetected."""
    pks = accounts(using, 1, 2)
    with Child(cross, using, pks, ordered) as one, Child(cross, using, pks[::-1], ordered) as other:
        assert (one.hear(), other.hear()) == ("begun", "begun")
        one.say("go")
        other.say("go")
        assert {one.hear(), other.hear()} == ends
