"""A holder that is stopped in mid-flight until somebody else has its lock."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psutil

from django_distlock import DistlockError
from tests.conftest import eventually

if TYPE_CHECKING:
    from django_distlock import Lease, Lock
    from tests.support.processes import Child


def take_over(child: Child, lock: Lock, patience: float = 2) -> Lease:
    """Stop the holder, wait for the end of its lease, and be the next holder; :func:`wake` lets it go on."""
    for _ in range(20):
        child.signal(signal.SIGSTOP)
        eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, "it runs on")
        try:
            return lock.acquire(timeout=patience)
        except DistlockError:
            # SQLite has one write lock for each file, and it was stopped with the lock of the leases in its hand.
            wake(child)
    raise AssertionError("no lease")


def wake(child: Child) -> None:
    child.signal(signal.SIGCONT)
