"""Who holds and who waits beside a test: other processes, and a thread in the queue of the server."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django_distlock import advisory_lock
from tests.conftest import PATIENCE, eventually
from tests.faults.server import waiters
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def hold(link: Any, using: str, *names: str) -> None:
    """Hold all names until told."""
    leases = [advisory_lock(name, using=using).acquire() for name in names]
    link.say("held")
    link.hear()
    for lease in leases:
        lease.release()
    link.say("released")


@contextmanager
def held_elsewhere(using: str, *names: str, by: Any = hold) -> Iterator[Callable[[], None]]:
    """Another process holds all names, until the end of the block or until it is told to let go."""
    with Child(by, using, *names) as child:
        assert child.hear() == "held"
        told: list[None] = []

        def let_go() -> None:
            if not told:
                told.append(None)
                child.say()
                assert child.hear() == "released"

        yield let_go
        let_go()


@contextmanager
def waiting(using: str, name: str, timeout: float | None = PATIENCE) -> Iterator[Future[Any]]:
    """A thread that waits at the server for a lock of PostgreSQL or MySQL that somebody else has: its lease, later."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(advisory_lock(name, using=using).acquire, timeout)
        eventually(lambda: waiters(using, name), "it does not wait")
        yield future


def share_and_write(link: Any, using: str, name: str) -> None:
    """Wait for the exclusive lock and say when it came, on the clock that all processes share."""
    link.say("asking")
    with advisory_lock(name, using=using, timeout=30):
        link.say(time.monotonic())
        link.hear()
