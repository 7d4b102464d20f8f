"""R1, R11: a task may ask for its lock while the thread of its ORM calls runs another task's transaction."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connections, transaction

from django_distlock.manager.lock_table import lock_table
from tests.conftest import eventually
from tests.transactions.conftest import KINDS
from tests.transactions.world import World, check_connections_are_clean, in_thread


@pytest.mark.parametrize("waits", [False, True], ids=["free", "busy"])
@pytest.mark.parametrize("where", ["request", "below"])
@pytest.mark.parametrize("kind", KINDS)
def test_r1_open_block_keeps_its_lock_when_the_transaction_of_another_task_ends(
    make_world: Any, kind: str, where: str, waits: bool
) -> None:
    """The lock was not taken inside that transaction: it ends in one call of ``sync_to_async``, and the ORM calls of
    the block come after it. It may end during the wait for the lock, too."""
    world: World = make_world(*KINDS[kind])
    begun, go_on, released = threading.Event(), threading.Event(), asyncio.Event()

    def other() -> None:
        with transaction.atomic(world.alias):
            world.written()
            begun.set()
            assert go_on.wait(30)

    async def tasks() -> None:
        number = await asyncio.to_thread(world.rival.acquire, world.using, world.name) if waits else None
        beside = asyncio.create_task(sync_to_async(other)())
        await asyncio.to_thread(begun.wait, 30)
        asking = asyncio.create_task(block(beside))
        if waits:
            await asyncio.sleep(0.2)  # the task waits for the lock
            go_on.set()
            await beside
            await asyncio.to_thread(world.rival.release, number)
        released.set()  # the rival answers one thread at a time
        await asking
        assert not await asyncio.to_thread(world.is_out)
        await sync_to_async(check_connections_are_clean)()
        await sync_to_async(connections.close_all)()

    async def block(beside: asyncio.Task[None]) -> None:
        async with world.lock() as lease:
            go_on.set()
            await beside
            assert lease.held
            await released.wait()
            assert await asyncio.to_thread(world.is_out)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            if where == "request":
                await stack.enter_async_context(ThreadSensitiveContext())
            await tasks()

    in_thread(async_to_sync(run) if where == "below" else lambda: asyncio.run(run()))
    assert world.heard == ["acquired", "released"]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["call", "task"])
@pytest.mark.parametrize("first", ["waiter", "release"])
@pytest.mark.parametrize("kind", KINDS)
def test_r11_who_is_inside_the_transaction_that_keeps_a_lock_gets_it(
    make_world: Any, kind: str, first: str, asynchronous: bool
) -> None:
    """A task releases its lock while a transaction is open in the thread of its ORM calls, which may be its own: the
    lock is kept until the end. Code inside of it that asks for the same lock would wait for itself."""
    world: World = make_world(*KINDS[kind])
    begun, freed = asyncio.Event(), asyncio.Event()
    block = transaction.atomic(world.alias)

    def take() -> None:
        with world.lock():
            world.write()

    async def inside() -> None:
        await sync_to_async(block.__enter__)()
        begun.set()
        if first == "release":
            await freed.wait()
        if asynchronous:
            async with world.lock():
                await sync_to_async(world.write)()
        else:
            await sync_to_async(take)()
        await sync_to_async(world.still_inside)()
        await sync_to_async(block.__exit__)(None, None, None)
        await sync_to_async(world.check_rival_came_in)(1)

    async def tasks() -> None:
        async with ThreadSensitiveContext():
            async with world.lock():
                beside = asyncio.create_task(inside())
                await begun.wait()
                if first == "waiter":
                    await eventually_waits(world)
            freed.set()
            await beside
            await sync_to_async(check_connections_are_clean)()
            await sync_to_async(connections.close_all)()

    in_thread(lambda: asyncio.run(tasks()))


async def eventually_waits(world: World) -> None:
    await asyncio.to_thread(eventually, lambda: any(hold.waits for hold in lock_table.all()), "nobody waits")
