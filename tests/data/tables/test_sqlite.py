"""SQLite: one lock for the whole database, taken by BEGIN or by a first write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from django_distlock import LockNotAcquired, LockTimeout, UnsupportedOperation, table_lock
from tests.data.app.models import Account, Ledger, QuotedLedger
from tests.data.world import another, ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.data.rival import Rival

DB = "default"


@pytest.fixture(autouse=True)
def deferred(fresh: None) -> Iterator[Any]:
    """Transactions as SQLite and Django begin them by default: the write lock comes with the first write."""
    connection: Any = connections[DB]
    connection.ensure_connection()
    before, connection.transaction_mode = connection.transaction_mode, None
    yield connection
    connection.transaction_mode = before


def test_the_mode_of_begin_is_put_back(deferred: Any, rival: Rival) -> None:
    with table_lock(Account):
        assert deferred.transaction_mode is None
    deferred.transaction_mode = "DEFERRED"
    assert rival.lock(DB, "Account") == "held"
    with pytest.raises(LockTimeout):
        table_lock(Account, timeout=0.1).__enter__()
    assert deferred.transaction_mode == "DEFERRED"
    rival.leave()


def test_inside_atomic_the_write_lock_is_taken(rival: Rival) -> None:
    Account.objects.create(owner="x")
    models: tuple[Any, ...] = (Account, Ledger, QuotedLedger)
    for model in models:
        with transaction.atomic():
            with table_lock(model):
                assert not rival.writes(DB)
            assert not rival.gets(DB, "Account")
            model.objects.create()
            transaction.set_rollback(True)
        assert rival.gets(DB, "Account")
    assert (Account.objects.count(), Ledger.objects.count()) == (1, 0), "a lock changes nothing"


def test_access_exclusive_keeps_readers_out(tmp_path: Path) -> None:
    """With a rollback journal. With a write-ahead log nothing keeps readers out, and they see what was committed."""
    lite = connections[DB].copy("lite")
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
        rival.do("begin", DB, "Account")
        rival.leave()
        with pytest.raises(LockNotAcquired, match="first read") as caught:
            table_lock(Account, timeout=5).__enter__()
        assert type(caught.value) is LockNotAcquired
        assert deferred.needs_rollback
