"""cancel_on_loss: the task whose lock is lost is cancelled; LockLost leaves its block, not the cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock, lock_all
from tests.contract.actors import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from django_distlock import Lock

LOOKS = 5  # steps of the event loop within which a guard has looked


@pytest.fixture(autouse=True)
def looks_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each step of the event loop."""
    monkeypatch.setattr("django_distlock.locks.task_guard.LOOK", 0)


@pytest.fixture
def lock(name: str) -> Lock:
    return advisory_lock(name, using="memory", cancel_on_loss=True)


@pytest.fixture
def lose(name: str, take_away: Callable[[str], None]) -> Callable[[], None]:
    return lambda: take_away(name)


async def forever() -> None:
    await asyncio.Event().wait()


def ends_with(error: type[BaseException], body: Callable[[], Coroutine[Any, Any, None]]) -> BaseException:
    """It raises the error, and leaves no cancellation behind in its task."""

    async def main() -> BaseException:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(error) as raised:
            await body()
        await turns(LOOKS)
        assert task.cancelling() == 0
        return raised.value

    return asyncio.run(main())


def test_r17_a_loss_ends_the_block(lock: Lock, lose: Callable[[], None]) -> None:
    """Nobody asks the lease."""

    async def hold() -> None:
        async with lock:
            lose()
            await forever()

    @lock
    async def decorated() -> None:
        lose()
        await forever()

    assert isinstance(ends_with(LockLost, hold).__cause__, asyncio.CancelledError)
    ends_with(LockLost, decorated)


def test_r17_blocks_inside_each_other_all_end(lock: Lock, lose: Callable[[], None]) -> None:
    """Re-entry: each has its own cancellation, and only the outermost lets LockLost out."""
    left: list[str] = []

    async def hold() -> None:
        async with lock:
            try:
                async with lock:
                    lose()
                    await forever()
            except BaseException as error:
                left.append(type(error).__name__)
                raise

    ends_with(LockLost, hold)
    assert left == ["CancelledError"]


def test_r17_a_body_that_swallows_the_cancellation_is_told_at_the_end(lock: Lock, lose: Callable[[], None]) -> None:
    async def swallow() -> None:
        async with lock:
            lose()
            with contextlib.suppress(asyncio.CancelledError):
                await forever()

    ends_with(LockLost, swallow)


def test_r17_an_error_of_the_body_goes_first(lock: Lock, lose: Callable[[], None]) -> None:
    async def fail() -> None:
        async with lock:
            lose()
            try:
                await forever()
            finally:
                raise ZeroDivisionError

    ends_with(ZeroDivisionError, fail)


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


def test_a_loss_after_the_block_cancels_nobody(name: str, lock: Lock, lose: Callable[[], None]) -> None:
    """Its lock is still held then, by the block around it, which did not ask for it."""

    async def hold() -> None:
        async with advisory_lock(name, using="memory"):
            async with lock:
                pass
            lose()
            await turns(LOOKS)
            raise ZeroDivisionError

    ends_with(ZeroDivisionError, hold)


@pytest.mark.parametrize("lost", [False, True])
def test_a_cancellation_by_others_goes_on(lock: Lock, lose: Callable[[], None], lost: bool) -> None:
    """Before the loss, and together with it."""

    async def hold(inside: asyncio.Event) -> None:
        async with lock:
            inside.set()
            await forever()

    async def main() -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(hold(inside))
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

    async def hold() -> None:
        async with lock:
            monkeypatch.setattr(backend, "in_doubt", lambda grant: True)
            await forever()

    assert "in doubt" in str(ends_with(LockLost, hold))
    monkeypatch.undo()


def test_threads_are_refused(lock: Lock) -> None:
    for attempt in (lock.acquire, lock.try_acquire, lock.__enter__, lambda: lock(lambda: None)):
        with pytest.raises(TypeError, match="only a task can be cancelled"):
            attempt()
    with pytest.raises(ValueError, match="lock_all"):
        lock_all([lock])
    with pytest.raises(TypeError, match="cancel_on_loss must be a bool"):
        advisory_lock("name", cancel_on_loss=1)  # type: ignore[arg-type]
