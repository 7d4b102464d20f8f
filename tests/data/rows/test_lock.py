"""What row_lock does in one process: order, transactions, errors, and what the caller's session looks like after."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, models, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from django_distlock import LockLost, LockNotAcquired, LockTimeout, UnsupportedOperation, row_lock
from tests.data.app.models import Account, Course, Node, Place, Restaurant, Student
from tests.data.asking import limits
from tests.data.rows.samples import (
    ENGINES,
    SERVERS,
    Legacy,
    Rival,
    accounts,
    ask,
    balances,
    kept_by_myisam,
    rows_of,
    took,
)
from tests.engines.statements import counted
from tests.faults.server import is_mariadb, statement_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import QuerySet

pytestmark = pytest.mark.usefixtures("no_accounts")


@pytest.fixture(scope="module")
def rival(django_db_setup: None) -> Iterator[Rival]:
    with Rival() as rival:
        yield rival


def keys(rows: list[Any]) -> list[int]:
    return [row.pk for row in rows]


@pytest.mark.parametrize("using", ENGINES)
def test_rows_come_locked_in_the_order_of_their_primary_keys(using: str) -> None:
    pks = accounts(using, 5, 4, 3)
    rows = rows_of(using, pks[::-1])
    for queryset in (rows, rows.order_by("balance"), rows.order_by("-pk").reverse(), rows.reverse(), rows.extra()):
        with row_lock(queryset) as locked:
            assert keys(locked) == pks
    with row_lock(rows.order_by("pk")[1:]) as locked:
        assert keys(locked) == pks[1:]
    with row_lock(rows.none()) as locked:
        assert locked == []


@pytest.mark.parametrize("using", ENGINES)
def test_what_the_block_wrote_is_committed_or_rolled_back(using: str) -> None:
    pks = accounts(using, 1)
    with row_lock(Account, pk=pks[0], using=using) as account:
        Account.objects.using(using).update(balance=2)
    assert account.balance == 1
    assert balances(using) == [2]
    with pytest.raises(ZeroDivisionError), row_lock(rows_of(using, pks)):
        _ = Account.objects.using(using).update(balance=3) / 0
    assert balances(using) == [2]
    assert connections[using].get_autocommit()


@pytest.mark.parametrize("using", ENGINES)
def test_a_missing_row_is_the_models_own_error_and_breaks_no_transaction(using: str) -> None:
    (pk,) = accounts(using, 1)
    with transaction.atomic(using=using):
        with pytest.raises(Account.DoesNotExist), row_lock(Account, pk=pk + 1, using=using):
            raise AssertionError
        Account.objects.using(using).update(balance=2)
    assert balances(using) == [2]


@pytest.mark.parametrize("using", ENGINES)
def test_inside_atomic_the_rows_stay_locked_to_its_end(rival: Rival, using: str) -> None:
    pks = accounts(using, 1)
    with transaction.atomic(using=using):
        with row_lock(rows_of(using, pks)):
            pass
        rival.start("hold", using, pks, {})
        Account.objects.using(using).update(balance=7)
    assert rival.hear() == pks
    rival.do("release")
    assert balances(using) == [7]


@pytest.mark.parametrize("using", ENGINES)
def test_after_busy_an_enclosing_transaction_is_rolled_back_and_nothing_of_ours_is_left(
    rival: Rival, using: str
) -> None:
    """R7. On MySQL the engine alone would have kept the transaction, and Django would have committed half of it."""
    pks = accounts(using, 1, 2)
    connection: Any = connections[using]
    connection.close()
    connection.ensure_connection()
    connection.transaction_mode = None  # SQLite: a transaction that does not begin with the write lock
    table, others = (rows_of(using, pks[1:]), pks[:1])
    with rival.hold(using, others):
        with transaction.atomic(using=using):
            if using != "default":  # there the rival keeps everybody from writing
                table.update(balance=50)
            with pytest.raises(LockTimeout), row_lock(rows_of(using, pks), timeout=0.1):
                raise AssertionError
            assert connection.needs_rollback
            with pytest.raises(TransactionManagementError):
                table.update(balance=60)
        assert not connection.in_atomic_block
        if using != "default":
            with row_lock(table, nowait=True) as rows:
                assert rows[0].balance == 2
    assert balances(using) == [1, 2]
    connection.close()


def test_sqlite_refuses_a_transaction_that_has_read_before_somebody_wrote(rival: Rival) -> None:
    """SQLITE_BUSY_SNAPSHOT: waiting would not help, and what was read would be stale."""
    (pk,) = accounts("default", 1)
    connection: Any = connections["default"]
    connection.ensure_connection()
    mode, connection.transaction_mode = connection.transaction_mode, None
    try:
        with transaction.atomic():
            assert balances("default") == [1]
            rival.do("write", "default", pk, 5)
            rival.do("release")
            with took(0, 0.5), pytest.raises(LockNotAcquired, match="since this transaction first read"):
                row_lock(Account, pk=pk, timeout=5).__enter__()
            assert connection.needs_rollback
    finally:
        connection.transaction_mode = mode


@pytest.mark.parametrize("using", SERVERS)
def test_a_savepoint_around_it_keeps_the_transaction(rival: Rival, using: str) -> None:
    pks = accounts(using, 1, 2)
    with rival.hold(using, pks[:1]), transaction.atomic(using=using):
        rows_of(using, pks[1:]).update(balance=50)
        with pytest.raises(LockTimeout), transaction.atomic(using=using), row_lock(rows_of(using, pks), timeout=0.1):
            raise AssertionError
    assert balances(using) == [1, 50]


ODD = {
    "postgres": "SET lock_timeout = '1d'; SET statement_timeout = '90min'",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 86399, SESSION {} = {}",
    "default": "PRAGMA busy_timeout = 123",
}


@pytest.mark.parametrize("using", ENGINES)
def test_the_callers_own_timeouts_are_as_before(rival: Rival, using: str) -> None:
    pks = accounts(using, 1)
    connections[using].close()
    ask(using, ODD[using].format(*statement_limit(3.000001)) if using == "mariadb" else ODD[using])
    before = ask(using, limits(using))
    with rival.hold(using, pks), pytest.raises(LockTimeout), row_lock(rows_of(using, pks), timeout=0.1):
        raise AssertionError
    assert ask(using, limits(using)) == before
    with row_lock(rows_of(using, pks), timeout=0.1):
        assert ask(using, limits(using)) == before
    assert ask(using, limits(using)) == before
    connections[using].close()


@pytest.mark.parametrize(
    ("using", "timeout", "expected"),
    [
        ("postgres", None, 1),
        ("postgres", 2, 3),
        ("mariadb", None, 1),
        ("mariadb", 2, 1),
        ("mariadb", 1, 1),
        ("mariadb", 0, 1),
    ],
)
def test_statements(using: str, timeout: float | None, expected: int) -> None:
    """Counted at the server; on MariaDB the limit is part of the statement, on MySQL as far as a second goes."""
    if using == "mariadb" and not is_mariadb() and timeout not in (0, 1):
        expected = 3
    pks = accounts(using, 1)
    with row_lock(rows_of(using, pks)):
        pass  # the first time the storage engine of the table is looked up
    with transaction.atomic(using=using):
        Account.objects.using(using).exists()
        with counted(using) as found, row_lock(Account, pk=pks[0], using=using, timeout=timeout):
            pass
    assert sum(found.values()) == expected, found


@pytest.mark.parametrize("using", ["postgres", "mariadb"])
@pytest.mark.parametrize(("option", "words"), [("skip_locked", "SKIP LOCKED"), ("nowait", "NOWAIT")])
def test_the_statement_says_that_it_does_not_wait(using: str, option: str, words: str) -> None:
    pks = accounts(using, 1)
    options: dict[str, Any] = {option: True}
    with CaptureQueriesContext(connections[using]) as queries, row_lock(rows_of(using, pks), **options):
        pass
    (locking,) = [query["sql"] for query in queries if " FOR UPDATE" in query["sql"]]
    assert f" FOR UPDATE {words}" in locking


@pytest.mark.parametrize("using", ENGINES)
def test_one_recipe_serves_many_threads_and_nests(using: str) -> None:
    pks = accounts(using, 0)
    recipe = row_lock(Account, pk=pks[0], using=using)

    def add() -> None:
        for _ in range(20):
            with recipe as outer, recipe as inner:
                assert outer.balance == inner.balance
                rows_of(using, pks).update(balance=outer.balance + 1)
        connections.close_all()

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert balances(using) == [60]


@pytest.mark.parametrize("using", ENGINES)
def test_related_rows(using: str) -> None:
    """Joins, multi-table inheritance, what is prefetched."""
    course = Course.objects.using(using).create(title="Locks")
    student = Student.objects.using(using).create(name="Ann")
    student.courses.add(course)
    try:
        queryset: QuerySet[Student] = Student.objects.using(using).filter(courses__title="Locks")
        with row_lock(queryset.prefetch_related("courses"), of=("self",)) as rows:
            assert [[c.title for c in row.courses.all()] for row in rows] == [["Locks"]]
        place = Restaurant.objects.using(using).create(name="Inn", seats=4)
        with row_lock(Restaurant, pk=place.pk, using=using, no_key=True) as locked:
            assert (locked.name, locked.seats) == ("Inn", 4)
    finally:
        student.delete()
        course.delete()
        Place.objects.using(using).all().delete()


def test_no_key_lets_a_foreign_key_be_inserted(rival: Rival) -> None:
    """PostgreSQL: an insert that refers to the row takes FOR KEY SHARE on it."""
    node = Node.objects.using("postgres").create(name="parent")
    try:
        with row_lock(Node, pk=node.pk, using="postgres", no_key=True):
            assert rival.do("insert_child", node.pk, 0.5) == "inserted"
        with row_lock(Node, pk=node.pk, using="postgres"):
            assert rival.do("insert_child", node.pk, 0.1) == "busy"
    finally:
        node.delete()


def test_a_table_without_row_locks_is_refused() -> None:
    with kept_by_myisam():
        with pytest.raises(UnsupportedOperation, match=r"MyISAM.*Legacy\.objects\.advisory_row_lock"):
            row_lock(Legacy, pk=1, using="mariadb").__enter__()
        assert not connections["mariadb"].in_atomic_block
        ask("mariadb", "ALTER TABLE dataapp_legacy ENGINE=InnoDB")  # what was refused is looked up again
        with pytest.raises(Legacy.DoesNotExist):
            row_lock(Legacy, pk=1, using="mariadb").__enter__()


def test_a_connection_closed_inside_the_block_is_a_loss() -> None:
    """Django leaves the transaction without a word, and what comes after it is written without the lock."""
    (pk,) = accounts("postgres", 1)
    with pytest.raises(LockLost, match="closed inside the block"), row_lock(Account, pk=pk, using="postgres"):
        connections["postgres"].close()


def test_the_database_is_the_one_that_is_written(settings: Any) -> None:
    class Replicas:
        def db_for_read(self, model: type[models.Model], **hints: Any) -> str:
            return "mariadb"

        def db_for_write(self, model: type[models.Model], **hints: Any) -> str:
            return "postgres"

    settings.DATABASE_ROUTERS = [Replicas()]
    (pk,) = accounts("postgres", 1)
    for recipe in (row_lock(Account.objects.filter(pk=pk)), row_lock(Account.objects), row_lock(Account, pk=pk)):
        with recipe:
            assert connections["postgres"].in_atomic_block
            assert not connections["mariadb"].in_atomic_block
