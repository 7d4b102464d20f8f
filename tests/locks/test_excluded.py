"""R12: what the user takes out of ATOMIC_REQUESTS is taken out of that view, and of no other."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from django.core.handlers.base import BaseHandler
from django.db import connections, transaction
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock import advisory_lock

if TYPE_CHECKING:
    from collections.abc import Callable

ALIASES = ("default", "postgres")
LOCK = advisory_lock("decorators:excluded", using="memory", timeout=0)
OTHER = advisory_lock("decorators:excluded:other", using="memory", timeout=0)


def out(alias: str) -> Callable[[Any], Any]:
    return transaction.non_atomic_requests(using=alias)


def wrapped(view: Any) -> Any:
    """Somebody else's decorator: functools.wraps copies the attribute, and with it the very set."""

    @functools.wraps(view)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return inner


@pytest.fixture(autouse=True)
def atomic_requests(databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for alias in ALIASES:
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)


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
    "between wrappers": ([wrapped, LOCK, wrapped, out("postgres"), wrapped], ONE),
    "between locks": ([LOCK, out("postgres"), OTHER], ONE),
    "above both locks": ([LOCK, OTHER, out("postgres")], ONE),
    "below both locks": ([out("postgres"), LOCK, OTHER], ONE),
    "between locks and wrappers": ([LOCK, wrapped, out("postgres"), wrapped, OTHER, wrapped], ONE),
    "one above, one below": ([out("default"), LOCK, out("postgres")], []),
    "twice": ([out("postgres"), LOCK, out("postgres")], ONE),
    "around a partial": (
        [lambda view: functools.update_wrapper(functools.partial(view), view), LOCK, out("postgres")],
        ONE,
    ),
}


@pytest.mark.parametrize("stack", STACKS)
def test_r12_excluded_in_every_stacking(stack: str) -> None:
    decorators, expected = STACKS[stack]
    view = fresh()
    for decorator in decorators:
        view = decorator(view)
    assert opened(view) == expected


def test_r12_taking_out_a_wrapper_leaves_the_locked_view_alone() -> None:
    """Two views of one locked function, of which one is taken out."""
    locked = LOCK(fresh())
    excluded = out("postgres")(wrapped(locked))
    assert opened(excluded) == ["default"]
    assert opened(locked) == BOTH
    assert opened(wrapped(locked)) == BOTH


def test_r12_wrapper_of_a_view_that_was_taken_out_later() -> None:
    """It calls what the user has taken out."""
    locked = LOCK(fresh())
    wrapper = wrapped(locked)
    out("postgres")(locked)
    assert opened(locked) == ["default"]
    assert opened(wrapper) == ["default"]


def test_r12_two_wrappers_of_one_locked_view() -> None:
    locked = LOCK(fresh())
    first, second = out("postgres")(wrapped(locked)), out("default")(wrapped(locked))
    assert opened(first) == ["default"]
    assert opened(second) == ["postgres"]
    assert opened(locked) == BOTH


def test_r12_wrapper_of_a_stack_of_locks() -> None:
    inner = LOCK(fresh())
    outer = OTHER(inner)
    out("postgres")(outer)
    assert opened(outer) == ["default"]
    assert opened(inner) == BOTH


def test_r12_function_below_the_lock_is_not_marked() -> None:
    """The unlocked function may be a view as well."""
    view = fresh()
    out("postgres")(LOCK(view))
    assert not hasattr(view, "_non_atomic_requests")
    assert opened(view) == BOTH


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
