"""Sessions in a process that may have no more threads or files."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import Any
from unittest import mock

import pytest

from django_distlock import BackendUnavailable, LockTimeout, advisory_lock
from django_distlock.manager.registry import registry
from tests.engines.actors import held_elsewhere

pytestmark = pytest.mark.usefixtures("databases")


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_r7_a_wait_without_a_thread_returns_its_session(using: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start, sessions = threading.Thread.start, registry.entry(using).backend.sessions  # type: ignore[attr-defined]

    def no_more(thread: threading.Thread) -> Any:
        if thread.name.endswith("-wait"):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def main() -> None:
        lock = advisory_lock(name, using=using)
        with pytest.raises(LockTimeout):
            await lock.aacquire(timeout=0.1)
        before = len(sessions.all())
        monkeypatch.setattr(threading.Thread, "start", no_more)
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="can't start new thread"):
                await lock.aacquire(timeout=0.1)
        assert len(sessions.all()) == before

    with held_elsewhere(using, name):
        asyncio.run(main())


@pytest.mark.parametrize("using", ["postgres", "mysql", "leasetable_postgres", "leasetable_mariadb"])
def test_r6_without_a_file_descriptor_there_is_no_session(using: str, name: str, monkeypatch: Any) -> None:
    """Its watchdog could not end a statement that hangs."""
    registry.close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", mock.Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(BackendUnavailable, match="Too many open files"):
            advisory_lock(name, using=using).acquire(timeout=1)
    advisory_lock(name, using=using).acquire(timeout=5).release()
