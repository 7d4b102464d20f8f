"""A plain function on the thread of an event loop: async where that can be told at decoration, else refused, because
the wait for its lock would stop the loop."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

from django_distlock import LockNotAcquired, advisory_lock, lock_all, semaphore
from tests.locks.elsewhere import is_free
from tests.support.timing import within


class AsyncCallable:
    async def __call__(self, name: str) -> bool:
        return await work(name)

    async def method(self, name: str) -> bool:
        return await work(name)


async def work(name: str) -> bool:
    """Is the lock held while it runs?"""
    await asyncio.sleep(0)
    return not is_free(name)


def gives_coroutine(name: str) -> Any:
    return work(name)


@functools.wraps(work)
def wrapper(name: str) -> Any:
    """A decorator that forgot about async: asgiref's async_to_sync looks the same from outside."""
    return work(name)


def marked(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return markcoroutinefunction(inner)


DETECTED: dict[str, Any] = {
    "async def": work,
    "partial": functools.partial(work),
    "object": AsyncCallable(),
    "bound method": AsyncCallable().method,
    "partial of an object": functools.partial(AsyncCallable()),
    "partial of a partial of an object": functools.partial(functools.partial(AsyncCallable())),
    "partial of a bound method": functools.partial(AsyncCallable().method),
    "marked": marked(gives_coroutine),
    "partial of a marked one": functools.partial(marked(gives_coroutine)),
    "decorated already": advisory_lock("decorators:loop", using="memory")(work),
    "partial of a decorated one": functools.partial(advisory_lock("decorators:loop", using="memory")(work)),
}
PLAIN: dict[str, Any] = {
    "plain": gives_coroutine,
    "wrapper": wrapper,
    "partial": functools.partial(gives_coroutine),
    "no awaitable at all": is_free,
}


@pytest.mark.parametrize("kind", DETECTED)
def test_async_is_seen_at_decoration(kind: str, name: str) -> None:
    lock = advisory_lock(name, using="memory", timeout=0)
    locked = lock(DETECTED[kind])
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
@pytest.mark.parametrize("on_busy", ["raise", "skip"])
def test_plain_function_is_refused_on_the_loop_and_told_the_cure(kind: str, on_busy: Any, name: str) -> None:
    """Waited for there, a lock that another task of the loop holds would not come before the timeout."""
    locked = advisory_lock(name, using="memory", timeout=2, on_busy=on_busy)(PLAIN[kind])

    async def call() -> None:
        async with advisory_lock(name, using="memory"):
            started = time.monotonic()
            with pytest.raises(SynchronousOnlyOperation) as refused:
                await asyncio.create_task(as_task(locked, name))
            within(time.monotonic() - started, 1, what="the loop stood still")
        text = str(refused.value)
        for part in ("would block the event loop", "sync_to_async", "async def", "markcoroutinefunction"):
            assert part in text
        assert getattr(PLAIN[kind], "__qualname__", "partial") in text

    asyncio.run(call())
    assert is_free(name)


async def as_task(function: Any, *args: Any) -> Any:
    return function(*args)


@pytest.mark.parametrize("recipe", [lock_all, semaphore])
def test_other_recipes_are_refused_too(recipe: Any, name: str) -> None:
    args = ([name],) if recipe is lock_all else (name, 1)
    locked = recipe(*args, using="memory")(gives_coroutine)

    async def call() -> None:
        with pytest.raises(SynchronousOnlyOperation, match="markcoroutinefunction"):
            locked(name)

    asyncio.run(call())


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if kind != "no awaitable at all"])
def test_plain_function_in_a_thread_gives_what_is_awaited_inside_the_lock(kind: str, name: str) -> None:
    locked = advisory_lock(name, using="memory", timeout=0)(PLAIN[kind])

    async def call() -> Any:
        return await (await sync_to_async(locked)(name))

    assert asyncio.run(call()) is True
    assert asyncio.run(locked(name)) is True
    assert is_free(name)


def test_notebook_may_ask_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    locked = advisory_lock(name, using="memory", timeout=0)(gives_coroutine)

    async def call() -> Any:
        return await locked(name)

    assert asyncio.run(call()) is True
    assert is_free(name)
