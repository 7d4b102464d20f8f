"""The private thread of an alias: what a cancelled task leaves is undone, and a statement without a thread is never
run."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.concurrency.executor import Threads
from tests.conftest import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads("test")
    yield made
    made.stop()


@pytest.mark.parametrize("fails", [False, True])
def test_r7_a_cancelled_statement_runs_to_its_end_and_is_undone(threads: Threads, fails: bool) -> None:
    begun, ends = threading.Event(), threading.Event()
    undone: list[str] = []

    def statement() -> str:
        begun.set()
        assert ends.wait(PATIENCE)
        if fails:
            raise OSError
        return "result"

    async def main() -> None:
        task = asyncio.create_task(threads.short(statement, undo=undone.append))
        await asyncio.to_thread(begun.wait)
        threads.stop_if_idle()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        ends.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert undone == ([] if fails else ["result"])


def test_r7_without_a_thread_the_statement_is_not_run_later(threads: Threads, monkeypatch: Any) -> None:
    ran: list[str] = []

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="start new thread"):
                await threads.short(ran.append, "first")
        await threads.short(ran.append, "second")
        threads.stop_if_idle()
        await threads.short(ran.append, "third")

    asyncio.run(main())
    assert ran == ["second", "third"]
