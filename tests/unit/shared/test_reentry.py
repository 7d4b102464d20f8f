"""R2: the same context may take what it holds; this is counted, and anybody else is a stranger. Code that is directly
awaited through sync_to_async, or called through async_to_sync, belongs to the context that waits for it; everything
else is a stranger, also on the same thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, async_to_sync, sync_to_async

from django_distlock import DeadlockDetected, LockLost, advisory_lock
from tests.conftest import PATIENCE
from tests.contract.watching import somebody_waits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.contract.actors import Actor


def test_r2_leases_share_one_holding_and_releasing_one_twice_counts_once(
    me: Actor, other: Actor, lock: Any, take_away: Callable[[str], None]
) -> None:
    """Who takes the lock from one of them takes it from all."""
    outer, inner = me.acquire(lock), me.acquire(lock)
    for _ in range(3):
        me.release(inner)
    assert (inner.held, outer.held) == (False, True)
    assert other.try_acquire(lock) is None
    leases = [outer, me.acquire(lock)]
    take_away(lock.name)
    for lease in leases:
        with pytest.raises(LockLost):
            me.extend(lease, 30)
        with pytest.raises(LockLost):
            me.release(lease)
        me.release(lease)  # it was told once


def test_r2_exclusive_while_shared_is_a_deadlock(me: Actor, using: str, name: str) -> None:
    reader = me.acquire(advisory_lock(name, using=using, shared=True))
    for attempt in (me.acquire, me.try_acquire):
        with pytest.raises(DeadlockDetected, match="held shared by this context"):
            attempt(advisory_lock(name, using=using))
    assert reader.held
    me.release(reader)


@pytest.mark.parametrize("shared", [False, True])
def test_r2_a_waiter_does_not_keep_the_holder_from_reentry(
    me: Actor, other: Actor, using: str, name: str, shared: bool
) -> None:
    """R2 goes before the queue: else a reader would wait for the writer, who waits for it."""
    lock = advisory_lock(name, using=using, shared=shared)
    outer = me.acquire(lock)
    waiting = other.start(advisory_lock(name, using=using), "acquire", timeout=PATIENCE)
    somebody_waits(name)
    me.release(me.acquire(lock, timeout=0))
    me.release(outer)
    other.release(waiting.result(PATIENCE))


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
@pytest.mark.parametrize("at_once", [False, True])
def test_r2_tasks_that_share_a_worker_thread_are_strangers(lock: Any, sensitive: bool, at_once: bool) -> None:
    """Of several attempts one gets in; none, if the task that has begun them holds the lock."""
    call = sync_to_async(lambda: lock.try_acquire(), thread_sensitive=sensitive)

    async def attempts() -> list[Any]:
        if at_once:
            return await asyncio.gather(*[call() for _ in range(4)])
        return [await asyncio.create_task(call()) for _ in range(4)]

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        (lease,) = [lease for lease in await attempts() if lease is not None]
        await lease.arelease()
        async with lock:
            assert await attempts() == [None] * 4

    asyncio.run(main())


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


def test_r2_the_frames_of_other_threads_are_not_read(lock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thread that is leaving a function Python 3.11 may give what is no frame any more."""
    me, frames = threading.get_ident(), sys._current_frames
    monkeypatch.setattr(sys, "_current_frames", lambda: {0: object(), me: frames()[me]})
    with lock:
        assert async_to_sync(areenters)(lock)


def test_r2_an_asgiref_that_no_longer_says_whose_thread_it_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two tasks would count as their thread, and enter each other's locks in silence."""
    monkeypatch.setattr(SyncToAsync, "thread_handler", lambda self, loop, *args: None)
    spec = find_spec("django_distlock.manager.owner")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=r"not supported: .* has no .*main_event_loop_pid"):
        spec.loader.exec_module(module_from_spec(spec))
