"""The decorators, blocks and managers of rows and tables: what they hand in, and what they refuse at once."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.apps.registry import Apps
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, models, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import isolate_apps

from django_distlock import LockNotHeld, UnsupportedOperation, advisory_lock, held_locks, row_lock, table_lock
from django_distlock.data import LockingManager
from tests.data.app.models import Account, AccountProxy, Currency, Entry, Wallet, WalletProxy
from tests.data.world import accounts, balances, respond, sent

if TYPE_CHECKING:
    from django.http import HttpRequest


@pytest.fixture
def pk() -> int:
    return accounts("default", 10)[0]


@row_lock(Account, pk="account_id", into="account")
def withdraw(account_id: int, amount: int = 1, *, account: Account) -> int:
    account.balance -= amount
    account.save()
    return account.balance


def test_the_row_that_an_argument_names_is_handed_in(pk: int) -> None:
    assert withdraw(pk) == 9
    assert withdraw(account_id=pk, amount=2) == 7
    assert balances("default") == [7]
    assert str(inspect.signature(withdraw)) == "(account_id: 'int', amount: 'int' = 1) -> 'int'"
    with pytest.raises(Account.DoesNotExist):
        withdraw(pk + 1)
    with pytest.raises(TypeError, match="account_id"):
        withdraw()


def test_methods_paths_lists_and_no_argument_at_all(pk: int) -> None:
    class Till:
        account_id = pk

        @row_lock(Account, pk="self.account_id", into="account")
        def balance(self, account: Account) -> int:
            return account.balance

    whole = row_lock(Account.objects.all(), into="accounts")(lambda accounts: [account.pk for account in accounts])
    sell = row_lock(Account, pk="sale.account.pk")(lambda sale: connection.in_atomic_block)
    anything = row_lock(Account, pk="account", into="found")(lambda **given: given["found"].pk)
    assert Till().balance() == 10
    assert whole() == [pk]
    assert sell(SimpleNamespace(account={"pk": pk}))
    assert anything(account=pk) == pk


@row_lock(Account, pk="pk", into="account")
def spend(request: HttpRequest, pk: int, account: Account) -> int:
    account.balance -= 1
    account.save()
    return account.balance // (not request.GET)


@pytest.mark.parametrize("view", [spend, lambda request, pk: spend(request, pk)], ids=["resolved", "called by it"])
@pytest.mark.parametrize("atomic", [False, True])
def test_r12_a_view_under_atomic_requests(pk: int, atomic: bool, view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the transaction, an error of the view undoes what it wrote."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
    assert respond(view, pk=pk) == 9
    with pytest.raises(ZeroDivisionError):
        respond(view, "fail", pk=pk)
    with pytest.raises(Account.DoesNotExist):
        respond(view, pk=pk + 1)
    assert balances("default") == [9]


def decorate(function: Any, **options: Any) -> Any:
    return row_lock(Account, **options)(function)


ROWS = Account.objects.all()
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: row_lock(Account), ValueError, "needs pk="),
    (lambda: row_lock(Account, pk=None), ValueError, "pk must not be None"),
    (lambda: row_lock(ROWS, pk=1), ValueError, "pk goes with a model"),
    (lambda: row_lock(Account, pk=1, skip_locked=True), ValueError, "skip_locked goes with a queryset"),
    (lambda: row_lock(ROWS, nowait=True, skip_locked=True), ValueError, "nowait and skip_locked"),
    (lambda: row_lock(ROWS, skip_locked=True, timeout=None), ValueError, "skip_locked does not wait"),
    (lambda: row_lock(ROWS.values("pk")), ValueError, "row_lock gives instances"),
    (lambda: row_lock(ROWS.union(ROWS)), ValueError, "rows of a union"),
    (lambda: row_lock(ROWS.order_by("balance")[:2]), ValueError, "only if it is ordered by pk"),
    (lambda: row_lock(ROWS.order_by("pk").reverse()[:2]), ValueError, "only if it is ordered by pk"),
    (lambda: decorate(lambda pk: pk, pk="id"), ValueError, "no argument 'id'; it has pk"),
    (lambda: decorate(lambda pk: pk, pk="a b"), ValueError, "pk must be the name of an argument"),
    (lambda: decorate(lambda pk: pk, pk="pk", into="row"), ValueError, "into is 'row'"),
    (lambda: decorate(lambda row, pk: pk, pk="pk", into="row"), ValueError, "last argument"),
    (lambda: row_lock("Account"), TypeError, "takes a queryset, or a model"),
    (lambda: row_lock(ROWS, of="self"), TypeError, "of must be a tuple"),
    (lambda: Wallet.objects.advisory_lock(""), ValueError, "name must not be empty"),
    (lambda: Wallet.objects.advisory_lock(7), TypeError, "name must be a str"),
    (lambda: Wallet.objects.advisory_row_lock(None), ValueError, "pk must not be None"),
    (lambda: Wallet.objects.advisory_row_lock("x"), ValueError, "pk is 'x'"),
    (lambda: Wallet.objects.lock_table("writ"), ValueError, "mode"),
    # a string is a literal key in a `with` block
    (lambda: row_lock(Currency, pk="EUR").__enter__(), Currency.DoesNotExist, "does not exist"),
]


CALLS: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
    (ValueError, "at least one model", (), {}),
    (TypeError, "models must be model classes, not 'dataapp_account'", ("dataapp_account",), {}),
    (ValueError, "models: Model has no table", (models.Model,), {}),
    (TypeError, "read must be a list", (), {"read": Account}),
    (ValueError, "named twice", (Account, Account), {}),
    (ValueError, "named twice", (AccountProxy,), {"read": [Account]}),
    (ValueError, "mode must be one of 'read', 'write', 'access share'", (Account,), {"mode": "WRITE; DROP TABLE x"}),
    (ValueError, "exclude each other", (Account,), {"timeout": 1, "nowait": True}),
    (ValueError, r"aliases\[Account\] must be a list", (Account,), {"aliases": {Account: "T6"}}),
    (ValueError, r"aliases\[Account\] must be", (Account,), {"aliases": {Account: ["T6` WRITE, x"]}}),
    (ValueError, "Currency is not among", (Account,), {"aliases": {Currency: ["T6"]}, "using": "postgres"}),
]


@isolate_apps("tests.data.app")
def test_bad_input(pk: int, settings: Any) -> None:
    for call, kind, words in BAD:
        with pytest.raises(kind, match=words):
            call()
    settings.DATAAPP_SWAPPED = "dataapp.Account"
    meta = type("Meta", (), {"app_label": "dataapp", "swappable": "DATAAPP_SWAPPED"})
    swapped = type("Swapped", (models.Model,), {"Meta": meta, "__module__": __name__})
    for kind, message, models_, options in [*CALLS, (ValueError, "Swapped has no table", (swapped,), {})]:
        with pytest.raises(kind, match=message):
            table_lock(*models_, **options).__enter__()
    for lock in (row_lock(Account, pk=pk), table_lock(Account)):
        with transaction.atomic(), pytest.raises(LockNotHeld):
            lock.__exit__(None, None, None)


class Split:
    """Account is written to one database, the others to another, and all are read from a third."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "mariadb"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default" if model is Account else "postgres"


def test_the_database_is_the_one_that_is_written(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tables, and of a known engine."""
    settings.DATABASE_ROUTERS = [f"{__name__}.Split"]
    Currency.objects.create(code="EUR")
    rows = row_lock(Currency.objects.filter(rate=1)), row_lock(Currency.objects), row_lock(Currency, pk="EUR")
    for lock in (table_lock(Currency), *rows):
        with lock:
            assert connections["postgres"].in_atomic_block
            assert not connections["mariadb"].in_atomic_block
    with pytest.raises(ValueError, match="several databases"):
        table_lock(Account, Currency).__enter__()
    with table_lock(Account, Currency, using="default"):
        assert connections["default"].in_atomic_block
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    with pytest.raises(UnsupportedOperation, match="oracle"):
        table_lock(Account).__enter__()


LOCKS: list[Any] = [table_lock(Account), row_lock(Account.objects.all())]


@pytest.mark.parametrize("lock", LOCKS)
def test_async_is_refused(lock: Any) -> None:
    async def later() -> None:
        pytest.fail("ran without the lock")

    async def enter(asynchronous: bool) -> None:
        if asynchronous:
            async with lock:
                pytest.fail("locked")
        with lock:
            pytest.fail("locked")

    with pytest.raises(SynchronousOnlyOperation):  # Django's own
        asyncio.run(enter(asynchronous=False))
    for use in (lambda: asyncio.run(enter(asynchronous=True)), lambda: lock(later), lock(lambda: later())):
        with pytest.raises(TypeError, match="sync_to_async"):
            use()
    with pytest.raises(TypeError, match="generator"):
        lock(lambda: (yield))
    with pytest.raises(TypeError, match=r"method_decorator\((table|row)_lock"):
        lock(Split)
    assert not connections["default"].in_atomic_block


# -- managers and querysets: custom ones, related ones, proxies, pickles


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
