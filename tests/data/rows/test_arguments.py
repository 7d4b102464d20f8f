"""row_lock as a decorator, and what it refuses: at once, naming the argument."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction
from django.db.models import Count, Window
from django.db.models.functions import Rank
from django.http import Http404, HttpResponse
from django.urls import path as url
from django.views import View

from django_distlock import LockNotHeld, row_lock
from tests.data.app.models import Account, Currency
from tests.data.asking import accounts, balances

if TYPE_CHECKING:
    from django.http import HttpRequest

pytestmark = pytest.mark.usefixtures("no_accounts")


@pytest.fixture
def pk() -> int:
    return accounts("default", 10)[0]


@row_lock(Account, pk="account_id", into="account")
def withdraw(account_id: int, amount: int = 1, *, account: Account) -> int:
    assert connection.in_atomic_block
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

        @staticmethod
        @row_lock(Account.objects.all(), into="accounts")
        def all(accounts: list[Account]) -> list[int]:
            return [account.pk for account in accounts]

        @row_lock(Account, pk="sale.account.pk")
        def sell(self, sale: Any) -> bool:
            return connection.in_atomic_block

        @row_lock(Account, pk="account", into="found")
        def anything(self, **given: Any) -> int:
            return given["found"].pk

    assert Till().balance() == 10
    assert Till.all() == [pk]
    assert Till().sell(SimpleNamespace(account={"pk": pk}))
    assert Till().anything(account=pk) == pk


@row_lock(Account, pk="pk", into="account")
def spend(request: HttpRequest, pk: int, account: Account) -> HttpResponse:
    account.balance -= 1
    account.save()
    if "fail" in request.GET:
        raise RuntimeError
    return HttpResponse(str(account.balance))


def outer(request: HttpRequest, pk: int) -> HttpResponse:
    """The view that Django resolves is not the one that locks: the transaction is then the request's own."""
    try:
        return spend(request, pk)
    except Account.DoesNotExist as error:
        raise Http404 from error


urlpatterns = [url("<int:pk>/", spend), url("outer/<int:pk>/", outer)]


@pytest.mark.parametrize("path", ["", "outer/"])
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.urls(__name__)
def test_r12_a_view_under_atomic_requests(client: Any, pk: int, atomic: bool, path: str) -> None:
    """Whoever opens the transaction, an error of the view undoes what it wrote."""
    connection.settings_dict["ATOMIC_REQUESTS"] = atomic
    try:
        assert client.get(f"/{path}{pk}/").content == b"9"
        client.raise_request_exception = False
        assert client.get(f"/{path}{pk}/?fail").status_code == 500
        assert client.get(f"/{path}{pk + 1}/").status_code == (404 if path else 500)
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert balances("default") == [9]


def test_async_is_refused_and_told_what_to_do(pk: int) -> None:
    async def coroutine(pk: int) -> None: ...

    with pytest.raises(TypeError, match="sync_to_async"):
        row_lock(Account, pk="pk")(coroutine)

    async def enter() -> None:
        async with row_lock(Account, pk=pk):  # type: ignore[attr-defined]
            pass

    with pytest.raises(TypeError, match="sync_to_async"):
        asyncio.run(enter())
    late = row_lock(Account, pk="pk")(lambda pk: coroutine(pk))
    with pytest.raises(TypeError, match="sync_to_async"):
        late(pk)
    assert not connection.in_atomic_block


ROWS = Account.objects.all()
REFUSED = {
    "no pk": (lambda: row_lock(Account), "needs pk="),
    "pk None": (lambda: row_lock(Account, pk=None), "pk must not be None"),
    "pk of a queryset": (lambda: row_lock(ROWS, pk=1), "pk goes with a model"),
    "skip one": (lambda: row_lock(Account, pk=1, skip_locked=True), "skip_locked goes with a queryset"),
    "both": (lambda: row_lock(ROWS, nowait=True, skip_locked=True), "nowait and skip_locked"),
    "nowait waits": (lambda: row_lock(ROWS, nowait=True, timeout=1), "nowait does not wait"),
    "skip waits": (lambda: row_lock(ROWS, skip_locked=True, timeout=None), "skip_locked does not wait"),
    "negative": (lambda: row_lock(ROWS, timeout=-1), "timeout must not be negative"),
    "nan": (lambda: row_lock(ROWS, timeout=float("nan")), "timeout must be finite"),
    "values": (lambda: row_lock(ROWS.values("pk")), "row_lock gives instances"),
    "values_list": (lambda: row_lock(ROWS.values_list("pk")), "row_lock gives instances"),
    "distinct": (lambda: row_lock(ROWS.distinct()), "distinct rows"),
    "union": (lambda: row_lock(ROWS.union(ROWS)), "rows of a union"),
    "aggregate": (lambda: row_lock(ROWS.annotate(number=Count("pk"))), "groups or windows"),
    "window": (lambda: row_lock(ROWS.annotate(rank=Window(Rank()))), "groups or windows"),
    "slice": (lambda: row_lock(ROWS.order_by("balance")[:2]), "only if it is ordered by pk"),
    "slice backwards": (lambda: row_lock(ROWS.order_by("pk").reverse()[:2]), "only if it is ordered by pk"),
    "unordered slice": (lambda: row_lock(ROWS[:2]), "only if it is ordered by pk"),
    "no such argument": (lambda: row_lock(Account, pk="id")(lambda pk: pk), "no argument 'id'; it has pk"),
    "no path": (lambda: row_lock(Account, pk="a b")(lambda pk: pk), "pk must be the name of an argument"),
    "no such into": (lambda: row_lock(Account, pk="pk", into="row")(lambda pk: pk), "into is 'row'"),
    "into first": (lambda: row_lock(Account, pk="pk", into="row")(lambda row, pk: pk), "last argument"),
    "into itself": (lambda: row_lock(Account, pk="pk", into="pk")(lambda pk: pk), "no argument 'pk'"),
}
WRONG = {
    "target": (lambda: row_lock("Account"), "takes a queryset, or a model"),
    "instance": (lambda: row_lock(Account(pk=1)), "takes a queryset, or a model"),
    "timeout": (lambda: row_lock(ROWS, timeout="1"), "timeout must be a number"),
    "bool": (lambda: row_lock(ROWS, timeout=True), "timeout must be a number"),
    "nowait": (lambda: row_lock(ROWS, nowait=1), "nowait must be a bool"),
    "of": (lambda: row_lock(ROWS, of="self"), "of must be a tuple"),
    "into": (lambda: row_lock(ROWS, into=1), "into must be a str"),
    "using": (lambda: row_lock(ROWS, using=1), "using must be a str"),
    "class": (lambda: row_lock(ROWS)(View), "@method_decorator\\(row_lock"),
    "generator": (lambda: row_lock(ROWS)(generator), "is a generator"),
}


def generator() -> Any:
    yield


def test_bad_input() -> None:
    for cases, kind in ((REFUSED, ValueError), (WRONG, TypeError)):
        for call, words in cases.values():
            with pytest.raises(kind, match=words):
                call()


def test_a_string_is_a_literal_key_in_a_with_block_and_an_exit_needs_an_entry(pk: int) -> None:
    with pytest.raises(Currency.DoesNotExist), row_lock(Currency, pk="EUR"):
        raise AssertionError
    with transaction.atomic(), pytest.raises(LockNotHeld):
        row_lock(Account, pk=pk).__exit__(None, None, None)
