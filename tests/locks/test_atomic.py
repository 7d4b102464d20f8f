"""R12: a busy view opens no transaction, an async one none at all, and what the user takes out is out. The shapes of
views, and what other processes see of them, are in tests/transactions."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.base import BaseHandler
from django.db import connections, transaction
from django.test import AsyncClient, Client, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from tests.locks import views
from tests.locks.elsewhere import held_elsewhere
from tests.locks.views import LOCK, NAME, OTHER

pytestmark = pytest.mark.urls("tests.locks.views")

ALIASES = ("default", "postgres")


@pytest.fixture(autouse=True)
def atomic_requests(databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for alias in ALIASES:
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)


@pytest.mark.parametrize("shape", ["function", "dispatch", "drf_dispatch"])
def test_r12_busy_view_opens_no_transaction(shape: str) -> None:
    opened: list[str] = []
    with held_elsewhere(NAME), connections["default"].execute_wrapper(lambda *args: opened.append(args[1])):
        assert Client().get(f"/{shape}/").status_code == 503
    assert not opened


@pytest.mark.parametrize("shape", ["async", "async_dispatch", "async_get", "async_around_as_view"])
def test_r12_async_view_is_refused_in_the_words_of_django(monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """A transaction cannot span an async view; a locked one must not run without it in silence."""
    monkeypatch.setattr(views, "inside", lambda: pytest.fail("it ran"))
    for get in (Client().get, async_to_sync(AsyncClient().get)):
        with pytest.raises(RuntimeError, match=r"^You cannot use ATOMIC_REQUESTS with async views\.$"):
            get(f"/{shape}/")


# What the user takes out is taken out of that view, and of no other.


def wrapped(view: Any) -> Any:
    """Somebody else's decorator: functools.wraps copies the attribute, and with it the very set."""
    return functools.wraps(view)(lambda *args, **kwargs: view(*args, **kwargs))


def opened(view: Any) -> list[str]:
    """The aliases that are in a transaction while Django runs ``view`` as it runs a resolved one."""
    request: Any = RequestFactory().get("/")
    request.resolver_match = type("Match", (), {"func": staticmethod(view)})
    return list(BaseHandler().make_view_atomic(view)(request))  # type: ignore[arg-type]


def body(request: Any) -> list[str]:
    return [alias for alias in ALIASES if connections[alias].in_atomic_block]


def stacked(*decorators: Any) -> Any:
    """What is put above a fresh view (Django marks the function itself), from the inside outwards."""
    return functools.reduce(lambda view, decorator: decorator(view), decorators, lambda request: body(request))


BOTH, ONE = ["default", "postgres"], ["default"]
OUT, OUT_TOO = transaction.non_atomic_requests(using="postgres"), transaction.non_atomic_requests(using="default")
STACKS: list[tuple[list[Any], list[str]]] = [
    ([LOCK], BOTH),
    ([LOCK, OUT], ONE),
    ([OUT, LOCK], ONE),
    ([LOCK, wrapped, OUT], ONE),
    ([OUT, wrapped, LOCK], ONE),
    ([LOCK, wrapped, OUT, wrapped, OTHER, wrapped], ONE),
    ([LOCK, OTHER, OUT], ONE),
    ([OUT, LOCK, OTHER], ONE),
    ([OUT, OUT_TOO, LOCK], []),
]


def test_r12_excluded_in_every_stacking() -> None:
    for decorators, expected in STACKS:
        assert opened(stacked(*decorators)) == expected, decorators


def test_r12_one_view_at_two_addresses() -> None:
    """Taken out at one of them, it keeps its transactions at the other."""
    locked = stacked(LOCK)
    assert opened(OUT(wrapped(locked))) == ONE
    assert opened(locked) == BOTH


def test_r12_class_based_views_of_one_locked_base() -> None:
    """Above a lock that other classes inherit it would take them out too, in silence: it is refused."""

    def dispatch(view: View, request: Any) -> Any:
        return body(request)

    locked: Any = views.on("dispatch", type("Base", (View,), {"dispatch": dispatch}), LOCK)
    above = method_decorator(OUT, name="dispatch")(type("Above", (locked,), {})).as_view()
    for refused in (lambda: opened(above), lambda: OUT_TOO(locked.as_view()), lambda: OUT(LOCK(dispatch))):
        with pytest.raises(TypeError, match=r"above a locked dispatch.* Give both to one decorator: @method_decorator"):
            refused()
        assert opened(locked.as_view()) == BOTH
    for order in ([OUT, OTHER], [OTHER, OUT]):
        taken_out = method_decorator(order, name="dispatch")(type("Both", (View,), {"dispatch": dispatch}))
        assert opened(taken_out.as_view()) == ONE
