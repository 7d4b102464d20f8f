"""R12: around a view under ATOMIC_REQUESTS the lock comes before the transaction of the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock import UnsupportedOperation, advisory_lock, table_lock
from tests.data.app.models import Account, Currency

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.data.rival import Rival

pytestmark = pytest.mark.urls(__name__)
seen: list[Any] = []


class Stage:
    """The database and the rival of the running test."""

    using = "default"
    rival: Any = None


def work(request: HttpRequest) -> HttpResponse:
    Account.objects.using(Stage.using).create(owner="x")
    seen.append(connections[Stage.using].in_atomic_block)
    seen.append(Stage.rival.gets(Stage.using, "Account"))
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse("done")


def locks(using: str) -> list[Any]:
    lock = table_lock(Account, using=using)

    class Within(View):
        @method_decorator(lock)
        def dispatch(self, request: HttpRequest, *args: Any) -> Any:
            return super().dispatch(request, *args)

        def get(self, request: HttpRequest) -> HttpResponse:
            return work(request)

    stacked = advisory_lock("data:view", using="memory")
    shapes = {
        "function": lock(work),
        "below": stacked(lock(work)),
        "above": lock(stacked(work)),
        "class": method_decorator(lock, name="dispatch")(
            type("Named", (View,), {"get": lambda s, r: work(r)})
        ).as_view(),
        "dispatch": Within.as_view(),
        "too_late": transaction.atomic(using=using)(lock(work)),
    }
    return [path(f"{using}/{name}/", view) for name, view in shapes.items()]


urlpatterns = [pattern for using in ("default", "postgres", "mariadb") for pattern in locks(using)]
SHAPES = ("function", "below", "above", "class", "dispatch")


@pytest.fixture(autouse=True)
def stage(db_alias: str, rival: Rival, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(connections.settings[db_alias], "ATOMIC_REQUESTS", True)
    Stage.using, Stage.rival = db_alias, rival
    seen.clear()
    yield
    Account.objects.using(db_alias).all().delete()


def test_r12_the_lock_encloses_the_request(db_alias: str, rival: Rival) -> None:
    """And a failing view is rolled back."""
    for shape in SHAPES:
        assert Client().get(f"/{db_alias}/{shape}/").status_code == 200
        assert rival.gets(db_alias, "Account")
        with pytest.raises(ZeroDivisionError):
            Client().get(f"/{db_alias}/{shape}/?fail")
        assert rival.gets(db_alias, "Account")
    assert seen == [True, False] * 2 * len(SHAPES)
    assert Account.objects.using(db_alias).count() == len(SHAPES)


def test_busy_is_503(db_alias: str, rival: Rival) -> None:
    """The middleware's answer, as for a named lock; the transaction of the request is not begun."""
    assert rival.lock(db_alias, "Account") == "held"
    view = table_lock(Account, using=db_alias, timeout=0)(work)
    urlpatterns.append(path("busy/", view))
    try:
        assert Client().get("/busy/").status_code == 503
    finally:
        urlpatterns.pop()
        rival.leave()
    assert not seen


def test_below_a_transaction(db_alias: str) -> None:
    if db_alias == "mariadb":
        with pytest.raises(UnsupportedOperation, match="as its decorator"):
            Client().get(f"/{db_alias}/too_late/")
        assert not seen
    else:
        assert Client().get(f"/{db_alias}/too_late/").status_code == 200
        assert seen == [True, False]


def test_a_call_by_other_code_opens_only_its_own(db_alias: str) -> None:
    @table_lock(Currency, using=db_alias)
    def plain() -> bool:
        return connections[db_alias].in_atomic_block

    assert plain() is True
    assert not connections[db_alias].in_atomic_block
