"""R12 for each shape of a decorated view: where the transaction of the request lies. What other processes see of it is
proven in tests/transactions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.base import BaseHandler
from django.db import connections, transaction
from django.test import AsyncClient, Client, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock import signals
from tests.locks import views
from tests.locks.elsewhere import held_elsewhere
from tests.locks.views import LOCK, NAME, OTHER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.urls("tests.locks.views")

ALIASES = ("default", "postgres")
# The lock on the handler, or below @api_view: Django's own transaction is open already, R11 keeps the lock to its end.
INSIDE = ("get", "get_directly", "drf_get", "drf_viewset_list", "drf_below_api_view")
SYNC = [shape for shape in views.LOCKED if not shape.startswith("async")]


@pytest.fixture(autouse=True)
def atomic_requests(databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for alias in ALIASES:
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bool]]]:
    """Whether a transaction was open when the lock came, while the view ran, and when it went."""
    happened: list[tuple[str, bool]] = []

    def note(what: str, name: str = NAME) -> None:
        if name == NAME:
            happened.append((what, connections["default"].in_atomic_block))

    def acquired(name: str, **kwargs: Any) -> None:
        note("acquired", name)

    def released(name: str, **kwargs: Any) -> None:
        note("released", name)

    def inside() -> str:
        note("inside")
        return NAME

    monkeypatch.setattr(views, "inside", inside)
    signals.lock_acquired.connect(acquired)
    signals.lock_released.connect(released)
    yield happened
    signals.lock_acquired.disconnect(acquired)
    signals.lock_released.disconnect(released)


@pytest.mark.parametrize("shape", SYNC)
def test_r12_lock_encloses_the_transaction_of_the_request(order: list[tuple[str, bool]], shape: str) -> None:
    assert Client().get(f"/{shape}/").status_code == 200
    assert order == [("acquired", shape in INSIDE), ("inside", True), ("released", False)]


@pytest.mark.parametrize("shape", ["function", "dispatch", "drf"])
def test_r12_busy_view_opens_no_transaction(shape: str) -> None:
    opened: list[str] = []
    with held_elsewhere(NAME), connections["default"].execute_wrapper(lambda *args: opened.append(args[1])):
        assert Client().get(f"/{shape}/").status_code == 503
    assert not opened


@pytest.mark.parametrize("shape", ["async", "async_dispatch_list", "async_get", "async_around_as_view"])
def test_r12_async_view_is_refused_in_the_words_of_django(order: list[tuple[str, bool]], shape: str) -> None:
    """A transaction cannot span an async view; a locked one must not run without it in silence."""
    for get in (Client().get, async_to_sync(AsyncClient().get)):
        with pytest.raises(RuntimeError, match=r"^You cannot use ATOMIC_REQUESTS with async views\.$"):
            get(f"/{shape}/")
    assert "inside" not in dict(order)


# What the user takes out is taken out of that view, and of no other.


def out(alias: str) -> Callable[[Any], Any]:
    return transaction.non_atomic_requests(using=alias)


def wrapped(view: Any) -> Any:
    """Somebody else's decorator: functools.wraps copies the attribute, and with it the very set."""

    return functools.wraps(view)(lambda *args, **kwargs: view(*args, **kwargs))


def opened(view: Any) -> list[str]:
    """The aliases that are in a transaction while Django runs ``view`` as it runs a resolved one."""
    request: Any = RequestFactory().get("/")
    request.resolver_match = type("Match", (), {"func": staticmethod(view)})
    answer = BaseHandler().make_view_atomic(view)(request)
    return list(answer)


def body(request: Any) -> list[str]:
    return [alias for alias in ALIASES if connections[alias].in_atomic_block]


def fresh() -> Any:
    """A view of its own: Django marks the function itself."""
    return lambda request: body(request)


BOTH, ONE = list(ALIASES), ["default"]
# What is put above a fresh view from the inside outwards, and what is opened then.
STACKS: dict[str, tuple[list[Any], list[str]]] = {
    "lock": ([LOCK], BOTH),
    "above": ([LOCK, out("postgres")], ONE),
    "below": ([out("postgres"), LOCK], ONE),
    "above a wrapper": ([LOCK, wrapped, out("postgres")], ONE),
    "below a wrapper": ([out("postgres"), wrapped, LOCK], ONE),
    "between locks and wrappers": ([LOCK, wrapped, out("postgres"), wrapped, OTHER, wrapped], ONE),
    "above both locks": ([LOCK, OTHER, out("postgres")], ONE),
    "below both locks": ([out("postgres"), LOCK, OTHER], ONE),
    "one above, one below": ([out("default"), LOCK, out("postgres")], []),
}


@pytest.mark.parametrize("stack", STACKS)
def test_r12_excluded_in_every_stacking(stack: str) -> None:
    decorators, expected = STACKS[stack]
    view = fresh()
    for decorator in decorators:
        view = decorator(view)
    assert opened(view) == expected


def test_r12_wrappers_of_one_locked_view_are_taken_out_one_by_one() -> None:
    view = fresh()
    locked = LOCK(view)
    first, second = out("postgres")(wrapped(locked)), out("default")(wrapped(locked))
    assert (opened(first), opened(second)) == (["default"], ["postgres"])
    assert opened(locked) == opened(wrapped(locked)) == opened(view) == BOTH


def test_r12_wrapper_calls_what_was_taken_out_later() -> None:
    locked = LOCK(fresh())
    wrapper = wrapped(locked)
    out("postgres")(locked)
    assert opened(locked) == opened(wrapper) == ["default"]


def test_r12_class_based_views_of_one_locked_base() -> None:
    class Base(View):
        def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            return body(request)

    locked = method_decorator(LOCK, name="dispatch")(type("Locked", (Base,), {"dispatch": Base.dispatch}))
    taken_out = method_decorator(out("postgres"), name="dispatch")(type("TakenOut", (locked,), {}))
    assert opened(taken_out.as_view()) == ["default"]
    assert opened(locked.as_view()) == BOTH
    assert opened(out("default")(locked.as_view())) == ["postgres"]
    assert opened(locked.as_view()) == BOTH
