"""R2 across asgiref: code that is directly awaited through sync_to_async, or called through async_to_sync, belongs to
the context that waits for it; everything else is a stranger, also on the same thread."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async

from django_distlock import advisory_lock
from django_distlock.manager.owner import current
from tests.contract.actors import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

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


@thread_sensitive
def test_r2_a_task_and_the_sync_code_it_awaits(lock: Any, sensitive: bool) -> None:
    async def main() -> None:
        async with lock:
            assert await sync_to_async(reenters, thread_sensitive=sensitive)(lock)
            # and what was taken there is held here
            lease = await sync_to_async(lock.acquire, thread_sensitive=sensitive)(timeout=0)
        assert await areenters(lock)
        assert not await asyncio.create_task(areenters(lock))
        await lease.arelease()
        assert await asyncio.create_task(areenters(lock))

    asyncio.run(main())


@thread_sensitive
def test_r2_nested_both_ways_from_a_task(lock: Any, sensitive: bool) -> None:
    async def innermost() -> tuple[bool, bool, bool]:
        return (
            await areenters(lock),
            await sync_to_async(reenters, thread_sensitive=sensitive)(lock),
            await asyncio.create_task(areenters(lock)),
        )

    def middle() -> tuple[bool, bool, bool]:
        assert reenters(lock)
        return async_to_sync(innermost)()

    async def main() -> None:
        async with lock:
            assert await sync_to_async(middle, thread_sensitive=sensitive)() == (True, True, False)
        lease = await sync_to_async(lambda: async_to_sync(lock.aacquire)(timeout=0), thread_sensitive=sensitive)()
        assert await areenters(lock)
        await lease.arelease()

    asyncio.run(main())


@thread_sensitive
def test_r2_nested_both_ways_from_a_thread(lock: Any, sensitive: bool) -> None:
    def innermost() -> bool:
        return reenters(lock) and async_to_sync(areenters)(lock)

    async def middle() -> tuple[bool, bool, bool]:
        return (
            await areenters(lock),
            await sync_to_async(innermost, thread_sensitive=sensitive)(),
            await asyncio.create_task(areenters(lock)),
        )

    with lock:
        assert async_to_sync(middle)() == (True, True, False)


@thread_sensitive
def test_r2_tasks_that_share_a_worker_thread_are_strangers(lock: Any, sensitive: bool) -> None:
    threads: set[int] = set()

    def take() -> Any:
        threads.add(threading.get_ident())
        return lock.try_acquire()

    async def task() -> Any:
        return await sync_to_async(take, thread_sensitive=sensitive)()

    async def main() -> list[Any]:
        if not sensitive:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return [await asyncio.create_task(task()) for _ in range(4)]

    leases = [lease for lease in asyncio.run(main()) if lease is not None]
    assert len(threads) == 1
    assert len(leases) == 1
    leases[0].release()


@thread_sensitive
def test_r2_concurrent_calls_of_one_function_are_told_apart(using: str, name: str, sensitive: bool) -> None:
    lock = advisory_lock(name, using=using)
    call = sync_to_async(lambda: lock.try_acquire(), thread_sensitive=sensitive)

    async def main() -> tuple[list[Any], list[Any]]:
        outside = await asyncio.gather(*[call() for _ in range(4)])
        async with advisory_lock(name + "2", using=using) as held:
            inside = await asyncio.gather(
                *[sync_to_async(advisory_lock(held.name, using=using).try_acquire)() for _ in range(4)]
            )
        return outside, inside

    outside, inside = asyncio.run(main())
    leases = [lease for lease in outside if lease is not None]
    assert len(leases) == 1
    assert inside == [None] * 4
    leases[0].release()


def test_r2_a_thread_of_asyncio_is_a_stranger(lock: Any) -> None:
    """asyncio.to_thread copies the context variables; it is not asgiref, and its thread is a context of its own."""

    async def main() -> None:
        async with lock:
            assert not await asyncio.to_thread(reenters, lock)
            loop = asyncio.get_running_loop()
            other = await asyncio.to_thread(asyncio.run_coroutine_threadsafe, areenters(lock), loop)
            assert not await asyncio.wrap_future(other)

    asyncio.run(main())


def test_r2_inside_a_thread_sensitive_context(lock: Any) -> None:
    """As under ASGI: each request has a worker thread of its own."""

    async def request() -> bool:
        async with ThreadSensitiveContext():
            return await sync_to_async(reenters)(lock)

    async def main() -> None:
        async with lock:
            assert await request()
            assert not await asyncio.create_task(request())

    asyncio.run(main())


def test_r2_across_a_context_manager_and_a_generator(lock: Any) -> None:
    """The body of an asynchronous generator is awaited by whoever iterates over it."""

    @asynccontextmanager
    async def manager() -> AsyncIterator[bool]:
        yield await sync_to_async(reenters)(lock)

    async def generator() -> AsyncIterator[bool]:
        yield await sync_to_async(reenters)(lock)
        yield await sync_to_async(reenters)(lock)

    async def main() -> list[bool]:
        async with lock, manager() as inside:
            return [inside, *[seen async for seen in generator()]]

    assert asyncio.run(main()) == [True, True, True]


def test_r2_across_futures_and_awaitables(lock: Any) -> None:
    class Awaitable:
        def __await__(self) -> Any:
            return (yield from sync_to_async(reenters)(lock).__await__())

    async def main() -> bool:
        async with lock:
            return await Awaitable()

    assert asyncio.run(main())


@pytest.mark.parametrize("bridge", [sync_to_async, async_to_sync])
def test_r2_one_call_is_one_context(bridge: Callable[..., Any]) -> None:
    """Asked twice in one call, the answer is the same; asked in the next call of the same task, too."""

    async def from_task() -> None:
        owners = [await sync_to_async(lambda: (current(), current()))() for _ in range(3)]
        assert {owner for pair in owners for owner in pair} == {asyncio.current_task()}

    async def who() -> object:
        return current()

    if bridge is sync_to_async:
        asyncio.run(from_task())
    else:
        assert {async_to_sync(who)() for _ in range(3)} == {threading.current_thread()}


def test_r2_many_tasks_with_sync_code_at_once(using: str, name: str) -> None:
    """Each is found although all of them wait for workers at the same time."""
    lock = advisory_lock(name, using=using, timeout=PATIENCE)
    served: list[bool] = []

    async def task(number: int) -> None:
        async with advisory_lock(f"{name}-{number}", using=using) as lease:
            own = advisory_lock(lease.name, using=using)
            served.append(await sync_to_async(reenters, thread_sensitive=number % 2 == 0)(own))
        async with lock:
            served.append(await sync_to_async(reenters, thread_sensitive=number % 2 == 0)(lock))

    async def main() -> None:
        await asyncio.gather(*[task(number) for number in range(20)])

    asyncio.run(main())
    assert served == [True] * 40
