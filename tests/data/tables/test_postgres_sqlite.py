"""LOCK TABLE of PostgreSQL: its statements, modes and tables; and the one lock of a database in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.apps.registry import Apps
from django.db import OperationalError, connections, models, transaction

from django_distlock import DistlockError, LockNotAcquired, LockTimeout, UnsupportedOperation, table_lock
from django_distlock.data.tables.modes import TableLockMode
from django_distlock.manager.isolation import StaleSnapshotWarning
from tests.data.app.models import Account, Course, Currency, Ledger, Place, QuotedLedger, Restaurant, Student
from tests.data.world import another, ask, held, repeatable, run, when_somebody_waits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.data.rival import Rival

DB = "postgres"


def lock(*tables: Any, **options: Any) -> table_lock:
    return table_lock(*tables, using=DB, **options)


def tables(mode: str = "ShareRowExclusiveLock") -> set[str]:
    return {table for table, held_mode in held(DB) if held_mode == mode}


def unmanaged(table: str) -> Any:
    """A model of a table that the test itself makes."""
    meta = type("Meta", (), {"app_label": "odd", "apps": Apps(), "db_table": table})
    return type("Unmanaged", (models.Model,), {"Meta": meta, "__module__": __name__})


def test_held_to_the_end_of_the_transaction_also_behind_a_pooler(rival: Rival) -> None:
    """The lock lives in the transaction, and so do the settings."""
    for using in (DB, "pgbouncer"):
        with transaction.atomic(using=using):
            with table_lock(Account, using=using, timeout=1):
                pass
            assert not rival.writes(DB)
        assert run(using, "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')") == [
            ("0", "0")
        ]
        assert rival.writes(DB)


def test_modes_by_their_own_names(rival: Rival) -> None:
    for mode in TableLockMode:
        pg = {"read": "share", "write": "share row exclusive"}.get(mode, mode)
        with lock(Currency, mode=mode.upper()):
            assert tables(pg.title().replace(" ", "") + "Lock") == {"dataapp_currency"}
    with lock(Account, mode="access exclusive"):
        assert not rival.reads(DB)


SHAPES: list[tuple[Any, set[str]]] = [
    ((Restaurant,), {"dataapp_restaurant", "dataapp_place"}),
    ((Student, Student.courses.through, Course), {"dataapp_student", "dataapp_student_courses", "dataapp_course"}),
    ((Ledger,), {'"dataapp O\'Hara Ledger"'}),
    ((QuotedLedger, Place), {'"dataapp O\'Hara Ledger"', "dataapp_place"}),
]


def test_tables_of_every_shape() -> None:
    for shape, names in SHAPES:
        with lock(*shape):
            assert tables() == names
    with lock(read=[Currency, Course], write=[Account]):
        assert tables("ShareLock") == {"dataapp_currency", "dataapp_course"}
        assert tables() == {"dataapp_account"}
    with transaction.atomic(using=DB):  # another schema, and a partition
        run(DB, "CREATE SCHEMA dataapp_other")
        run(DB, "CREATE TABLE dataapp_other.measure (id bigint NOT NULL) PARTITION BY RANGE (id)")
        run(DB, "CREATE TABLE dataapp_other.one PARTITION OF dataapp_other.measure FOR VALUES FROM (0) TO (9)")
        assert not tables()
        with lock(unmanaged('dataapp_other"."measure')):
            assert len(tables()) == 2  # nobody else sees their names yet
        transaction.set_rollback(True, using=DB)
    with pytest.raises(DistlockError, match="absent") as caught:  # it is no busy table
        lock(unmanaged("dataapp_absent")).__enter__()
    assert type(caught.value) is DistlockError


def test_r9_any_order_is_one_order(rival: Rival, second: Rival) -> None:
    """Who waits for the first table holds no other, however the models are named."""
    free: list[bool] = []
    assert rival.lock(DB, "Account") == "held"

    def look() -> None:
        free.append(second.gets(DB, "Currency"))
        rival.leave()

    with when_somebody_waits(DB, look), lock(Currency, Account, timeout=None):
        pass
    assert free == [True]


def test_r13_a_lock_after_the_first_read_warns() -> None:
    with repeatable(DB) as using, transaction.atomic(using=using):
        list(Account.objects.using(using).all())
        with pytest.warns(StaleSnapshotWarning, match="dataapp_account"), table_lock(Account, using=using):
            pass


# -- SQLite: one lock for the whole database, taken by BEGIN or by a first write


@pytest.fixture
def deferred(fresh: None) -> Iterator[Any]:
    """Transactions as SQLite and Django begin them by default: the write lock comes with the first write."""
    connection: Any = connections["default"]
    connection.ensure_connection()
    before, connection.transaction_mode = connection.transaction_mode, None
    yield connection
    connection.transaction_mode = before


def test_the_mode_of_begin_is_put_back(deferred: Any, rival: Rival) -> None:
    with table_lock(Account):
        assert deferred.transaction_mode is None
    deferred.transaction_mode = "DEFERRED"
    assert rival.lock("default", "Account") == "held"
    with pytest.raises(LockTimeout):
        table_lock(Account, timeout=0.1).__enter__()
    assert deferred.transaction_mode == "DEFERRED"
    rival.leave()


@pytest.mark.usefixtures("deferred")
def test_inside_atomic_the_write_lock_is_taken(rival: Rival) -> None:
    Account.objects.create(owner="x")
    models: tuple[Any, ...] = (Account, Ledger, QuotedLedger)
    for model in models:
        with transaction.atomic():
            with table_lock(model):
                assert not rival.writes("default")
            assert not rival.gets("default", "Account")
            model.objects.create()
            transaction.set_rollback(True)
        assert rival.gets("default", "Account")
    assert (Account.objects.count(), Ledger.objects.count()) == (1, 0), "a lock changes nothing"


def test_access_exclusive_keeps_readers_out(tmp_path: Path) -> None:
    """With a rollback journal. With a write-ahead log nothing keeps readers out, and they see what was committed."""
    lite = connections["default"].copy("lite")
    lite.settings_dict.update(NAME=tmp_path / "lite.sqlite3", OPTIONS={"timeout": 0.05})  # it has a rollback journal
    connections["lite"] = lite
    try:
        with lite.schema_editor() as editor:
            editor.create_model(Account)
        with another("lite") as reader:
            with table_lock(Account, using="lite"):
                ask(reader, "SELECT * FROM dataapp_account")
            with table_lock(Account, mode="access exclusive", using="lite"), pytest.raises(OperationalError):
                ask(reader, "SELECT * FROM dataapp_account")
    finally:
        lite.close()
        del connections["lite"]


def test_a_transaction_that_can_get_no_lock_is_marked(deferred: Any, rival: Rival) -> None:
    """Somebody has written since it first read: no waiting helps."""
    with transaction.atomic(), pytest.raises(UnsupportedOperation, match="EXCLUSIVE"):
        table_lock(Account, mode="access exclusive").__enter__()
    with transaction.atomic():
        assert Account.objects.count() == 0
        rival.do("begin", "default", "Account")
        rival.leave()
        with pytest.raises(LockNotAcquired, match="first read") as caught:
            table_lock(Account, timeout=5).__enter__()
        assert type(caught.value) is LockNotAcquired
        assert deferred.needs_rollback
