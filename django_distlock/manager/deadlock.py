"""Deadlocks between callers of one process: a search for a cycle of waiters and holders (R8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django_distlock.keys import LockKey


class HoldOrWait(Protocol):
    """A caller's hold of a lock, or its wait for one."""

    @property
    def owner(self) -> object: ...
    @property
    def key(self) -> LockKey: ...


W = TypeVar("W", bound=HoldOrWait)


class Queue(Protocol, Generic[W]):
    """The holders and waiters of one lock."""

    def blockers(self, waiter: W) -> Iterable[W]:
        """The holders and earlier waiters that ``waiter`` waits for."""


def would_deadlock(new: W, queue: Queue[W], waiting: Mapping[object, W], queues: Mapping[bytes, Queue[W]]) -> bool:
    """Would ``new``, at the end of ``queue``, wait for itself?

    Walks from each waiter to its blockers, and from a blocker to the lock that it waits for itself. ``waiting`` has the
    wait of each owner, ``queues`` the queue of each key.
    """
    seen: set[int] = set()
    pending = [(queue, new)]
    while pending:
        here, waiter = pending.pop()
        for blocker in here.blockers(waiter):
            if blocker.owner is new.owner:
                return True
            beyond = waiting.get(blocker.owner)
            if beyond is None or id(beyond) in seen:
                continue
            seen.add(id(beyond))
            there = queues[beyond.key.digest]
            if there is not here:  # in one queue, what those ahead wait for this waiter waits for as well
                pending.append((there, beyond))
    return False
