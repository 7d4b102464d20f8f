"""LOCK TABLE: how many statements it costs, what the server says is held, and what is left behind."""

from __future__ import annotations

import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.test.utils import isolate_apps

from django_distlock import DistlockError, LockTimeout, table_lock
from django_distlock.data.tables.modes import TableLockMode
from django_distlock.manager.isolation import StaleSnapshotWarning
from tests.data.app.models import Account, Course, Currency, Ledger, Place, QuotedLedger, Restaurant, Student
from tests.data.asking import ask, held, unmanaged, when_somebody_waits
from tests.data.rival import session
from tests.engines.statements import counted
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.data.rival import Rival

pytestmark = pytest.mark.usefixtures("fresh")
DB = "postgres"
SHOWN = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"


@pytest.fixture(autouse=True)
def clean(fresh: None) -> Iterator[None]:
    yield
    Account.objects.using(DB).all().delete()


def tables(mode: str = "ShareRowExclusiveLock") -> set[str]:
    return {table for table, held_mode in held(DB, session(DB)) if held_mode == mode}


def test_statements_in_a_transaction() -> None:
    """Two more set the timeout and put it back."""
    ways: list[tuple[dict[str, Any], int]] = [
        ({"nowait": True}, 1),
        ({"timeout": None}, 1),
        ({"timeout": 2}, 3),
        ({}, 3),
    ]
    for options, statements in ways:
        lock = table_lock(Account, Currency, using=DB, **options)
        with transaction.atomic(using=DB), lock:  # what the first use of a connection costs is no part of it
            pass
        with transaction.atomic(using=DB), counted(DB) as found, lock:
            pass
        assert found.total() == statements, found
        assert sum(count for text, count in found.items() if text.startswith("LOCK TABLE")) == 1


def test_held_to_the_end_of_the_transaction(rival: Rival) -> None:
    with transaction.atomic(using=DB):
        with table_lock(Account, using=DB):
            pass
        assert not rival.writes(DB)
    assert rival.writes(DB)


def test_modes_by_their_own_names(rival: Rival) -> None:
    for mode in TableLockMode:
        pg = {"read": "share", "write": "share row exclusive"}.get(mode, mode)
        with table_lock(Currency, mode=mode.upper(), using=DB):
            assert tables(pg.title().replace(" ", "") + "Lock") == {"dataapp_currency"}
    with table_lock(Account, mode="access exclusive", using=DB):
        assert not rival.reads(DB)


SHAPES: list[tuple[Any, set[str]]] = [
    ((Restaurant,), {"dataapp_restaurant", "dataapp_place"}),
    ((Student, Student.courses.through, Course), {"dataapp_student", "dataapp_student_courses", "dataapp_course"}),
    ((Ledger,), {'"dataapp O\'Hara Ledger"'}),
    ((QuotedLedger, Place), {'"dataapp O\'Hara Ledger"', "dataapp_place"}),
]


def test_tables_of_every_shape() -> None:
    for models, names in SHAPES:
        with table_lock(*models, using=DB):
            assert tables() == names
    with table_lock(read=[Currency, Course], write=[Account], using=DB), counted(DB) as found:
        assert tables("ShareLock") == {"dataapp_currency", "dataapp_course"}
        assert tables() == {"dataapp_account"}
    assert not [text for text in found if text.startswith("LOCK")]


@isolate_apps("tests.data.app")
def test_schemas_and_partitions() -> None:
    Measure = unmanaged("Measure", 'dataapp_other"."measure')
    connection = connections[DB]
    ask(connection, "CREATE SCHEMA dataapp_other")
    try:
        ask(connection, "CREATE TABLE dataapp_other.measure (id bigint NOT NULL) PARTITION BY RANGE (id)")
        ask(connection, "CREATE TABLE dataapp_other.one PARTITION OF dataapp_other.measure FOR VALUES FROM (0) TO (9)")
        with table_lock(Measure, using=DB):
            assert tables() == {"dataapp_other.measure", "dataapp_other.one"}
    finally:
        ask(connection, "DROP SCHEMA dataapp_other CASCADE")


def test_a_timeout_inside_atomic_marks_it(rival: Rival) -> None:
    assert rival.lock(DB, "Account") == "held"
    with transaction.atomic(using=DB):
        with pytest.raises(LockTimeout) as caught, table_lock(Account, using=DB, timeout=1):
            pytest.fail("two hold it")
        with pytest.raises(transaction.TransactionManagementError) as told:
            Account.objects.using(DB).count()
    rival.leave()
    assert told.value.__cause__ is caught.value.__cause__


@pytest.mark.alone
def test_r5_two_waits_are_one_wait(rival: Rival, second: Rival) -> None:
    """lock_timeout alone counts anew for each table: the first is given up when most of the time is over."""
    leaving = threading.Timer(0.7, rival.leave)
    assert rival.lock(DB, "Account") == second.lock(DB, "Currency") == "held"
    connections[DB].ensure_connection()
    leaving.start()
    start = time.monotonic()
    with pytest.raises(LockTimeout):
        table_lock(Account, Currency, using=DB, timeout=1).__enter__()
    within(time.monotonic() - start, 1.5)
    second.leave()
    leaving.join()


@pytest.fixture
def repeatable(fresh: None) -> Iterator[str]:
    """An alias whose transactions are REPEATABLE READ."""
    from psycopg import IsolationLevel

    connection = connections[DB].copy("repeatable")
    connection.settings_dict["OPTIONS"]["isolation_level"] = IsolationLevel.REPEATABLE_READ
    connections["repeatable"] = connection
    yield "repeatable"
    connection.close()
    del connections["repeatable"]


@pytest.mark.parametrize(("timeout", "naive"), [(20, False), (None, False), (20, True)])
def test_r13_the_snapshot_is_younger_than_the_lock(
    rival: Rival, repeatable: str, timeout: float | None, naive: bool
) -> None:
    """What the last holder wrote is seen. A SELECT before the lock, to set the timeout, would freeze what is seen."""
    connections[repeatable].ensure_connection()
    assert rival.lock(DB, "Account") == "held"
    assert rival.do("begin", DB, "Account") is None

    def commit() -> None:
        rival.leave()
        rival.leave()

    with transaction.atomic(using=repeatable), warnings.catch_warnings():
        if naive:
            warnings.simplefilter("ignore", StaleSnapshotWarning)
            ask(connections[repeatable], "SELECT set_config('lock_timeout', '5000', true)")
        with when_somebody_waits(DB, commit), table_lock(Account, using=repeatable, timeout=timeout):
            assert Account.objects.using(repeatable).exists() is not naive


def test_r13_a_lock_after_the_first_read_warns(repeatable: str) -> None:
    with transaction.atomic(using=repeatable):
        list(Account.objects.using(repeatable).all())
        with pytest.warns(StaleSnapshotWarning, match="dataapp_account"), table_lock(Account, using=repeatable):
            pass


def test_behind_a_transaction_pooler(rival: Rival) -> None:
    """The lock lives in the transaction, and so do the settings."""
    with table_lock(Account, using="pgbouncer", timeout=1):
        assert not rival.writes(DB)
        with pytest.raises(LockTimeout):
            table_lock(Account, using=DB, timeout=0.1).__enter__()
    with connections["pgbouncer"].cursor() as cursor:
        cursor.execute(SHOWN)
        assert cursor.fetchone() == ("0", "0")
    assert rival.writes(DB)


@isolate_apps("tests.data.app")
def test_a_table_that_does_not_exist_is_no_busy_table() -> None:
    Absent = unmanaged("Absent", "dataapp_absent")
    with pytest.raises(DistlockError, match="absent") as caught, table_lock(Absent, using=DB):
        pytest.fail("locked")
    assert type(caught.value) is DistlockError
