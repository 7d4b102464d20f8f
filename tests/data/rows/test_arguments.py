"""row_lock as a decorator, and what it refuses: at once, naming the argument."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction

from django_distlock import LockNotHeld, row_lock
from tests.data.app.models import Account, Currency
from tests.data.world import accounts, balances, respond

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
    # a string is a literal key in a `with` block
    (lambda: row_lock(Currency, pk="EUR").__enter__(), Currency.DoesNotExist, "does not exist"),
]


def test_bad_input(pk: int) -> None:
    for call, kind, words in BAD:
        with pytest.raises(kind, match=words):
            call()
    with transaction.atomic(), pytest.raises(LockNotHeld):
        row_lock(Account, pk=pk).__exit__(None, None, None)
