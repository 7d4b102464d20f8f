"""R7 and R16: a task that is stopped for ever, because its event loop was closed, holds nothing any more."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.functional import SimpleLazyObject

from django_distlock import Lock, advisory_lock, lock_all, semaphore
from django_distlock.concurrency import clock
from django_distlock.manager.keepalive import keepalive
from tests.conftest import PATIENCE, eventually
from tests.contract.actors import turns
from tests.contract.conftest import those
from tests.contract.watching import waiting_at_the_engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    Loop = asyncio.AbstractEventLoop

# What is decided in this process is the same for all engines.
in_memory = those(lambda entry: entry.using == "memory")


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = asyncio.new_event_loop()
    yield loop
    if not loop.is_closed():
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    gc.collect()  # asyncio tells of tasks that were destroyed while pending: here, and not in a later test


@pytest.fixture
def lock(using: str, name: str) -> Lock:
    return advisory_lock(name, using=using)


def stopped_inside(loop: Loop, block: Callable[[asyncio.Event], Any]) -> asyncio.Task[Any]:
    """A task of ``loop``, stopped where ``block`` has set its event."""

    async def begin() -> asyncio.Task[Any]:
        entered = asyncio.Event()
        task = asyncio.create_task(block(entered))
        waiting = asyncio.create_task(entered.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        assert entered.is_set() or task.result()
        return task

    return loop.run_until_complete(begin())


def gets(lock: Any) -> None:
    """Another context gets the lock, before a lease could end by itself."""
    lock.acquire(timeout=PATIENCE).release()


def ends_with_its_loop(loop: Loop, lock: Any, kind: str = "lock") -> None:
    """The clean-up of the task is done under the lock, and belongs to its holder, however long it takes."""
    cleaned: list[bool] = []
    asked: list[str] = []

    async def block(entered: asyncio.Event) -> None:
        user = SimpleLazyObject(lambda: asked.append("who"))
        async with lock:
            try:
                entered.set()
                await asyncio.Event().wait()
            finally:
                cleaned.append(lock.try_acquire(0) is None)
                await turns()
        del user

    task = stopped_inside(loop, block)
    loop.close()
    gets(lock)
    assert cleaned == [kind == "semaphore"], "a semaphore is busy for its own holder, too"
    assert not asked, "request.user would ask the database, in a thread that has nothing to do with the request"
    del task


def test_r7_hold_of_a_task_ends_with_its_event_loop(lock: Lock, loop: Loop) -> None:
    ends_with_its_loop(loop, lock)


def test_r7_waiter_of_a_task_leaves_the_queue_and_never_goes_on(rival: Any, using: str, name: str, loop: Loop) -> None:
    busy = rival.acquire(using, name)
    inside: list[bool] = []

    async def wait() -> None:
        async with advisory_lock(name, using=using, timeout=None):
            inside.append(True)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(wait())
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(waiting_at_the_engine, using, name):
                await turns()
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    eventually(lambda: not waiting_at_the_engine(using, name), "a dead waiter stands at the engine")
    rival.release(busy)
    rival.release(rival.acquire(using, name))
    assert not inside
    del task


@in_memory
@pytest.mark.parametrize("kind", ["set", "semaphore"])
def test_r7_several_locks_and_a_slot_end_with_it_too(using: str, name: str, loop: Loop, kind: str) -> None:
    recipe = lock_all([name, f"{name}2"], using=using) if kind == "set" else semaphore(name, 1, using=using)
    ends_with_its_loop(loop, recipe, kind)


@in_memory
def test_r24_one_recipe_in_many_tasks(using: str, name: str, loop: Loop) -> None:
    """The exit of the task that is ended is its own, not that of another task in the same ``with``."""
    pool = semaphore(name, 2, using=using)

    async def block(entered: asyncio.Event) -> None:
        async with pool:
            entered.set()
            await asyncio.Event().wait()

    other = asyncio.new_event_loop()
    task = stopped_inside(loop, block)
    second = stopped_inside(other, block)
    try:
        loop.close()
        with semaphore(name, 2, using=using, timeout=PATIENCE):
            assert semaphore(name, 2, using=using).try_acquire() is None, "the second task has lost its slot"
    finally:
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            other.run_until_complete(second)
        other.close()
    del task


@in_memory
def test_r16_event_loop_that_has_only_stopped_keeps_its_locks(lock: Lock, loop: Loop) -> None:
    """It may run again."""
    go_on = asyncio.Event()

    async def block(entered: asyncio.Event) -> bool:
        async with lock as lease:
            entered.set()
            await go_on.wait()
            return lease.held

    task = stopped_inside(loop, block)
    keepalive.tick(clock.now())  # the keepalive thread looks
    assert lock.try_acquire() is None
    go_on.set()
    assert loop.run_until_complete(task)
    gets(lock)


@in_memory
@pytest.mark.parametrize("waits", [False, True], ids=["generator_waits", "its_reader_waits"])
def test_r7_hold_of_an_async_generator_ends_with_the_event_loop_of_its_reader(
    lock: Lock, loop: Loop, waits: bool
) -> None:
    """The task's coroutine is closed; what it reads is dropped, and not run any more."""
    cleaned: list[str] = []

    async def generator(entered: asyncio.Event) -> AsyncGenerator[bool]:
        async with lock:
            entered.set()
            yield waits
            await asyncio.Event().wait()

    async def block(entered: asyncio.Event) -> None:
        try:
            async for reader_waits in generator(entered):
                if reader_waits:
                    await asyncio.Event().wait()
        finally:
            cleaned.append("reader")

    task = stopped_inside(loop, block)
    loop.close()
    gets(lock)
    eventually(lambda: cleaned, "the reader does not clean up")
    del task
