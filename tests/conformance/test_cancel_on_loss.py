"""cancel_on_loss: the task whose lock is lost is cancelled; LockLost leaves its block, not the cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import LockLost, advisory_lock, lock_all
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.registry import registry
from django_distlock.manager.release import lose
from tests.matrix import MATRIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock import Lock

PATIENCE = 10.0
ENGINES = ("memory", "leasetable", "postgres")
on_engines = pytest.mark.parametrize(
    "entry", [entry for entry in MATRIX if entry.using in ENGINES], ids=lambda entry: entry.using, indirect=True
)


def guarded(name: str, using: str) -> Lock:
    return advisory_lock(name, using=using, cancel_on_loss=True)


@on_engines
def test_r17_a_loss_ends_the_block(using: str, name: str, take_away: Callable[[str], None]) -> None:
    """The operator takes it away; nobody asks the lease."""

    inside = asyncio.Event()

    def operate() -> None:
        take_away(name)
        connections.close_all()  # those of this thread

    async def operator() -> None:
        await inside.wait()
        await asyncio.to_thread(operate)

    async def hold() -> None:
        async with guarded(name, using) as lease, asyncio.timeout(PATIENCE):
            if lease.valid_until is not None:
                await lease.aextend(0.9)  # the next renewal notices
            inside.set()
            await asyncio.Event().wait()

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        taking = asyncio.create_task(operator())
        with pytest.raises(LockLost) as lost:
            await hold()
        await taking
        assert isinstance(lost.value.__cause__, asyncio.CancelledError)
        return task.cancelling()

    assert asyncio.run(main()) == 0


@on_engines
def test_a_decorated_coroutine_ends_too(using: str, name: str) -> None:
    inside = asyncio.Event()

    @advisory_lock(name, using=using, cancel_on_loss=True)
    async def work() -> None:
        inside.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(work())
        await inside.wait()
        lose_all(name)
        with pytest.raises(LockLost):
            await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())


def lose_all(name: str) -> None:
    for hold in lock_table.held():
        if hold.key.name == name:
            hold.backend.release(hold.grant)  # type: ignore[arg-type]
            lose(hold, "stolen")


def test_without_a_loss_nothing_is_cancelled(name: str) -> None:
    async def main() -> str:
        async with guarded(name, "memory"):
            await asyncio.sleep(0.25)  # a look or two
        lease = await guarded(name, "memory").aacquire()
        async with lease:
            await asyncio.sleep(0)
        return "done"

    assert asyncio.run(main()) == "done"


def test_a_block_that_gives_its_lock_up_is_not_cancelled(name: str) -> None:
    async def main() -> str:
        async with guarded(name, "memory") as lease:
            await lease.arelease()
            await asyncio.sleep(0.25)  # a look or two
        return "done"

    assert asyncio.run(main()) == "done"


def test_a_loss_after_the_block_cancels_nobody(name: str) -> None:
    """Its lock is still held then, by the block around it, which did not ask for it."""

    async def main() -> None:
        async with advisory_lock(name, using="memory"):
            async with guarded(name, "memory"):
                pass
            lose_all(name)
            await asyncio.sleep(0.2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_a_cancellation_by_others_goes_on(name: str) -> None:
    """Before the loss, and together with it."""

    async def hold(inside: asyncio.Event) -> None:
        async with guarded(name, "memory"):
            inside.set()
            await asyncio.Event().wait()

    async def main(lost: bool) -> None:
        inside = asyncio.Event()
        task = asyncio.create_task(hold(inside))
        await inside.wait()
        if lost:
            lose_all(name)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main(lost=False))
    asyncio.run(main(lost=True))


def test_blocks_inside_each_other_all_end(name: str) -> None:
    """Re-entry: each has its own cancellation, and only the outermost lets LockLost out."""
    left: list[str] = []

    async def main() -> None:
        async with guarded(name, "memory"):
            try:
                async with guarded(name, "memory"):
                    lose_all(name)
                    await asyncio.Event().wait()
            except BaseException as error:
                left.append(type(error).__name__)
                raise

    with pytest.raises(LockLost):
        asyncio.run(main())
    assert left == ["CancelledError"]


def test_a_body_that_swallows_the_cancellation_is_told_at_the_end(name: str) -> None:
    async def swallow() -> None:
        async with guarded(name, "memory"):
            lose_all(name)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(LockLost):
            await swallow()
        await asyncio.sleep(0)
        return task.cancelling()

    assert asyncio.run(main()) == 0


def test_an_error_of_the_body_goes_first(name: str) -> None:
    async def main() -> None:
        async with guarded(name, "memory"):
            lose_all(name)
            try:
                await asyncio.Event().wait()
            finally:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_doubt_ends_the_block_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine answers when it has lost touch with its server: there is no such engine without a network."""
    backend: Any = registry.entry("memory").backend

    async def main() -> None:
        async with guarded(name, "memory"):
            monkeypatch.setattr(backend, "in_doubt", lambda grant: True)
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)

    with pytest.raises(LockLost, match="in doubt"):
        asyncio.run(main())
    monkeypatch.undo()
    with advisory_lock(name, using="memory", timeout=0):
        pass


def test_threads_are_refused(name: str) -> None:
    lock = guarded(name, "memory")
    for attempt in (lock.acquire, lock.try_acquire, lock.__enter__):
        with pytest.raises(TypeError, match="only a task can be cancelled"):
            attempt()
    with pytest.raises(TypeError, match="only a task can be cancelled"):

        @lock
        def work() -> None: ...

    with pytest.raises(ValueError, match="lock_all"):
        lock_all([lock])
    with pytest.raises(TypeError, match="cancel_on_loss must be a bool"):
        advisory_lock(name, cancel_on_loss=1)  # type: ignore[arg-type]
