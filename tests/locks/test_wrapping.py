"""A decorated function is still known for what it is: to inspect, pickle, copy and Django."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import multiprocessing
import pickle
import typing
from typing import Any

import pytest

from django_distlock import Lock, advisory_lock
from tests.locks.elsewhere import held_elsewhere, is_free

LOCK = advisory_lock("decorators:wrapping:{pk}", using="memory", timeout=0)
NAME = "decorators:wrapping:7"


@LOCK
def settle(pk: int, *, note: str = "none") -> str:
    """Settle an account."""
    return f"{pk} {note} {is_free(f'decorators:wrapping:{pk}')}"


@LOCK
async def asettle(pk: int, *, note: str = "none") -> str:
    """Settle an account."""
    return f"{pk} {note} {is_free(f'decorators:wrapping:{pk}')}"


settle.marked = True  # type: ignore[attr-defined]


class Account:
    @LOCK
    def pay(self, pk: int) -> int:
        """Pay."""
        return pk


def through_pickle(thing: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(thing, protocol))  # noqa: S301 - made here


both = pytest.mark.parametrize("function", [settle, asettle])


@both
def test_name_doc_and_signature_are_those_of_the_function(function: Any) -> None:
    assert function.__doc__ == "Settle an account."
    assert function.__module__ == __name__
    assert function.__qualname__ == function.__name__
    assert str(inspect.signature(function)) == "(pk: 'int', *, note: 'str' = 'none') -> 'str'"
    assert typing.get_type_hints(function) == {"pk": int, "note": str, "return": str}
    assert inspect.unwrap(function) is function.__wrapped__


def test_kind_is_kept() -> None:
    assert inspect.iscoroutinefunction(asettle)
    assert asyncio.iscoroutinefunction(asettle)
    assert not inspect.iscoroutinefunction(settle)
    assert inspect.isfunction(settle)
    assert inspect.isfunction(asettle)
    assert inspect.ismethod(Account().pay)


def test_source_is_that_of_the_function() -> None:
    assert inspect.getsource(settle).startswith("@LOCK\ndef settle(")


def test_attributes_of_the_function_are_kept() -> None:
    def marked(pk: int) -> None: ...

    marked.permission = "accounts.pay"  # type: ignore[attr-defined]
    assert LOCK(marked).permission == "accounts.pay"  # type: ignore[attr-defined]
    assert LOCK(LOCK(marked)).permission == "accounts.pay"  # type: ignore[attr-defined]


@both
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_function_is_pickled_by_name(function: Any, protocol: int) -> None:
    """As Celery, multiprocessing and django.tasks send it."""
    assert through_pickle(function, protocol) is function
    assert copy.deepcopy(function) is function


def test_bound_method_is_pickled() -> None:
    again = through_pickle(Account().pay)
    with held_elsewhere(NAME), pytest.raises(Exception, match="is held by another caller"):
        again(7)
    assert again(7) == 7


def test_function_runs_in_another_process() -> None:
    """The other process has locks of its own: those of the memory backend end at the process."""
    with held_elsewhere(NAME), multiprocessing.get_context("spawn").Pool(1, initializer=begin) as pool:
        assert pool.apply_async(settle, (7,), {"note": "x"}).get(60) == "7 x False"


def begin() -> None:
    import os

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    import django

    django.setup()


RECIPES = [
    Lock("{pk}", using="memory"),
    Lock("{pk}", using="memory", timeout=0, on_busy="skip"),
    Lock("{pk}", using="memory", timeout=None, ttl=5, max_hold=9, shared=True),
]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, through_pickle])
@pytest.mark.parametrize("lock", RECIPES)
def test_recipe_can_be_copied_and_pickled(lock: Lock, again: Any) -> None:
    """What was not given is still not given."""
    other = again(lock)
    assert vars(other) == vars(lock)
    assert other.timeout is lock.timeout or other.timeout == lock.timeout
    with held_elsewhere("7"):
        if lock.on_busy == "skip":
            assert other(settle)(7) is None
    other(lambda pk: None)(8)


def test_partial_of_a_decorated_function() -> None:
    with held_elsewhere(NAME), pytest.raises(Exception, match="is held by another caller"):
        functools.partial(settle, 7)(note="x")
    assert functools.partial(settle, 7)(note="x") == "7 x False"


def test_decorator_below_that_keeps_nothing() -> None:
    """Without functools.wraps the fields are asked of the wrapper, and refused if it cannot have them."""

    def bare(function: Any) -> Any:
        def inner(*args: Any) -> Any:
            return function(*args)

        return inner

    with pytest.raises(ValueError, match=r"inner' has no argument 'pk'; it has none\.$"):
        LOCK(bare(lambda pk: pk))
    assert advisory_lock("x", using="memory")(bare(lambda pk: pk))(7) == 7
