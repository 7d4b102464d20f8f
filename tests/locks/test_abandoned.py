"""R7: an awaitable that a plain function gave, whose call has taken the lock, and that is then never awaited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async

from django_distlock import advisory_lock
from tests.locks.elsewhere import is_free

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(name: str) -> Callable[[], Any]:
    """A plain function that gives an awaitable: the lock is taken by the call."""

    async def work() -> None: ...

    return advisory_lock(name, using="memory", timeout=0)(lambda: work())


def test_r7_awaitable_that_nobody_awaits_leaves_nothing_held(name: str) -> None:
    """Python says so, as for any coroutine."""
    with pytest.warns(RuntimeWarning, match=r"^coroutine '.*work' was never awaited$"):
        plain(name)()
    assert is_free(name)


def test_r7_awaitable_that_is_cancelled_before_it_begins_leaves_nothing_held(name: str) -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(await sync_to_async(plain(name))())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert is_free(name)


def test_r7_awaitable_that_is_closed_leaves_nothing_held(name: str) -> None:
    """As asyncio does with what it cannot run any more; it says nothing about a coroutine that was never awaited."""
    plain(name)().close()
    assert is_free(name)


def test_awaitable_is_as_good_as_a_coroutine(name: str) -> None:
    """For asyncio.run, tasks, gather and await; its result and its error come through."""
    lock = advisory_lock(name, using="memory", timeout=0)

    async def work(fails: bool) -> bool:
        await asyncio.sleep(0)
        if fails:
            raise KeyError("its own")
        return is_free(name)

    call = lock(lambda fails: work(fails))
    in_thread = sync_to_async(call)

    async def everything() -> None:
        assert await (await in_thread(False)) is False
        assert await asyncio.create_task(await in_thread(False)) is False
        assert await asyncio.gather(await in_thread(False)) == [False]
        with pytest.raises(KeyError, match="its own"):
            await (await in_thread(True))

    asyncio.run(everything())
    assert asyncio.run(call(False)) is False
    assert is_free(name)


def test_r7_awaitable_that_is_cancelled_in_its_body_leaves_nothing_held(name: str) -> None:
    async def cancel() -> None:
        entered = asyncio.Event()

        async def work() -> None:
            entered.set()
            await asyncio.Event().wait()

        locked = advisory_lock(name, using="memory", timeout=0)(lambda: work())
        task = asyncio.create_task(await sync_to_async(locked)())
        await asyncio.wait_for(entered.wait(), 10)
        assert not is_free(name)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert is_free(name)
