"""What a lock refuses to stand above, because it could not protect it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock, lock_all, semaphore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

RECIPES: list[Any] = [
    lambda name: advisory_lock(name, using="memory"),
    lambda name: lock_all([name, name + "2"], using="memory"),
    lambda name: semaphore(name, 1, using="memory"),
]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=["advisory_lock", "lock_all", "semaphore"])


@every_recipe
@pytest.mark.parametrize(
    ("kind", "name_of_kind"), [(classmethod, "classmethod"), (staticmethod, "staticmethod"), (property, "property")]
)
def test_wrong_order_is_refused(recipe: Any, kind: Any, name_of_kind: str) -> None:
    with pytest.raises(TypeError) as refused:
        recipe("x")(kind(lambda *args: None))
    assert str(refused.value) == f"Put @{name_of_kind} above the lock, not below it."


def generator() -> Iterator[int]:
    yield 1


async def agenerator() -> AsyncIterator[int]:
    yield 1


class Generating:
    def __call__(self) -> Iterator[int]:
        yield 1


class AGenerating:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


@every_recipe
@pytest.mark.parametrize(
    "function",
    [
        generator,
        agenerator,
        functools.partial(generator),
        functools.partial(agenerator),
        Generating().__call__,
        Generating(),
        AGenerating(),
    ],
    ids=["generator", "async generator", "partial", "async partial", "bound", "callable", "async callable"],
)
def test_generators_are_refused(recipe: Any, function: Any) -> None:
    with pytest.raises(TypeError, match=r"is a generator: it would run after the lock is released\. Use `with`"):
        recipe("x")(function)


@every_recipe
def test_class_is_refused(recipe: Any) -> None:
    with pytest.raises(TypeError) as refused:
        recipe("x")(AGenerating)
    assert str(refused.value) == (
        "AGenerating is a class; use @method_decorator(advisory_lock(...), name='dispatch') on a class-based view."
    )


@every_recipe
@pytest.mark.parametrize("thing", [None, 7, "name", [], functools.cached_property(lambda self: 1)])
def test_what_cannot_be_called_is_refused(recipe: Any, thing: Any) -> None:
    with pytest.raises(TypeError, match=rf"^A lock decorates a callable, not {type(thing).__name__}; did you mean"):
        recipe("x")(thing)


def test_forgotten_parentheses() -> None:
    """@advisory_lock without a name."""
    with pytest.raises(TypeError, match=r"^name must be a str, not function\.$"):
        advisory_lock(generator)  # type: ignore[arg-type]
