"""Somebody else in this process, for locks of the memory backend: another thread that holds a lock, or asks for it."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from django_distlock import advisory_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_distlock import Lease

PATIENCE = 10.0  # seconds


def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in a thread of its own and return what it returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **kwargs).result(PATIENCE)


@contextlib.contextmanager
def held_elsewhere(*names: str, using: str = "memory") -> Iterator[list[Lease]]:
    """Another thread holds the locks during the block."""
    with ThreadPoolExecutor(1) as pool:
        leases = [pool.submit(advisory_lock(name, using=using).acquire, 0).result(PATIENCE) for name in names]
        try:
            yield leases
        finally:
            for lease in leases:
                lease.release()


def is_free(name: str, using: str = "memory") -> bool:
    """Does another thread get the lock at once?"""

    def attempt() -> bool:
        lease = advisory_lock(name, using=using).try_acquire()
        if lease is not None:
            lease.release()
        return lease is not None

    return bool(in_thread(attempt))


class Crowd:
    """How many are inside at the same time."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.calls = 0
        self._guard = threading.Lock()

    def enter(self) -> None:
        with self._guard:
            self.calls += 1
            self.inside += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self._guard:
            self.inside -= 1
