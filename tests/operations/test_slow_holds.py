"""The warning about a lock that is held for long says where its holder is, on one line."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async

from django_distlock import advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.keepalive import keepalive

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("databases")
MEMORY = "django_distlock.backends.memory.MemoryBackend"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, settings: Any) -> Callable[[], str]:
    """What is said of the locks that are held now, as if ten seconds were over."""
    settings.DISTLOCK = {"slow": {"BACKEND": MEMORY, "WARN_HOLD_SECONDS": 10}}

    def look() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "django_distlock.locks"):
            keepalive.tick(monotonic() + 10.1)
        (record,) = caplog.records  # of one: to wait is not to hold
        return record.getMessage()

    return look


def test_a_thread_beside_one_that_waits(warned: Callable[[], str], name: str) -> None:
    gate, entered = threading.Event(), threading.Event()

    def stuck_in_this_function() -> None:
        entered.set()
        gate.wait(60)

    def hold() -> None:
        with advisory_lock(name, using="slow", timeout=60):
            stuck_in_this_function()

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    said = warned()
    gate.set()
    for thread in threads:
        thread.join()
    assert "\n" not in said
    assert re.search(r" for 1\d\.\d s\. Its holder is at .*test_slow_holds\.py:\d+ in stuck_in_this_function < ", said)
    assert said.index("in stuck_in_this_function") < said.index("in hold")
    assert f"{name!r} of alias 'slow'" in said


def test_a_task(warned: Callable[[], str], name: str) -> None:
    """Which awaits code in a thread."""

    async def hold() -> str:
        async with advisory_lock(name, using="slow"):
            return await sync_to_async(warned)()

    assert " in hold" in asyncio.run(hold())
