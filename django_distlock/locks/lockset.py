"""``lock_all``, several locks at once, and ``semaphore``, several holders at once.

A failed attempt at several locks releases those that it has acquired as any other release does: inside a transaction
when that ends (R11).
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Self

from django_distlock import signals
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import Deadline, backoff, pause
from django_distlock.concurrency.flow import clean_up
from django_distlock.exceptions import BackendUnavailable, DistlockError
from django_distlock.keys import validate_name
from django_distlock.manager.acquire import LockRequest, acquire, announce
from django_distlock.manager.lock_table import State, lock_table
from django_distlock.manager.owner import current
from django_distlock.manager.registry import registry
from django_distlock.validation import UNSET, Timeout, count, optional_seconds

from .lease import Lease, LeaseSet
from .lock import BaseLock, Lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django_distlock.manager.registry import Entry


class lock_all(BaseLock[LeaseSet]):
    """Several locks at once, all or nothing, within one timeout.

    They are acquired in one canonical order, so that two callers with the same names cannot deadlock. A name may also
    be a :class:`Lock`, which keeps its own alias and mode. ``into`` is for decorators: the argument of the function
    that gets the LeaseSet, as for :func:`advisory_lock`.
    """

    def __init__(
        self,
        names: Iterable[str | Lock],
        *,
        using: str = "default",
        timeout: Timeout = UNSET,
        ttl: Timeout = UNSET,
        shared: bool = False,
        into: str | None = None,
    ) -> None:
        if isinstance(names, str):
            raise TypeError("names must be an iterable of names, not one str; for one lock use advisory_lock().")
        super().__init__(using, timeout, into)
        locks: dict[tuple[str, str], Lock] = {}
        for name in names:
            lock = name if isinstance(name, Lock) else Lock(name, using=using, ttl=ttl, shared=shared)
            identity = (lock.using, lock.name)
            # asked for both ways, the exclusive one covers the other
            if identity not in locks or locks[identity].shared:
                locks[identity] = lock
        if not locks:
            raise ValueError("names must not be empty.")
        if any(lock.cancel_on_loss for lock in locks.values()):
            raise ValueError("names must not have locks with cancel_on_loss: lock_all() cancels no task.")
        if any(lock.into is not None for lock in locks.values()):
            raise ValueError("names must not have locks with into: give it to lock_all().")
        # all callers acquire in one order, across aliases, so that two of them never wait for each other (R9)
        self.locks = tuple(locks[identity] for identity in sorted(locks))

    def __repr__(self) -> str:
        return f"<lock_all {[lock.name for lock in self.locks]!r}>"

    def _described(self) -> str:
        return "One of the locks " + ", ".join(repr(lock.name) for lock in self.locks)

    def templates(self) -> tuple[str, ...]:
        return tuple(lock.name for lock in self.locks)

    def formatted(self, values: Mapping[str, str]) -> Self:
        locks = [lock.formatted(values) for lock in self.locks]
        return type(self)(locks, using=self.using, timeout=self.timeout, into=self.into)

    async def _flow(self, timeout: float | None, start: float) -> LeaseSet | None:
        taken: list[Lease] = []
        try:
            for lock in self.locks:
                lease = await lock._flow(timeout, start)
                if lease is None:
                    await LeaseSet(taken)._arelease(False)
                    return None
                taken.append(lease)
            return LeaseSet(taken)
        except BaseException as error:
            try:
                if not isinstance(error, (DistlockError, asyncio.CancelledError)):
                    raise
                await clean_up(LeaseSet(taken)._arelease(False))
            except BaseException:  # an interrupt, perhaps of the clean-up
                leftovers.leave(LeaseSet(taken)._finish_release)
                raise
            raise


class semaphore(BaseLock[Lease]):
    """At most ``limit`` holders of ``name`` at once. All callers must give the same limit.

    On an engine without semaphores it consists of ``limit`` slot locks, which waiters try in random order; they are
    then not served in order of arrival. Unlike a lock it is not re-entrant: each acquire takes another slot, or one
    that was released and is kept for the transaction around it. ``into`` is for decorators: the argument of the
    function that gets the Lease, as for :func:`advisory_lock`.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        *,
        using: str = "default",
        timeout: Timeout = UNSET,
        ttl: Timeout = UNSET,
        into: str | None = None,
    ) -> None:
        super().__init__(using, timeout, into)
        self.name, self.limit = validate_name(name), count("limit", limit)
        self.ttl = optional_seconds("ttl", ttl, positive=True)

    def __repr__(self) -> str:
        return f"<semaphore {self.name!r} of {self.limit} on {self.using!r}>"

    def _described(self) -> str:
        return f"Each of the {self.limit} slots of the semaphore {self.name!r} of alias {self.using!r}"

    async def _flow(self, timeout: float | None, start: float) -> Lease | None:
        request = LockRequest(
            self.using,
            (self.name, "semaphore"),
            timeout,
            start,
            ttl=self.ttl,
            limit=self.limit,
            template=self.template,
        )
        entry = registry.entry(self.using)
        if entry.backend.supports_semaphore:
            return await acquire(request, Lease)
        return await self._slot_flow(request, entry)

    async def _slot_flow(self, request: LockRequest, entry: Entry) -> Lease | None:
        """Try the slots, first those that a transaction of the caller keeps, repeatedly, until the deadline."""
        deadline = Deadline(request.timeout, request.start)
        me, held = current(), lock_table.held(entry.backend)
        kept = {hold.key for hold in held if hold.owner is me and hold.state is State.DEFERRED}
        attempt = 0
        while True:
            slots = random.sample(range(self.limit), self.limit)
            if kept:
                slots.sort(key=lambda slot: entry.key(*request.parts, str(slot)) not in kept)
            for asked, slot in enumerate(slots, 1):
                parts = (*request.parts, str(slot))
                one = request._replace(parts=parts, timeout=0, start=clock.now(), limit=0, since=request.start)
                lease = await acquire(one, Lease)
                if lease is not None:
                    return lease
                if clock.now() >= deadline.answer_by:  # it has taken what a call may take
                    if asked < self.limit and not attempt:  # one of the others may be free
                        raise BackendUnavailable(
                            f"The backend of alias {self.using!r} answers slowly: it was asked for {asked} of the "
                            f"{self.limit} slots of the semaphore {self.name!r} in time."
                        )
                    break
            left = deadline.left()
            if left <= 0:
                announce(signals.lock_timed_out, request)
                return None
            await pause(min(backoff(attempt, first=0.004), left))
            attempt += 1
