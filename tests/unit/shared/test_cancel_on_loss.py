"""cancel_on_loss: the task whose lock is lost is cancelled; LockLost leaves its block, not the cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import Lock, LockLost, advisory_lock, lock_all
from tests.contract.actors import turns

if TYPE_CHECKING:
    from collections.abc import Callable


LOOKS = 5  # steps of the event loop within which a guard has looked
Lose = Any  # what the fixture lose gives


@pytest.fixture(autouse=True)
def looks_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each step of the event loop."""
    monkeypatch.setattr("django_distlock.locks.task_guard.CHECK_EVERY", 0)


@pytest.fixture
def lock(name: str) -> Lock:
    return advisory_lock(name, using="memory", cancel_on_loss=True)


@pytest.fixture
def lose(name: str, take_away: Callable[[str], None]) -> Lose:
    return lambda: take_away(name)


async def forever() -> None:
    await asyncio.Event().wait()


async def waits(lock: Lock, lose: Lose) -> None:
    """Nobody asks the lease."""
    async with lock:
        lose()
        await forever()


async def is_decorated(lock: Lock, lose: Lose) -> None:
    @lock
    async def decorated() -> None:
        lose()
        await forever()

    await decorated()


async def enters_twice(lock: Lock, lose: Lose) -> None:
    """Each has its own cancellation, and only the outermost lets LockLost out."""
    async with lock:
        with pytest.raises(asyncio.CancelledError) as inner:
            await waits(lock, lose)
        raise inner.value


async def swallows(lock: Lock, lose: Lose) -> None:
    """The cancellation: it is told at the end."""
    async with lock:
        lose()
        with contextlib.suppress(asyncio.CancelledError):
            await forever()


async def fails(lock: Lock, lose: Lose) -> None:
    """Its own error goes first."""
    async with lock:
        lose()
        try:
            await forever()
        finally:
            raise ZeroDivisionError


async def loses_it_later(lock: Lock, lose: Lose) -> None:
    """Its lock is still held then, by the block around it, which did not ask for it: nobody is cancelled."""
    async with advisory_lock(lock.name, using="memory"):
        async with lock:
            pass
        lose()
        await turns(LOOKS)
        raise ZeroDivisionError


BODIES = [waits, is_decorated, enters_twice, swallows, fails, loses_it_later]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_r17_a_loss_ends_the_block(lock: Lock, lose: Lose, body: Any) -> None:
    """And leaves no cancellation behind in its task."""
    error = ZeroDivisionError if body in (fails, loses_it_later) else LockLost

    async def main() -> BaseException:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(error) as raised:
            await body(lock, lose)
        await turns(LOOKS)
        assert task.cancelling() == 0
        return raised.value

    raised = asyncio.run(main())
    assert body is not waits or isinstance(raised.__cause__, asyncio.CancelledError)


def test_without_a_loss_nothing_is_cancelled(lock: Lock) -> None:
    async def main() -> str:
        async with lock:
            await turns(LOOKS)
        async with await lock.aacquire():
            await turns(LOOKS)
        async with lock as lease:
            await lease.arelease()
            await turns(LOOKS)
        return "done"

    assert asyncio.run(main()) == "done"


@pytest.mark.parametrize("lost", [False, True])
def test_a_cancellation_by_others_goes_on(lock: Lock, lose: Lose, lost: bool) -> None:
    """Before the loss, and together with it."""

    async def main() -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(waits(lock, inside.set))
        await inside.wait()
        if lost:
            lose()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_doubt_ends_the_block_too(lock: Lock, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine answers when it has lost touch with its server: there is no such engine without a network."""
    doubted = lambda: monkeypatch.setattr(backend, "in_doubt", lambda grant: True)  # noqa: E731
    with pytest.raises(LockLost, match=r"was lost \(its transaction was aborted\)"):
        asyncio.run(waits(lock, doubted))
    monkeypatch.undo()


def test_threads_are_refused(lock: Lock) -> None:
    for attempt in (lock.acquire, lock.try_acquire, lock.__enter__, lambda: lock(lambda: None)):
        with pytest.raises(TypeError, match="only a task can be cancelled"):
            attempt()
    with pytest.raises(ValueError, match="lock_all"):
        lock_all([lock])
