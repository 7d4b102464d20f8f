"""R11 where async code runs inside the transaction of the thread that waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from tests.transactions import rows
from tests.transactions.test_deferral import in_thread  # what asgiref leaves on a thread is left on that one

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.transactions.world import World


async def locked_write(world: World) -> None:
    async with world.lock() as lease:
        await sync_to_async(rows.write)(world.alias, world.name)
        assert lease.held


def inside(world: World, call: Callable[..., Any]) -> None:
    with transaction.atomic(world.alias):
        call(locked_write)(world)
        assert world.written() == 1, "written on another connection"
        world.still_inside()
    world.ended()


@pytest.mark.parametrize("where", ["thread", "task"])
def test_r11_async_lock_inside_the_transaction_of_a_waiting_thread(world: World, where: str) -> None:
    """``async_to_sync`` inside ``atomic()``: its ORM calls run in that transaction. "task": a sync view under ASGI that
    opens a transaction and calls async code."""

    async def view() -> None:
        await sync_to_async(inside)(world, async_to_sync)
        await sync_to_async(connections.close_all)()

    in_thread((lambda: inside(world, async_to_sync)) if where == "thread" else lambda: asyncio.run(view()))
    world.check_rival_came_in(1)
    world.check_returned_once()


def test_r11_async_lock_before_does_not_hide_a_later_transaction(postgres: World) -> None:
    """Django keeps other connections for async code of the same thread; what was looked up there holds only there."""
    world = postgres

    async def other() -> None:
        async with world.lock("-other"):
            pass

    def work() -> None:
        world.written()  # connected before, so that nothing is looked up anew later
        asyncio.run(other())
        with transaction.atomic(world.alias):
            with world.lock():
                world.write()
            world.still_inside()
        world.ended()

    in_thread(work)
    world.check_rival_came_in(1)
    world.check_returned_once()


@pytest.mark.parametrize("thread_sensitive", [True, False, None])
def test_r11_kept_lock_is_entered_again_from_async_code(postgres: World, thread_sensitive: bool | None) -> None:
    """The same context asks again, by another thread that cannot use the connection of the first (None: by a task)."""
    world = postgres

    def again() -> None:
        try:
            with world.lock().acquire(timeout=0) as lease:
                assert lease.held
        finally:
            if not thread_sensitive:
                connections.close_all()

    async def asynchronous() -> None:
        if thread_sensitive is None:
            async with await world.lock().aacquire(timeout=0) as lease:
                assert lease.held
        else:
            await sync_to_async(again, thread_sensitive=thread_sensitive)()

    def work() -> None:
        with transaction.atomic(world.alias):
            with world.lock():
                world.write()
            async_to_sync(asynchronous)()
            world.still_inside()
        world.ended()

    in_thread(work)
    world.check_rival_came_in(1)
    world.check_returned_once()


@pytest.mark.parametrize("face", ["sync", "async"])
def test_r11_transaction_on_the_event_loop(postgres: World, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: DJANGO_ALLOW_ASYNC_UNSAFE lets the ORM run on the thread of the loop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    world = postgres

    async def cell() -> None:
        try:
            with transaction.atomic(world.alias):
                if face == "sync":
                    with world.lock():
                        world.write()
                else:
                    async with world.lock():
                        world.write()
                world.still_inside()
            world.ended()
        finally:
            connections.close_all()

    in_thread(lambda: asyncio.run(cell()))
    world.check_rival_came_in(1)
    world.check_returned_once()
