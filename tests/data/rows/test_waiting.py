"""Who holds a row keeps the others out, in other processes: until the timeout, the release, or the holder's death."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from django_distlock import DeadlockDetected, LockNotAcquired, LockTimeout
from django_distlock.data.rows.lock import row_lock
from tests.data.app.models import Account
from tests.data.asking import table_wait
from tests.data.rows.samples import ENGINES, SERVERS, SLACK, Rival, accounts, ask, balances, pair, rows_of, took
from tests.faults.server import is_mariadb, statement_limit
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("no_accounts")


@pytest.fixture(scope="module")
def rivals(django_db_setup: None) -> Iterator[tuple[Rival, Rival]]:
    with pair() as both:
        yield both


@pytest.fixture
def rival(rivals: tuple[Rival, Rival]) -> Rival:
    return rivals[0]


def race(rivals: tuple[Rival, Rival], using: str, times: int, locked: bool) -> int:
    """The balance after two processes have each added one ``times`` times."""
    (pk,) = accounts(using, 0)
    for rival in rivals:
        rival.start("add", using, pk, times, locked)
    for rival in rivals:
        rival.hear()
    return balances(using)[0]


@pytest.mark.parametrize("using", ENGINES)
def test_no_addition_is_lost(rivals: tuple[Rival, Rival], using: str) -> None:
    assert race(rivals, using, 100, locked=True) == 200


@pytest.mark.parametrize("using", SERVERS)
def test_without_the_lock_additions_are_lost(rivals: tuple[Rival, Rival], using: str) -> None:
    """The fault is real. (These settings begin every transaction on SQLite with its write lock.) Nothing is lost if the
    one is through before the other gets a processor, so they race again then."""
    assert any(race(rivals, using, 100, locked=False) < 200 for _ in range(10))


@pytest.mark.parametrize("using", ENGINES)
def test_a_busy_row_is_given_up_at_the_timeout(rival: Rival, using: str) -> None:
    """R5"""
    pks = accounts(using, 1, 2)
    with rival.hold(using, pks):
        times = []
        for _ in range(3):
            start = time.monotonic()
            with pytest.raises(LockTimeout, match=r"0\.3 s") as error, row_lock(rows_of(using, pks), timeout=0.3):
                raise AssertionError
            times.append(time.monotonic() - start)
            assert error.value.__cause__ is not None
            assert not connections[using].in_atomic_block
        assert min(times) >= 0.3
        within(sorted(times)[1], 0.3 + SLACK, what=times)
        for options in ({"nowait": True}, {"timeout": 0}):
            with took(0, 5 * SLACK), pytest.raises(LockNotAcquired) as busy, row_lock(rows_of(using, pks), **options):
                raise AssertionError
            assert type(busy.value) is LockNotAcquired
    with row_lock(rows_of(using, pks), timeout=0) as rows:
        assert [row.pk for row in rows] == pks


@pytest.mark.parametrize("using", SERVERS)
def test_one_deadline_for_all_rows(rivals: tuple[Rival, Rival], using: str) -> None:
    """The engines' own timeouts count anew for every row: one row that is freed late would add its wait."""
    pks = accounts(using, 1, 2)
    one, other = rivals
    with other.hold(using, pks[1:]), connections[using].cursor():
        assert one.do("hold_for", using, pks[:1], 0.2) == pks[:1]
        with took(0.3, 0.3 + 3 * SLACK), pytest.raises(LockTimeout), row_lock(rows_of(using, pks), timeout=0.3):
            raise AssertionError
        assert one.hear() == "released"


@pytest.mark.parametrize("timeout", [5, None])
def test_a_limit_of_the_callers_own_on_statements_does_not_end_the_wait(rival: Rival, timeout: float | None) -> None:
    pks = accounts("mariadb", 1)
    connections["mariadb"].close()
    ask("mariadb", "SET SESSION {} = {}".format(*statement_limit(0.1)))
    assert rival.do("hold_for", "mariadb", pks, 1.5) == pks
    with took(0.2, 5), row_lock(rows_of("mariadb", pks), timeout=timeout):
        pass
    assert rival.hear() == "released"
    connections["mariadb"].close()


@pytest.mark.parametrize(
    "head", ["/* who */\n/* asks */ SELECT", "SELECT /*+ NO_INDEX_MERGE(dataapp_account) */", "select"]
)
def test_the_limit_is_in_the_statement_however_that_begins(rival: Rival, head: str) -> None:
    """Others too may change what Django sends."""

    def execute_other(execute: Any, sql: str, *rest: Any) -> Any:
        return execute(sql.replace("SELECT", head, 1), *rest)

    pks = accounts("mariadb", 1)
    lock = row_lock(rows_of("mariadb", pks), timeout=0.3)
    changed = connections["mariadb"].execute_wrapper(execute_other)
    with rival.hold("mariadb", pks), changed, took(0.3, 0.3 + 3 * SLACK), pytest.raises(LockTimeout):
        lock.__enter__()


def test_a_killed_holder_frees_the_rows_at_once() -> None:
    with Rival() as rival:
        held = {using: accounts(using, 1) for using in ENGINES}
        for using, pks in held.items():
            rival.do("hold", using, pks, {})
            with pytest.raises(LockNotAcquired), row_lock(rows_of(using, pks), nowait=True):
                raise AssertionError
        rival.kill()
        for using, pks in held.items():
            with took(0, 1), row_lock(rows_of(using, pks), timeout=5):
                pass


@pytest.mark.parametrize("using", ENGINES)
def test_a_waiter_sees_what_the_holder_has_written(rival: Rival, using: str) -> None:
    (pk,) = accounts(using, 1)
    rival.do("write", using, pk, 100)
    assert balances(using) == [1]
    rival.start("release")
    with row_lock(Account, pk=pk, using=using, timeout=5) as account:
        assert account.balance == 100
    rival.hear()


@pytest.mark.parametrize("options", [{"nowait": True}, {"skip_locked": True}])
@pytest.mark.parametrize("using", SERVERS)
def test_a_table_locked_by_somebody_else_is_given_up_as_well(rival: Rival, using: str, options: Any) -> None:
    """NOWAIT and SKIP LOCKED are about rows; a table lock would make them wait for ever. For MySQL a second is the
    least."""
    pks = accounts(using, 1)
    rival.do("lock_table", using)
    least = table_wait(using, 0)
    with took(least, least + 5 * SLACK), pytest.raises(LockNotAcquired), row_lock(rows_of(using, pks), **options):
        raise AssertionError
    rival.do("release")


@pytest.mark.parametrize("using", SERVERS)
def test_skip_locked_gives_disjoint_sets(rival: Rival, using: str) -> None:
    pks = accounts(using, 1, 2, 3, 4)
    queue = rows_of(using, pks).order_by("-balance")
    with rival.hold(using, pks[2:]), row_lock(queue[:1], skip_locked=True) as first:
        assert [row.pk for row in first] == [pks[1]]
        with row_lock(rows_of(using, pks), skip_locked=True) as rest:
            assert [row.pk for row in rest] == pks[:2]


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


def test_skip_locked_on_sqlite_skips_everything_while_somebody_writes(rival: Rival) -> None:
    pks = accounts("default", 1, 2)
    with rival.hold("default", pks), took(0, 5 * SLACK), row_lock(rows_of("default", pks), skip_locked=True) as rows:
        assert rows == []
        assert connections["default"].in_atomic_block
    with row_lock(rows_of("default", pks), skip_locked=True) as rows:
        assert [row.pk for row in rows] == pks


@pytest.mark.parametrize("using", SERVERS)
def test_one_row_after_the_other_in_different_order_is_a_deadlock(rivals: tuple[Rival, Rival], using: str) -> None:
    """R8: the naive way, and what row_lock calls it."""
    pks = accounts(using, 1, 2)
    for rival, first in zip(rivals, pks, strict=True):
        rival.do("hold", using, [first], {})
    for rival, second in zip(rivals, reversed(pks), strict=True):
        rival.start("take_next", using, second)
    assert sorted(rival.hear() for rival in rivals) == ["deadlock", "done"]


@pytest.mark.parametrize("using", SERVERS)
def test_all_rows_at_once_are_locked_in_one_order(rivals: tuple[Rival, Rival], using: str) -> None:
    pks = accounts(using, *range(20))
    for rival, order in zip(rivals, (pks, pks[::-1]), strict=True):
        rival.start("take", using, order, 100)
    assert [rival.hear() for rival in rivals] == ["done", "done"]


def test_a_deadlock_on_mysql_leaves_no_half_of_a_transaction(rival: Rival) -> None:
    """1213 has rolled back everything, and Django believes that its transaction is open: it would commit what comes
    after. The victim is the transaction that has written less."""
    pks = accounts("mariadb", *[1] * 5)
    mine, first, *theirs = pks
    for pk in theirs:
        rival.do("write", "mariadb", pk, 2)
    with transaction.atomic(using="mariadb"):
        rows_of("mariadb", [mine]).update(balance=9)
        with row_lock(rows_of("mariadb", [first])):
            rival.start("take_next", "mariadb", first)
            with pytest.raises(DeadlockDetected), row_lock(rows_of("mariadb", theirs)):
                raise AssertionError
        assert connections["mariadb"].needs_rollback
        with pytest.raises(TransactionManagementError):
            rows_of("mariadb", [mine]).update(balance=10)
    assert rival.hear() == "done"
    assert balances("mariadb") == [1, 1, 2, 2, 2]


@pytest.mark.parametrize("using", SERVERS)
def test_a_row_that_was_written_after_the_snapshot(rival: Rival, using: str) -> None:
    """The server refuses the lock, MariaDB by innodb_snapshot_isolation (error 1020), and ends the transaction with it:
    the block may write nothing more, not even what MariaDB would commit by itself."""
    if using == "mariadb" and not is_mariadb():
        pytest.skip("Oracle's MySQL locks what is there now")
    first, second = accounts(using, 0, 0)
    if using == "mariadb":
        ask(using, "SET SESSION innodb_snapshot_isolation = ON")
        ask(using, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    else:
        ask(using, "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with transaction.atomic(using=using):
            rows_of(using, [second]).update(balance=7)
            balances(using)
            rival.do("add", using, first, 1, True)
            with pytest.raises(LockNotAcquired, match="written since this transaction first read"):
                row_lock(rows_of(using, [first])).__enter__()
            with pytest.raises(TransactionManagementError):
                rows_of(using, [second]).update(balance=8)
    finally:
        connections[using].close()
    assert balances(using) == [1, 0]
