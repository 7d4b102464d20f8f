"""Who holds a row keeps other processes out: until the timeout, the release, or its death; in one order."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from django_distlock import DeadlockDetected, LockNotAcquired, LockTimeout
from django_distlock.data.rows.lock import row_lock
from tests.data.rival import Rival
from tests.data.world import DATABASES, accounts, balances, everywhere, on_servers, rows_of
from tests.support.timing import within


@everywhere
def test_no_addition_is_lost(rival: Rival, second: Rival, using: str) -> None:
    """Each of two processes reads and adds one fifty times."""
    (pk,) = accounts(using, 0)
    for one in (rival, second):
        one.start("add", using, pk, 50)
    for one in (rival, second):
        one.hear()
    assert balances(using) == [100]


@pytest.mark.alone
@everywhere
def test_r5_a_busy_row_is_given_up_at_the_timeout(rival: Rival, using: str) -> None:
    pks = accounts(using, 1, 2)
    with rival.hold(using, pks):
        times = []
        for _ in range(3):
            start = time.monotonic()
            with pytest.raises(LockTimeout, match=r"0\.3 s") as caught:
                row_lock(rows_of(using, pks), timeout=0.3).__enter__()
            times.append(time.monotonic() - start)
            assert caught.value.__cause__ is not None
        assert min(times) >= 0.3
        within(sorted(times)[1], 1.3, what=times)
    with row_lock(rows_of(using, pks), timeout=0) as rows:
        assert [row.pk for row in rows] == pks


@pytest.mark.alone
@on_servers
def test_r5_one_deadline_for_all_rows(rival: Rival, second: Rival, using: str) -> None:
    """The engines' own timeouts count anew for every row: one row that is freed late would add its wait."""
    pks = accounts(using, 1, 2)
    with second.hold(using, pks[1:]):
        rival.do("hold", using, pks[:1], {})
        leaving = threading.Timer(0.9, rival.do, ["release"])
        leaving.start()
        start = time.monotonic()
        with pytest.raises(LockTimeout):
            row_lock(rows_of(using, pks), timeout=1).__enter__()
        within(time.monotonic() - start, 1.5, least=1)
        leaving.join()


def test_the_limit_is_in_the_statement_however_that_begins(rival: Rival) -> None:
    """Others too may change what Django sends."""
    pks = accounts("mariadb", 1)
    for head in ("/* who */\n/* asks */ SELECT", "SELECT /*+ NO_INDEX_MERGE(dataapp_account) */", "select"):

        def execute_other(execute: Any, sql: str, *rest: Any, head: str = head) -> Any:
            return execute(sql.replace("SELECT", head, 1), *rest)

        changed = connections["mariadb"].execute_wrapper(execute_other)
        with rival.hold("mariadb", pks), changed, pytest.raises(LockTimeout):
            row_lock(rows_of("mariadb", pks), timeout=0.3).__enter__()


@pytest.mark.tier2
def test_a_killed_holder_frees_the_rows_at_once() -> None:
    with Rival() as rival:
        held = {using: accounts(using, 1) for using in DATABASES}
        for using, pks in held.items():
            rival.do("hold", using, pks, {})
            with pytest.raises(LockNotAcquired):
                row_lock(rows_of(using, pks), nowait=True).__enter__()
        rival.kill()
        for using, pks in held.items():
            with row_lock(rows_of(using, pks), timeout=5):
                pass


@on_servers
def test_r8_all_rows_at_once_are_locked_in_one_order(rival: Rival, second: Rival, using: str) -> None:
    """One after the other, the naive way, is a deadlock, and what row_lock calls it."""
    pks = accounts(using, *range(20))
    for one, first in zip((rival, second), pks, strict=False):
        one.do("hold", using, [first], {})
    for one, other in zip((rival, second), (pks[1], pks[0]), strict=True):
        one.start("take_next", using, other)
    assert sorted(one.hear() for one in (rival, second)) == ["deadlock", "done"]
    for one, order in zip((rival, second), (pks, pks[::-1]), strict=True):
        one.start("take", using, order, 50)
    assert [one.hear() for one in (rival, second)] == ["done", "done"]


def test_a_deadlock_on_mysql_leaves_no_half_of_a_transaction(rival: Rival) -> None:
    """1213 has rolled back everything; the victim, who has written less, must not go on as if it were open."""
    mine, first, *theirs = accounts("mariadb", *[1] * 5)
    for pk in theirs:
        rival.do("write", "mariadb", pk, 2)
    with transaction.atomic(using="mariadb"):
        rows_of("mariadb", [mine]).update(balance=9)
        with row_lock(rows_of("mariadb", [first])):
            rival.start("take_next", "mariadb", first)
            with pytest.raises(DeadlockDetected):
                row_lock(rows_of("mariadb", theirs)).__enter__()
        with pytest.raises(TransactionManagementError):
            rows_of("mariadb", [mine]).update(balance=10)
    assert rival.hear() == "done"
    assert balances("mariadb") == [1, 1, 2, 2, 2]
