"""However a decorated call ends, the lock is free afterwards, and a lock that was lost is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.manager.registry import registry
from tests.locks.elsewhere import PATIENCE, held_elsewhere, is_free

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_r14_exception_of_the_body_passes_and_the_lock_is_free(error: type[BaseException], name: str) -> None:
    lock = advisory_lock(name, using="memory", timeout=0)

    @lock
    def fails() -> None:
        raise error("the body's own")

    with pytest.raises(error, match="the body's own"):
        fails()
    assert is_free(name)


@pytest.mark.parametrize("waiting", [False, True])
def test_r7_cancelled_async_function_leaves_nothing(name: str, waiting: bool) -> None:
    """Cancelled in the body, and while it waits for the lock."""

    async def cancel() -> bool:
        entered = asyncio.Event()

        @advisory_lock(name, using="memory")
        async def waits() -> None:
            entered.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(waits())
        if waiting:
            for _ in range(20):
                await asyncio.sleep(0)
        else:
            await asyncio.wait_for(entered.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return entered.is_set()

    if waiting:
        with held_elsewhere(name):
            assert not asyncio.run(cancel())
    else:
        assert asyncio.run(cancel())
    assert is_free(name)


def break_all(name: str) -> None:
    backend: Any = registry.entry("memory").backend
    for info in backend.inspect():
        if info.name == name:
            assert backend.break_lock(info)


@pytest.mark.parametrize("inside_except", [False, True])
def test_r17_lost_lock_is_told_instead_of_the_result(name: str, inside_except: bool) -> None:
    """Also when the call comes from an except block: that exception is none of the lock's."""

    @advisory_lock(name, using="memory", timeout=0)
    def works() -> str:
        break_all(name)
        return "done"

    @advisory_lock(name, using="memory", timeout=0)
    async def aworks() -> str:
        break_all(name)
        return "done"

    def call(work: Callable[[], Any]) -> Any:
        if not inside_except:
            return work()
        try:
            raise KeyError("earlier")
        except KeyError:
            return work()

    with pytest.raises(LockLost):
        call(works)
    with pytest.raises(LockLost):
        call(lambda: asyncio.run(aworks()))


def test_r16_lost_lock_does_not_mask_the_error_of_the_body(name: str) -> None:
    @advisory_lock(name, using="memory", timeout=0)
    def fails() -> None:
        break_all(name)
        raise ValueError("the body's own")

    with pytest.raises(ValueError, match="the body's own"):
        fails()
