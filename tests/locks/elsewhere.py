"""Somebody else in this process, for locks of the memory backend: another thread that holds a lock, or asks for it."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from django_distlock import advisory_lock
from tests.conftest import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` in a thread of its own and return what it returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args, **kwargs).result(PATIENCE)


def recipe(name: Any) -> Any:
    return advisory_lock(name, using="memory") if isinstance(name, str) else name


@contextlib.contextmanager
def held_elsewhere(*names: Any) -> Iterator[None]:
    """Another thread holds the locks (names, or recipes) during the block."""
    with ThreadPoolExecutor(1) as pool:
        leases = [pool.submit(recipe(name).try_acquire).result(PATIENCE) for name in names]
        assert all(leases)
        try:
            yield
        finally:
            for lease in leases:
                lease.release()


def is_free(name: Any) -> bool:
    """Does another thread get the lock at once?"""
    lease = in_thread(recipe(name).try_acquire)
    if lease is not None:
        lease.release()
    return lease is not None
