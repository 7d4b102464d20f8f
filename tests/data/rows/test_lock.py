"""What row_lock does: order, transactions, errors, and what the caller's session looks like after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, models, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext

from django_distlock import LockLost, LockNotAcquired, LockTimeout, UnsupportedOperation, row_lock
from tests.data.app.models import Account, Node
from tests.data.asking import Legacy, accounts, balances, kept_by_myisam, limits, rows_of, run
from tests.data.conftest import DATABASES
from tests.engines.statements import counted
from tests.faults.server import is_mariadb, statement_limit

if TYPE_CHECKING:
    from tests.data.rival import Rival

pytestmark = pytest.mark.usefixtures("no_accounts")
everywhere = pytest.mark.parametrize("using", DATABASES)
on_servers = pytest.mark.parametrize("using", ["postgres", "mariadb"])


def keys(rows: list[Any]) -> list[int]:
    return [row.pk for row in rows]


@everywhere
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


@everywhere
def test_what_the_block_wrote_is_committed_or_rolled_back(using: str) -> None:
    (pk,) = accounts(using, 1)
    with row_lock(Account, pk=pk, using=using) as account:
        Account.objects.using(using).update(balance=2)
    assert account.balance == 1
    assert balances(using) == [2]
    with pytest.raises(ZeroDivisionError), row_lock(rows_of(using, [pk])):
        _ = Account.objects.using(using).update(balance=3) / 0
    assert balances(using) == [2]
    assert connections[using].get_autocommit()
    with transaction.atomic(using=using):  # a missing row is the model's own error and breaks no transaction
        with pytest.raises(Account.DoesNotExist), row_lock(Account, pk=pk + 1, using=using):
            raise AssertionError
        Account.objects.using(using).update(balance=4)
    assert balances(using) == [4]


@everywhere
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


@everywhere
def test_a_waiter_sees_what_the_holder_has_written(rival: Rival, using: str) -> None:
    (pk,) = accounts(using, 1)
    rival.do("write", using, pk, 100)
    assert balances(using) == [1]
    rival.start("release")
    with row_lock(Account, pk=pk, using=using) as account:
        assert account.balance == 100
    rival.hear()


@everywhere
def test_after_busy_an_enclosing_transaction_is_rolled_back_and_nothing_of_ours_is_left(
    rival: Rival, using: str
) -> None:
    """R7. On MySQL the engine alone would have kept the transaction, and Django would have committed half of it. The
    caller's own timeouts are as before."""
    pks = accounts(using, 1, 2)
    connection: Any = connections[using]
    connection.close()
    connection.ensure_connection()
    connection.transaction_mode = None  # SQLite: a transaction that does not begin with the write lock
    odd = {
        "postgres": "SET lock_timeout = '1d'; SET statement_timeout = '90min'",
        "mariadb": "SET SESSION innodb_lock_wait_timeout = 86399, SESSION {} = {}".format(*statement_limit(3.000001)),
        "default": "PRAGMA busy_timeout = 123",
    }
    run(using, odd[using])
    before = run(using, limits(using))
    mine = rows_of(using, pks[1:])
    with rival.hold(using, pks[:1]):
        with transaction.atomic(using=using):
            if using != "default":  # there the rival keeps everybody from writing
                mine.update(balance=50)
            with pytest.raises(LockTimeout), row_lock(rows_of(using, pks), timeout=1):
                raise AssertionError
            assert connection.needs_rollback
            with pytest.raises(TransactionManagementError):
                mine.update(balance=60)
        assert not connection.in_atomic_block
        for at_once in ({"nowait": True}, {"timeout": 0}):
            with pytest.raises(LockNotAcquired) as busy, row_lock(rows_of(using, pks), **at_once):
                raise AssertionError
            assert type(busy.value) is LockNotAcquired
        if using != "default":
            with row_lock(mine, nowait=True) as rows:
                assert rows[0].balance == 2
    assert run(using, limits(using)) == before
    with row_lock(rows_of(using, pks), timeout=1):
        assert run(using, limits(using)) == before
    assert run(using, limits(using)) == before
    assert balances(using) == [1, 2]
    connection.close()


@on_servers
def test_a_savepoint_around_it_keeps_the_transaction(rival: Rival, using: str) -> None:
    pks = accounts(using, 1, 2)
    with rival.hold(using, pks[:1]), transaction.atomic(using=using):
        rows_of(using, pks[1:]).update(balance=50)
        with pytest.raises(LockTimeout), transaction.atomic(using=using), row_lock(rows_of(using, pks), timeout=0.1):
            raise AssertionError
    assert balances(using) == [1, 50]


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
            with pytest.raises(LockNotAcquired, match="since this transaction first read"):
                row_lock(Account, pk=pk, timeout=5).__enter__()
            assert connection.needs_rollback
    finally:
        connection.transaction_mode = mode


@on_servers
def test_a_row_that_was_written_after_the_snapshot(rival: Rival, using: str) -> None:
    """The server refuses the lock, MariaDB by innodb_snapshot_isolation (error 1020), and ends the transaction with it:
    the block may write nothing more, not even what MariaDB would commit by itself."""
    if using == "mariadb" and not is_mariadb():
        pytest.skip("Oracle's MySQL locks what is there now")
    first, second = accounts(using, 0, 0)
    if using == "mariadb":
        run(using, "SET SESSION innodb_snapshot_isolation = ON")
        run(using, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    else:
        run(using, "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with transaction.atomic(using=using):
            rows_of(using, [second]).update(balance=7)
            balances(using)
            rival.do("add", using, first, 1)
            with pytest.raises(LockNotAcquired, match="written since this transaction first read"):
                row_lock(rows_of(using, [first])).__enter__()
            with pytest.raises(TransactionManagementError):
                rows_of(using, [second]).update(balance=8)
    finally:
        connections[using].close()
    assert balances(using) == [1, 0]


@pytest.mark.parametrize(("using", "expected"), [("postgres", 3), ("mariadb", 1)])
def test_statements(using: str, expected: int) -> None:
    """Counted at the server; on MariaDB the limit is part of the statement, on MySQL as far as a second goes."""
    pks = accounts(using, 1)
    with row_lock(rows_of(using, pks)):
        pass  # the first time the storage engine of the table is looked up
    with transaction.atomic(using=using):
        Account.objects.using(using).exists()
        for timeout in (None, 2):
            with counted(using) as found, row_lock(Account, pk=pks[0], using=using, timeout=timeout):
                pass
            if using == "postgres" or is_mariadb():
                assert sum(found.values()) == (1 if timeout is None else expected), found


@on_servers
def test_the_statement_says_that_it_does_not_wait(using: str) -> None:
    pks = accounts(using, 1)
    ways: tuple[tuple[dict[str, Any], str], ...] = (
        ({"skip_locked": True}, "SKIP LOCKED"),
        ({"nowait": True}, "NOWAIT"),
    )
    for options, words in ways:
        with CaptureQueriesContext(connections[using]) as queries, row_lock(rows_of(using, pks), **options):
            pass
        (locking,) = [query["sql"] for query in queries if " FOR UPDATE" in query["sql"]]
        assert f" FOR UPDATE {words}" in locking


@on_servers
def test_skip_locked_gives_disjoint_sets(rival: Rival, using: str) -> None:
    pks = accounts(using, 1, 2, 3, 4)
    queue = rows_of(using, pks).order_by("-balance")
    with rival.hold(using, pks[2:]), row_lock(queue[:1], skip_locked=True) as first:
        assert keys(first) == [pks[1]]
        with row_lock(rows_of(using, pks), skip_locked=True) as rest:
            assert keys(rest) == pks[:2]


def test_skip_locked_on_sqlite_skips_everything_while_somebody_writes(rival: Rival) -> None:
    pks = accounts("default", 1, 2)
    with rival.hold("default", pks), row_lock(rows_of("default", pks), skip_locked=True) as rows:
        assert rows == []
        assert connections["default"].in_atomic_block
    with row_lock(rows_of("default", pks), skip_locked=True) as rows:
        assert keys(rows) == pks


def test_sqlite_with_autocommit_off_is_locked_too(rival: Rival) -> None:
    """There is no BEGIN that could take the lock then: a first write does."""
    pks = accounts("default", 1)
    connection = connections["default"]
    connection.set_autocommit(False)
    try:
        with row_lock(rows_of("default", pks)):
            assert rival.do("hold", "default", pks, {"skip_locked": True}) == []
            rival.do("release")
    finally:
        connection.rollback()
        connection.set_autocommit(True)


@on_servers
def test_a_table_locked_by_somebody_else_is_given_up_as_well(rival: Rival, using: str) -> None:
    """NOWAIT and SKIP LOCKED are about rows; a table lock would make them wait for ever. For MySQL a second is the
    least."""
    pks = accounts(using, 1)
    rival.do("lock_in_sql", using)
    for options in ({"nowait": True}, {"skip_locked": True}):
        with pytest.raises(LockNotAcquired), row_lock(rows_of(using, pks), **options):
            raise AssertionError
    rival.do("release")


def test_no_key_lets_a_foreign_key_be_inserted(rival: Rival) -> None:
    """PostgreSQL: an insert that refers to the row takes FOR KEY SHARE on it."""
    node = Node.objects.using("postgres").create(name="parent")
    try:
        for no_key in (True, False):
            with row_lock(Node, pk=node.pk, using="postgres", no_key=no_key):
                assert rival.do("insert_child", node.pk) is no_key
    finally:
        node.delete()


def test_a_table_without_row_locks_is_refused() -> None:
    """It has the emulated lock. What was refused is looked up again."""
    with kept_by_myisam():
        with pytest.raises(UnsupportedOperation, match=r"MyISAM.*Legacy\.objects\.advisory_row_lock"):
            row_lock(Legacy, pk=1, using="mariadb").__enter__()
        assert not connections["mariadb"].in_atomic_block
        with Legacy.objects.advisory_row_lock(1, using="mysql"):
            Legacy.objects.using("mariadb").create(pk=1)
        run("mariadb", "ALTER TABLE dataapp_legacy ENGINE=InnoDB")
        with pytest.raises(Legacy.DoesNotExist):
            row_lock(Legacy, pk=2, using="mariadb").__enter__()


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
