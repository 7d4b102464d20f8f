"""R2 across asgiref: code that is directly awaited through sync_to_async, or called through async_to_sync, belongs to
the context that waits for it; everything else is a stranger, also on the same thread."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, async_to_sync, sync_to_async

from django_distlock import advisory_lock
from tests.contract.actors import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

thread_sensitive = pytest.mark.parametrize("sensitive", [True, False], ids=["sensitive", "pooled"])


def reenters(lock: Any) -> bool:
    """Try, and undo it."""
    lease = lock.try_acquire()
    if lease is None:
        return False
    lease.release()
    return True


async def areenters(lock: Any) -> bool:
    lease = await lock.atry_acquire()
    if lease is None:
        return False
    await lease.arelease()
    return True


def only(leases: list[Any]) -> Any:
    """Of several attempts one has got in."""
    (lease,) = [lease for lease in leases if lease is not None]
    return lease


@thread_sensitive
def test_r2_a_task_and_the_sync_code_it_awaits(lock: Any, sensitive: bool) -> None:
    """What was taken there is held here."""

    async def main() -> None:
        async with lock:
            assert await sync_to_async(reenters, thread_sensitive=sensitive)(lock)
            lease = await sync_to_async(lock.acquire, thread_sensitive=sensitive)(timeout=0)
        assert await areenters(lock)
        assert not await asyncio.create_task(areenters(lock))
        await lease.arelease()
        assert await asyncio.create_task(areenters(lock))

    asyncio.run(main())


@thread_sensitive
def test_r2_nested_both_ways(lock: Any, sensitive: bool) -> None:
    """From a task, and from a thread."""

    def in_thread() -> bool:
        return reenters(lock) and async_to_sync(areenters)(lock)

    async def in_task() -> list[bool]:
        return [
            await areenters(lock),
            await sync_to_async(in_thread, thread_sensitive=sensitive)(),
            await asyncio.create_task(areenters(lock)),
        ]

    def from_thread() -> list[bool]:
        return [reenters(lock), *async_to_sync(in_task)()]

    async def from_task() -> None:
        async with lock:
            assert await sync_to_async(from_thread, thread_sensitive=sensitive)() == [True, True, True, False]
        lease = await sync_to_async(lambda: async_to_sync(lock.aacquire)(timeout=0), thread_sensitive=sensitive)()
        assert await areenters(lock)
        await lease.arelease()

    asyncio.run(from_task())
    with lock:
        assert from_thread() == [True, True, True, False]


@thread_sensitive
def test_r2_tasks_that_share_a_worker_thread_are_strangers(lock: Any, sensitive: bool) -> None:
    threads: set[int] = set()

    def take() -> Any:
        threads.add(threading.get_ident())
        return lock.try_acquire()

    async def main() -> list[Any]:
        if not sensitive:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        call = sync_to_async(take, thread_sensitive=sensitive)
        return [await asyncio.create_task(call()) for _ in range(4)]

    only(asyncio.run(main())).release()
    assert len(threads) == 1


@thread_sensitive
def test_r2_concurrent_calls_of_one_function_are_told_apart(lock: Any, using: str, sensitive: bool) -> None:
    call = sync_to_async(lambda: lock.try_acquire(), thread_sensitive=sensitive)

    async def main() -> tuple[list[Any], list[Any]]:
        outside = await asyncio.gather(*[call() for _ in range(4)])
        async with advisory_lock(f"{lock.name}2", using=using) as held:
            own = advisory_lock(held.name, using=using)
            inside = await asyncio.gather(*[sync_to_async(own.try_acquire)() for _ in range(4)])
        return outside, inside

    outside, inside = asyncio.run(main())
    only(outside).release()
    assert inside == [None] * 4


def test_r2_a_thread_of_asyncio_is_a_stranger(lock: Any) -> None:
    """asyncio.to_thread copies the context variables; it is not asgiref, and its thread is a context of its own."""

    async def main() -> None:
        async with lock:
            assert not await asyncio.to_thread(reenters, lock)
            loop = asyncio.get_running_loop()
            other = await asyncio.to_thread(asyncio.run_coroutine_threadsafe, areenters(lock), loop)
            assert not await asyncio.wrap_future(other)

    asyncio.run(main())


def test_r2_across_everything_that_is_directly_awaited(lock: Any) -> None:
    """The body of an asynchronous generator is awaited by whoever iterates over it. Under ASGI each request has a
    worker thread of its own."""

    class Awaitable:
        def __await__(self) -> Any:
            return (yield from sync_to_async(reenters)(lock).__await__())

    @asynccontextmanager
    async def manager() -> AsyncIterator[bool]:
        yield await sync_to_async(reenters)(lock)

    async def generator() -> AsyncIterator[bool]:
        for _ in range(2):
            yield await sync_to_async(reenters)(lock)

    async def request() -> bool:
        async with ThreadSensitiveContext():
            return await sync_to_async(reenters)(lock)

    async def main() -> None:
        async with lock, manager() as inside:
            found = [inside, *[seen async for seen in generator()], await Awaitable(), await request()]
            assert found == [True] * 5
            assert not await asyncio.create_task(request())

    asyncio.run(main())


def test_r2_many_tasks_with_sync_code_at_once(using: str, name: str) -> None:
    """Each is found although all of them wait for workers at the same time."""
    lock = advisory_lock(name, using=using, timeout=PATIENCE)
    served: list[bool] = []

    async def task(number: int) -> None:
        for each in (advisory_lock(f"{name}-{number}", using=using), lock):
            async with each:
                served.append(await sync_to_async(reenters, thread_sensitive=number % 2 == 0)(each))

    async def main() -> None:
        await asyncio.gather(*[task(number) for number in range(20)])

    asyncio.run(main())
    assert served == [True] * 40


def test_r2_an_asgiref_that_no_longer_says_whose_thread_it_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two tasks would count as their thread, and enter each other's locks in silence."""
    monkeypatch.setattr(SyncToAsync, "thread_handler", lambda self, loop, *args: None)
    spec = find_spec("django_distlock.manager.owner")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=r"not supported: .* has no .*main_event_loop_pid"):
        spec.loader.exec_module(module_from_spec(spec))
