"""Locks on managers and querysets: custom ones, related ones, proxies, migrations, pickles."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from django.apps.registry import Apps
from django.db import connections, models, transaction
from django.db.transaction import TransactionManagementError

from django_distlock import advisory_lock, held_locks, row_lock, table_lock
from django_distlock.data import LockingManager
from tests.data.app.models import Entry, Wallet, WalletProxy
from tests.data.world import sent

DB = "postgres"  # one database: what the managers call is tried on all of them


@pytest.fixture
def wallets() -> list[Wallet]:
    return [Wallet.objects.using(DB).create(owner=owner, balance=1000) for owner in ("ann", "bob", "ann")]


def test_lock_rows_and_lock_row(wallets: list[Wallet]) -> None:
    manager = Wallet.objects.db_manager(DB)
    with manager.filter(owner="ann").order_by("-pk").lock_rows(timeout=1) as locked:
        assert locked == [wallets[0], wallets[2]]
        assert connections[DB].in_atomic_block
    with manager.lock_rows() as locked:
        assert locked == wallets
    with pytest.raises(TransactionManagementError, match=r"lock_row\(\) on dataapp.Wallet.*row_lock"):
        manager.lock_row(pk=wallets[0].pk)
    with transaction.atomic(using=DB):
        assert manager.lock_row(pk=wallets[0].pk, timeout=1) == wallets[0]
        assert manager.filter(balance__gt=1).lock_row(owner="bob", nowait=True) == wallets[1]
        with pytest.raises(Wallet.DoesNotExist):
            manager.lock_row(pk=0)
        with pytest.raises(Wallet.MultipleObjectsReturned):
            manager.lock_row(owner="ann")
        assert not connections[DB].needs_rollback


def test_querysets_of_a_project_and_related_managers_lock(wallets: list[Wallet]) -> None:
    manager = Wallet.wallets.db_manager(DB)
    with manager.rich().filter(owner="ann").lock_rows() as locked:
        assert len(locked) == 2
    copy = pickle.loads(pickle.dumps(manager.rich()))  # noqa: S301 - our own bytes
    assert list(copy) == wallets
    entry = Entry.objects.using(DB).create(wallet=wallets[0])
    Entry.objects.using(DB).create(wallet=wallets[0], open=False)
    Entry.objects.using(DB).create(wallet=wallets[1])
    with wallets[0].entries.lock_rows() as locked:
        assert locked == [entry]
    with transaction.atomic(using=DB):
        assert wallets[0].entries.lock_row(pk=entry.pk) == entry
    with Entry.objects.using(DB).lock_rows() as locked:
        assert len(locked) == 3


def name_of(lock: Any) -> str:
    with lock:
        (report,) = held_locks("memory")
    (info,) = report.locks
    return info.name


def test_names_belong_to_the_table() -> None:
    def named(model: type[models.Model], name: str) -> str:
        return name_of(model.objects.advisory_lock(name, using="memory"))

    assert named(Wallet, "register") == named(WalletProxy, "register") == "table:dataapp_wallet:name:register"
    assert named(Entry, "register") != named(Wallet, "register")
    rows = [name_of(Wallet.objects.advisory_row_lock(pk, using="memory")) for pk in (7, "7", 8)]
    assert rows == ["table:dataapp_wallet:row:7", "table:dataapp_wallet:row:7", "table:dataapp_wallet:row:8"]
    assert named(Wallet, "row:7") not in rows
    names = set()
    for table, name in (("a:name:b", "c"), ("a", "b:name:c"), ("a", "c")):
        body = {"__module__": __name__, "objects": LockingManager()}
        meta = type("Meta", (), {"db_table": table, "app_label": "odd", "apps": Apps()})
        model: Any = type("Odd", (models.Model,), body | {"Meta": meta})
        names.add(named(model, name))
    assert len(names) == 3, "a name cannot leave its table"


def test_r13_a_decorator_asks_the_database_nothing() -> None:
    """The repr() of a bound method of a queryset runs its query, and so takes a snapshot before the lock."""
    with sent("default") as texts:
        for lock in (advisory_lock("x", using="memory"), table_lock(Wallet), row_lock(Wallet.objects.all())):
            lock(Wallet.objects.all().exists)
    assert not texts
