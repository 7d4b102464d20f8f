"""A lock above functions, methods and async functions; and what it refuses to stand above."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import iscoroutinefunction, sync_to_async

from django_distlock import LockNotAcquired, advisory_lock, lock_all, semaphore
from tests.locks.elsewhere import PATIENCE, Crowd, held_elsewhere, is_free

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 6


def by_threads(decorate: Callable[[Any], Any], meet: threading.Barrier, patience: float = 0.02) -> Crowd:
    """CALLS threads call one function at once. The body meets the others, if they get in: for ``patience`` seconds the
    first one waits for them."""
    crowd = Crowd()

    def body() -> None:
        crowd.enter()
        try:
            meet.wait(patience)
        except threading.BrokenBarrierError:
            pass
        finally:
            crowd.leave()

    function = decorate(body)
    with ThreadPoolExecutor(CALLS) as pool:
        for call in [pool.submit(function) for _ in range(CALLS)]:
            call.result(PATIENCE)
    return crowd


def by_tasks(decorate: Callable[[Any], Any]) -> Crowd:
    """CALLS tasks of one loop call one async function."""
    crowd = Crowd()

    async def body() -> None:
        crowd.enter()
        for _ in range(10):
            await asyncio.sleep(0)
        crowd.leave()

    function = decorate(body)

    async def everybody() -> None:
        await asyncio.gather(*(function() for _ in range(CALLS)))

    asyncio.run(everybody())
    return crowd


def test_r1_naive_function_lets_everybody_in() -> None:
    """The fault, without a lock: else the tests below could not fail."""
    assert by_threads(lambda function: function, threading.Barrier(CALLS), PATIENCE).most == CALLS
    assert by_tasks(lambda function: function).most == CALLS


RECIPES: list[Any] = [
    lambda name: advisory_lock(name, using="memory"),
    lambda name: lock_all([name, name + "2"], using="memory"),
    lambda name: semaphore(name, 1, using="memory"),
]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=["advisory_lock", "lock_all", "semaphore"])


@every_recipe
def test_r1_one_thread_at_a_time(recipe: Any, name: str) -> None:
    crowd = by_threads(recipe(name), threading.Barrier(CALLS))
    assert (crowd.most, crowd.calls) == (1, CALLS)
    assert is_free(name)


@every_recipe
def test_r1_one_task_at_a_time(recipe: Any, name: str) -> None:
    crowd = by_tasks(recipe(name))
    assert (crowd.most, crowd.calls) == (1, CALLS)
    assert is_free(name)


def test_shared_lock_lets_readers_in_together(name: str) -> None:
    assert by_tasks(advisory_lock(name, using="memory", shared=True)).most == CALLS


def test_r2_sync_function_that_an_async_one_awaits_is_the_same_context(name: str) -> None:
    lock = advisory_lock(name, using="memory", timeout=0)
    inner = lock(lambda: "inner")

    @lock
    async def outer() -> Any:
        return await sync_to_async(inner)()

    assert asyncio.run(outer()) == "inner"
    assert is_free(name)


class Account:
    lock = advisory_lock("decorators:account", using="memory", timeout=0)

    @lock
    def method(self) -> str:
        return "method"

    @lock
    async def amethod(self) -> str:
        return "amethod"

    @classmethod
    @lock
    def of_class(cls) -> str:
        return cls.__name__

    @staticmethod
    @lock
    def static() -> str:
        return "static"

    @property
    @lock
    def value(self) -> str:
        return "value"

    @functools.cached_property
    @lock
    def cached(self) -> str:
        return "cached"

    @lock
    def __call__(self) -> str:
        return "called"


class Savings(Account):
    def method(self) -> str:
        return "savings " + super().method()


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (lambda: Account().method(), "method"),
        (lambda: asyncio.run(Account().amethod()), "amethod"),
        (lambda: Account.of_class(), "Account"),
        (lambda: Savings.of_class(), "Savings"),
        (lambda: Account().static(), "static"),
        (lambda: Account().value, "value"),
        (lambda: Account().cached, "cached"),
        (lambda: Account()(), "called"),
        (lambda: Savings().method(), "savings method"),
    ],
)
def test_methods_of_every_kind(call: Callable[[], Any], result: str) -> None:
    with held_elsewhere("decorators:account"), pytest.raises(LockNotAcquired):
        call()
    assert call() == result
    assert is_free("decorators:account")


class AsyncCallable:
    async def __call__(self, number: int) -> int:
        await asyncio.sleep(0)
        return number


class Callable_:
    def __call__(self, number: int) -> int:
        return number


async def double(number: int) -> int:
    return number


def gives_coroutine(number: int) -> Any:
    return double(number)


@pytest.mark.parametrize(
    ("function", "asynchronous"),
    [
        (AsyncCallable(), True),
        (Callable_(), False),
        (functools.partial(double), True),
        (functools.partial(Callable_(), 3), False),
        (functools.lru_cache(Callable_()), False),
        (len, False),
        (double, True),
    ],
)
def test_callables_that_are_no_functions(function: Any, asynchronous: bool, name: str) -> None:
    locked = advisory_lock(name, using="memory", timeout=0)(function)
    args: tuple[Any, ...] = ([1, 2, 3],) if function is len else () if getattr(function, "args", ()) else (3,)
    assert iscoroutinefunction(locked) == asynchronous

    def call() -> Any:
        return asyncio.run(locked(*args)) if asynchronous else locked(*args)

    with held_elsewhere(name), pytest.raises(LockNotAcquired):
        call()
    assert call() == 3
    assert is_free(name)


def test_awaitable_of_a_plain_function_is_awaited_inside_the_lock(name: str) -> None:
    async def work() -> bool:
        await asyncio.sleep(0)
        return is_free(name)

    assert asyncio.run(advisory_lock(name, using="memory", timeout=0)(lambda: work())()) is False
    assert is_free(name)
