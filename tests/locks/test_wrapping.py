"""A decorated function is still known for what it is: to inspect, pickle, copy and Django."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from typing import Any

import pytest

from django_distlock import Lock, advisory_lock
from tests.locks.elsewhere import is_free

LOCK = advisory_lock("decorators:wrapping:{pk}", using="memory", timeout=0)


@LOCK
def settle(pk: int, *, note: str = "none") -> str:
    """Settle an account."""
    return f"{pk} {note} {is_free(f'decorators:wrapping:{pk}')}"


@LOCK
async def asettle(pk: int, *, note: str = "none") -> str:
    """Settle an account."""
    return f"{pk} {note}"


def through_pickle(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - made here


@pytest.mark.parametrize("function", [settle, asettle])
def test_what_it_is_asked_is_what_the_function_would_say(function: Any) -> None:
    assert function.__doc__ == "Settle an account."
    assert function.__module__ == __name__
    assert function.__qualname__ == function.__name__
    assert str(inspect.signature(function)) == "(pk: 'int', *, note: 'str' = 'none') -> 'str'"
    assert typing.get_type_hints(function) == {"pk": int, "note": str, "return": str}
    assert inspect.iscoroutinefunction(function) == (function is asettle)
    assert inspect.isfunction(function)
    assert inspect.getsource(function).startswith("@LOCK\n")
    # pickled by name, as Celery, multiprocessing and django.tasks send it
    assert through_pickle(function) is copy.deepcopy(function) is function


def test_attributes_of_the_function_are_kept() -> None:
    def marked(pk: int) -> None: ...

    marked.permission = "accounts.pay"  # type: ignore[attr-defined]
    assert LOCK(LOCK(marked)).permission == "accounts.pay"  # type: ignore[attr-defined]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, through_pickle])
@pytest.mark.parametrize("more", [{}, {"timeout": None, "ttl": 5, "max_hold": 9, "shared": True, "on_busy": "skip"}])
def test_recipe_can_be_copied_and_pickled(more: dict[str, Any], again: Any) -> None:
    """What was not given is still not given."""
    lock = Lock("{pk}", using="memory", **more)
    other = again(lock)
    assert vars(other) == vars(lock)
    assert other.timeout is lock.timeout
    assert other(lambda pk: not is_free("7"))(7) is True


def test_decorator_below_that_keeps_nothing() -> None:
    """Without functools.wraps the fields are asked of the wrapper, and refused if it cannot have them."""
    with pytest.raises(ValueError, match=r"lambda>' has no argument 'pk'; it has none\.$"):
        LOCK(lambda *args: settle(*args))
