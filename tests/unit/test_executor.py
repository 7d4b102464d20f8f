"""R7: the private thread of an alias never runs a statement later, for which there was no thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from django_distlock.concurrency.executor import Threads


def test_r7_without_a_thread_the_statement_is_not_run_later(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    threads = Threads("test")

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="start new thread"):
                await threads.short(ran.append, "first")
        await threads.short(ran.append, "second")
        threads.stop_if_idle()
        await threads.short(ran.append, "third")

    asyncio.run(main())
    threads.stop()
    assert ran == ["second", "third"]
