"""R20: who cannot do anything any more needs no renewal. A finished task and a dead thread cannot."""

from __future__ import annotations

import asyncio
import threading

from django_distlock.manager import owner as context


def test_r20_a_thread_is_alive_until_it_has_ended() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    assert not context.alive(thread), "not started yet: it cannot own anything"
    thread.start()
    assert context.alive(thread)
    go.set()
    thread.join(10)
    assert not context.alive(thread)
    assert context.alive(threading.current_thread())


def test_r20_a_task_is_alive_until_it_is_done_failed_or_cancelled() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def fail() -> None:
            await go.wait()
            raise ValueError

        waits, fails, cancelled = (asyncio.create_task(work) for work in (go.wait(), fail(), go.wait()))
        await asyncio.sleep(0)
        assert all(context.alive(task) for task in (waits, fails, cancelled, asyncio.current_task()))
        cancelled.cancel()
        go.set()
        await asyncio.gather(waits, fails, cancelled, return_exceptions=True)
        assert not any(context.alive(task) for task in (waits, fails, cancelled))

    asyncio.run(main())


def test_r20_what_is_neither_is_taken_to_be_alive() -> None:
    """The context of one call of sync_to_async whose task was not found: nothing tells when it ends."""
    assert context.alive(object())


def test_r2_the_owner_of_a_thread_and_of_a_task_can_be_asked() -> None:
    assert context.alive(context.current())

    async def main() -> object:
        owner = context.current()
        assert owner is asyncio.current_task()
        assert context.alive(owner)
        return owner

    assert not context.alive(asyncio.run(main()))
