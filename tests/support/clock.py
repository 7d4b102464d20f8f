"""A clock that a test moves: leases end, are renewed, and waits time out when the test says so, and never else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django_distlock.concurrency import clock
from django_distlock.manager.keepalive import keepalive
from tests.conftest import eventually

if TYPE_CHECKING:
    import pytest


class FakeClock:
    """Stands still until :meth:`advance`. For locks in memory: no server knows of it.

    The keepalive thread does not run; what it does at a tick is done by :meth:`advance`. Tasks wait on the clock of
    their event loop, so that only threads time out by this one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        keepalive.rest()
        keepalive.wake_at(clock.now())
        eventually(lambda: keepalive.thread is None, "the keepalive thread goes on")
        self.time = 1000.0
        self._moved = threading.Condition()
        monkeypatch.setattr(clock, "now", self.now)
        monkeypatch.setattr(clock, "wait", self.wait)
        monkeypatch.setattr(keepalive, "thread", threading.current_thread())  # so that nobody starts one

    def now(self) -> float:
        return self.time

    def wait(self, gate: threading.Lock, seconds: float) -> bool:
        """In place of ``clock.wait``."""
        until = self.time + seconds
        with self._moved:
            while not (opened := gate.acquire(blocking=False)) and self.time < until:
                self._moved.wait(0.001)  # who opens the gate tells nobody
        return opened

    def advance(self, seconds: float) -> None:
        """Move the clock. When this returns, the renewals and losses that were due at the new time are done."""
        with self._moved:
            self.time += seconds
            self._moved.notify_all()
        keepalive.tick(self.time)
        eventually(lambda: not any(_renews(thread) for thread in threading.enumerate()), "a renewal is not through")


def _renews(thread: threading.Thread) -> bool:
    return thread.name.startswith("distlock-") and thread.name.endswith("-renew")
