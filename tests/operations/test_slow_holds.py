"""The warning about a lock that is held for long says where its holder is, on one line."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async

from django_distlock import advisory_lock
from django_distlock.manager.keepalive import keepalive
from django_distlock.manager.owner import whereabouts
from django_distlock.manager.registry import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """What is said of the locks that are held now, as if their time were over."""
    backend = registry.entry("memory").backend
    backend.warn_hold_seconds = 10.0

    def look() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "django_distlock.locks"):
            keepalive._tick(time.monotonic() + 10.1)
        (record,) = caplog.records
        return record.getMessage()

    yield look
    backend.warn_hold_seconds = None


def stuck_in_this_function(gate: threading.Event, entered: threading.Event) -> None:
    entered.set()
    gate.wait(30)


def test_a_thread(warned: Callable[[], str], name: str) -> None:
    gate, entered = threading.Event(), threading.Event()

    def hold() -> None:
        with advisory_lock(name, using="memory"):
            stuck_in_this_function(gate, entered)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(10)
    said = warned()
    gate.set()
    thread.join()
    assert "\n" not in said
    assert re.search(r" for 10\.\d s\. Its holder is at .*test_slow_holds\.py:\d+ in stuck_in_this_function < ", said)
    assert said.index("in stuck_in_this_function") < said.index("in hold")
    assert f"{name!r} of alias 'memory'" in said


async def stuck_in_this_coroutine(gate: asyncio.Event) -> None:
    await gate.wait()


def test_a_task(warned: Callable[[], str], name: str) -> None:
    async def hold(gate: asyncio.Event) -> None:
        async with advisory_lock(name, using="memory"):
            await stuck_in_this_coroutine(gate)

    async def scene() -> str:
        gate = asyncio.Event()
        task = asyncio.create_task(hold(gate))
        await asyncio.sleep(0)
        said = await asyncio.to_thread(warned)
        gate.set()
        await task
        return said

    said = asyncio.run(scene())
    assert said.index("in stuck_in_this_coroutine <") < said.index("in hold")


def test_a_task_that_runs_now_and_one_that_waits_for_a_thread(name: str) -> None:
    found: list[str] = []

    async def running() -> None:
        task = asyncio.current_task()
        thread = threading.Thread(target=lambda: found.append(whereabouts(task)))
        thread.start()
        thread.join()  # stands on the event loop meanwhile

    async def waiting() -> None:
        task = asyncio.current_task()
        await sync_to_async(lambda: found.append(whereabouts(task)))()

    asyncio.run(running())
    asyncio.run(waiting())
    assert found[0].index("threading.py:") < found[0].index("in running")
    assert "in waiting" in found[1]


def test_the_wait_for_the_lock_is_no_hold(name: str, caplog: pytest.LogCaptureFixture) -> None:
    backend: Any = registry.entry("memory").backend
    backend.warn_hold_seconds = 1.0
    try:
        lease = advisory_lock(name, using="memory").acquire()
        timer = threading.Timer(1.2, lease.release)
        timer.start()
        with advisory_lock(name, using="memory"):
            caplog.clear()
            keepalive._tick(time.monotonic())
            assert not caplog.records
        timer.join()
    finally:
        backend.warn_hold_seconds = None


def test_what_cannot_be_told_is_left_out() -> None:
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    assert whereabouts(ended) == whereabouts(object()) == ""
