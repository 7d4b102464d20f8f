"""R11 where async code runs inside the transaction of the thread that waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from tests.transactions import rows
from tests.transactions.world import in_thread

if TYPE_CHECKING:
    from tests.transactions.world import World


async def locked_write(world: World) -> None:
    async with world.lock() as lease:
        await sync_to_async(rows.write)(world.alias, world.name)
        assert lease.held


def inside(world: World) -> None:
    with world.transaction():
        async_to_sync(locked_write)(world)
        assert world.written() == 1, "written on another connection"


@pytest.mark.parametrize("where", ["thread", "task"])
def test_r11_async_lock_inside_the_transaction_of_a_waiting_thread(world: World, where: str) -> None:
    """``async_to_sync`` inside ``atomic()``: its ORM calls run in that transaction. "task": a sync view under ASGI that
    opens a transaction and calls async code."""

    async def view() -> None:
        await sync_to_async(inside)(world)
        await sync_to_async(connections.close_all)()

    in_thread((lambda: inside(world)) if where == "thread" else lambda: asyncio.run(view()))


def test_r11_async_lock_before_does_not_hide_a_later_transaction(postgres: World) -> None:
    """Django keeps other connections for async code of the same thread; what was looked up there holds only there."""

    async def other() -> None:
        async with postgres.lock("-other"):
            pass

    def work() -> None:
        postgres.written()  # connected before, so that nothing is looked up anew later
        asyncio.run(other())
        with postgres.transaction(), postgres.lock():
            postgres.write()

    in_thread(work)


@pytest.mark.parametrize("by", ["same thread", "other thread", "task"])
def test_r11_kept_lock_is_entered_again_from_async_code(postgres: World, by: str) -> None:
    """The same context asks again, also by another thread that cannot use the connection of the first."""
    world = postgres

    def again() -> None:
        try:
            with world.lock().acquire(timeout=0) as lease:
                assert lease.held
        finally:
            if by == "other thread":
                connections.close_all()

    async def asynchronous() -> None:
        if by == "task":
            async with await world.lock().aacquire(timeout=0) as lease:
                assert lease.held
        else:
            await sync_to_async(again, thread_sensitive=by == "same thread")()

    def work() -> None:
        with world.transaction():
            with world.lock():
                world.write()
            async_to_sync(asynchronous)()

    in_thread(work)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_r11_transaction_on_the_event_loop(postgres: World, face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: DJANGO_ALLOW_ASYNC_UNSAFE lets the ORM run on the thread of the loop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    world = postgres

    async def cell() -> None:
        try:
            with world.transaction():
                if face == "sync":
                    with world.lock():
                        world.write()
                else:
                    async with world.lock():
                        world.write()
        finally:
            connections.close_all()

    in_thread(lambda: asyncio.run(cell()))
