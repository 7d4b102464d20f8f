"""LOCK TABLE: how many statements it costs, what the server says is held, and what is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.apps.registry import Apps
from django.db import models, transaction

from django_distlock import DistlockError, table_lock
from django_distlock.data.tables.modes import TableLockMode
from django_distlock.manager.isolation import StaleSnapshotWarning
from tests.data.app.models import Account, Course, Currency, Ledger, Place, QuotedLedger, Restaurant, Student
from tests.data.world import held, repeatable, run, when_somebody_waits
from tests.engines.statements import counted

if TYPE_CHECKING:
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


STATEMENTS: list[tuple[dict[str, Any], int]] = [({"nowait": True}, 1), ({"timeout": None}, 1), ({"timeout": 2}, 3)]


def test_statements_in_a_transaction() -> None:
    """Two more set the timeout and put it back."""
    for options, statements in STATEMENTS:
        wanted = lock(Account, Currency, **options)
        with transaction.atomic(using=DB), wanted:  # what the first use of a connection costs is no part of it
            pass
        with transaction.atomic(using=DB), counted(DB) as found, wanted:
            pass
        assert found.total() == statements, found
        assert sum(count for text, count in found.items() if text.startswith("LOCK TABLE")) == 1


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
