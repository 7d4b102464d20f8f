"""What a lock refuses to stand above, because it could not protect it; and how it tells an async function from a plain
one, whose wait for the lock would stop an event loop."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import SynchronousOnlyOperation

from django_distlock import LockNotAcquired, advisory_lock, lock_all, semaphore
from tests.locks.elsewhere import is_free

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

RECIPES: dict[str, Any] = {
    "advisory_lock": advisory_lock("x", using="memory"),
    "lock_all": lock_all(["x", "y"], using="memory"),
    "semaphore": semaphore("x", 1, using="memory"),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def generator() -> Iterator[int]:
    yield 1


class Generating:
    def __call__(self) -> Iterator[int]:
        yield 1


class AGenerating:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


GENERATOR = r"is a generator: it would run after the lock is released\. Use `with`"
DID_YOU_MEAN = r"^A lock decorates a callable, not {}; did you mean"
REFUSED: list[tuple[Any, str]] = [
    *((kind(len), f"^Put @{kind.__name__} above the lock, not below it.$") for kind in (classmethod, staticmethod)),
    (property(len), "^Put @property above the lock, not below it.$"),  # type: ignore[arg-type]
    (generator, GENERATOR),
    (functools.partial(generator), GENERATOR),
    (Generating(), GENERATOR),
    (Generating().__call__, GENERATOR),
    (AGenerating(), GENERATOR),
    (functools.partial(AGenerating().__call__), GENERATOR),
    (AGenerating, r"^AGenerating is a class; use @method_decorator\(advisory_lock"),
    (None, DID_YOU_MEAN.format("NoneType")),
    (7, DID_YOU_MEAN.format("int")),
    ("name", DID_YOU_MEAN.format("str")),
    (functools.cached_property(len), DID_YOU_MEAN.format("cached_property")),  # type: ignore[arg-type]
]


@every_recipe
def test_what_is_refused(recipe: Any) -> None:
    for thing, message in REFUSED:
        with pytest.raises(TypeError, match=message):
            recipe(thing)
    with pytest.raises(TypeError, match=r"^name must be a str, not function: a decorator has a name"):
        advisory_lock(generator)  # type: ignore[arg-type] - parentheses forgotten


async def work(name: str) -> bool:
    """Is the lock held while it runs?"""
    await asyncio.sleep(0)
    return not is_free(name)


class AsyncCallable:
    async def __call__(self, name: str) -> bool:
        return await work(name)


def gives_coroutine(name: str) -> Any:
    return work(name)


@functools.wraps(work)
def wrapper(name: str) -> Any:
    """A decorator that forgot about async: asgiref's async_to_sync looks the same from outside."""
    return work(name)


MARKED: Any = markcoroutinefunction(lambda name: gives_coroutine(name))
ASYNC: dict[str, Any] = {
    "async def": work,
    "bound method": AsyncCallable().__call__,
    "partial of a partial of an object": functools.partial(functools.partial(AsyncCallable())),
    "marked": MARKED,
    "partial of a marked one": functools.partial(MARKED),
    "partial of a decorated one": functools.partial(advisory_lock("decorators:loop", using="memory")(work)),
}
PLAIN: dict[str, Any] = {
    "plain": gives_coroutine,
    "wrapper": wrapper,
    "no awaitable at all": is_free,
}


@pytest.mark.parametrize("kind", ASYNC)
def test_async_is_seen_at_decoration(kind: str, name: str) -> None:
    lock = advisory_lock(name, using="memory", timeout=0)
    locked = lock(ASYNC[kind])
    assert iscoroutinefunction(locked)

    async def call() -> Any:
        held = await lock.aacquire()
        busy = asyncio.create_task(locked(name))  # another context of this very loop
        with pytest.raises(LockNotAcquired):
            await busy
        await held.arelease()
        return await locked(name)

    assert asyncio.run(call()) is True
    assert is_free(name)


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_function_is_refused_on_the_loop_and_told_the_cure(kind: str, name: str) -> None:
    """Waited for there, a lock that another task of the loop holds would never come."""
    locked = advisory_lock(name, using="memory", timeout=None)(PLAIN[kind])

    async def as_task() -> Any:
        return locked(name)

    async def call() -> None:
        async with advisory_lock(name, using="memory"):
            with pytest.raises(SynchronousOnlyOperation) as refused:
                await asyncio.create_task(as_task())
        for part in ("would block the event loop", "sync_to_async", f"async def {PLAIN[kind].__qualname__}"):
            assert part in str(refused.value)

    asyncio.run(call())
    assert is_free(name)
