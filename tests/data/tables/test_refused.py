"""Bad input fails at once, with an error that names the argument; and nothing async."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, models
from django.test.utils import isolate_apps

from django_distlock import LockNotHeld, UnsupportedOperation, row_lock, table_lock
from tests.data.app.models import Account, AccountProxy, Currency

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
def test_bad_input(settings: Any) -> None:
    settings.DATAAPP_SWAPPED = "dataapp.Account"
    meta = type("Meta", (), {"app_label": "dataapp", "swappable": "DATAAPP_SWAPPED"})
    swapped = type("Swapped", (models.Model,), {"Meta": meta, "__module__": __name__})
    for kind, message, models_, options in [*CALLS, (ValueError, "Swapped has no table", (swapped,), {})]:
        with pytest.raises(kind, match=message):
            table_lock(*models_, **options).__enter__()
    with pytest.raises(LockNotHeld):
        table_lock(Account).__exit__(None, None, None)


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
