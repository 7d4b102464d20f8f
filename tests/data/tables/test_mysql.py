"""LOCK TABLES of MySQL and MariaDB: never inside a transaction, never given up in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from django_distlock import LockTimeout, UnsupportedOperation, table_lock
from tests.data.app.models import Account, Currency
from tests.data.asking import ask, held, limits, when_somebody_waits
from tests.data.fences import sent
from tests.data.rival import session
from tests.engines.statements import counted
from tests.faults.server import statement_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.data.rival import Rival

pytestmark = pytest.mark.usefixtures("fresh")
DB = "mariadb"
ACCOUNT = ("dataapp_account", "MDL_SHARED_NO_READ_WRITE")


@pytest.fixture(autouse=True)
def clean(fresh: None) -> Iterator[None]:
    yield
    Account.objects.using(DB).all().delete()


def locked() -> bool:
    """Does the server say that this session holds the table of Account?"""
    return ACCOUNT in held(DB, session(DB))


def run(sql: str) -> Any:
    return ask(connections[DB], sql)


def test_refused_before_anything_is_sent() -> None:
    """Inside a transaction, without autocommit, and inside another one; in a TestCase the error names the cure."""
    connection = connections[DB]
    with transaction.atomic(using=DB):
        Account.objects.using(DB).create(owner="x")
        with counted(DB) as found, pytest.raises(UnsupportedOperation, match="inside a transaction"):
            table_lock(Account, using=DB).__enter__()
        transaction.set_rollback(True, using=DB)
    assert not found
    connection.set_autocommit(False)
    Account.objects.using(DB).create(owner="x")
    with pytest.raises(UnsupportedOperation, match="inside a transaction"):
        table_lock(Account, using=DB).__enter__()
    connection.rollback()
    connection.set_autocommit(True)
    assert not Account.objects.using(DB).exists()
    with table_lock(Currency, using=DB):
        with pytest.raises(UnsupportedOperation, match="inside a transaction"):
            table_lock(Account, using=DB).__enter__()
        assert "dataapp_currency" in {table for table, _ in held(DB, session(DB))}
    block: Any = transaction.atomic(using=DB)
    block._from_testcase = True  # else Django itself refuses the durable block
    with block, pytest.raises(UnsupportedOperation, match="TransactionTestCase"):
        table_lock(Account, using=DB).__enter__()


def test_inner_atomic_keeps_the_lock() -> None:
    with table_lock(Account, using=DB):
        assert locked()
        with transaction.atomic(using=DB):
            Account.objects.using(DB).create(owner="kept")
            assert locked()
        with transaction.atomic(using=DB), transaction.atomic(using=DB):
            Account.objects.using(DB).create(owner="lost")
            transaction.set_rollback(True, using=DB)
        assert locked()
        # Django's own words for what would end the transaction of the block
        with pytest.raises(RuntimeError, match="durable"), transaction.atomic(using=DB, durable=True):
            pytest.fail("begun")
        for end in (
            transaction.commit,
            transaction.rollback,
            lambda using: transaction.set_autocommit(True, using=using),
        ):
            with pytest.raises(transaction.TransactionManagementError):
                end(using=DB)
        assert locked()
    assert not locked()
    assert [account.owner for account in Account.objects.using(DB)] == ["kept"]


def test_the_order_at_the_end(rival: Rival) -> None:
    """COMMIT, UNLOCK TABLES, then the hooks; and the row was committed before anybody else got in."""
    seen: list[bool] = []
    with counted(DB) as found, table_lock(Account, using=DB):
        transaction.on_commit(lambda: seen.append(locked()), using=DB)
        Account.objects.using(DB).create(owner="x")
        rival.start("lock", DB, ["Account"], "write", None)
    assert rival.hear() == "held"
    assert seen == [False]
    assert found["UNLOCK TABLES"] == 1
    rival.leave()


def kill_itself() -> None:
    run(f"KILL {session(DB)}")
    run("SELECT 1")


def test_unlocked_after_a_rollback_and_a_failed_hook() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with table_lock(Account, using=DB):
        transaction.set_rollback(True, using=DB)
    assert not locked()
    with pytest.raises(ZeroDivisionError), table_lock(Account, using=DB):
        transaction.on_commit(fail, using=DB)
    assert not locked()
    with pytest.raises(OperationalError), table_lock(Account, using=DB):
        kill_itself()
    with table_lock(Account, using=DB):
        assert locked()
    assert not locked()


@pytest.fixture
def repeatable(fresh: None) -> Iterator[str]:
    """An alias whose transactions are REPEATABLE READ, as the server's own are."""
    connection = connections[DB].copy("repeatable")
    connection.settings_dict["OPTIONS"]["isolation_level"] = "repeatable read"
    connections["repeatable"] = connection
    yield "repeatable"
    connection.close()
    del connections["repeatable"]


@pytest.mark.parametrize("timeout", [20, None])
def test_r13_the_snapshot_is_younger_than_the_lock(rival: Rival, repeatable: str, timeout: float | None) -> None:
    assert rival.lock(DB, "Account") == "held"
    assert rival.do("begin", DB, "Account") is None

    def commit() -> None:
        rival.leave()
        rival.leave()

    with when_somebody_waits(DB, commit), table_lock(Account, using=repeatable, timeout=timeout):
        assert Account.objects.using(repeatable).exists()


def test_postgres_modes_that_it_has_and_has_not() -> None:
    for mode, writes in (("share", False), ("exclusive", True), ("access exclusive", True)):
        with table_lock(Account, mode=mode, using=DB):
            assert locked() == writes
    with sent(DB) as texts:
        for mode in ("access share", "row share", "row exclusive", "share update exclusive"):
            with pytest.raises(UnsupportedOperation, match=mode):
                table_lock(Account, mode=mode, using=DB).__enter__()
    assert not texts


def test_the_callers_timeouts_are_as_before(rival: Rival) -> None:
    """Those of the session, which are not the server's: also after a wait that has ended in an error."""
    limit, number = statement_limit(86400)
    run(f"SET SESSION lock_wait_timeout = 86400, SESSION innodb_lock_wait_timeout = 7, {limit} = {number}")
    before = run(limits(DB))
    assert "86400" in str(before)
    with table_lock(Account, using=DB, timeout=2.5):
        assert run(limits(DB)) == before
    assert rival.lock(DB, "Account") == "held"
    with pytest.raises(LockTimeout):
        table_lock(Account, using=DB, timeout=0.1).__enter__()
    assert run(limits(DB)) == before
    rival.leave()
