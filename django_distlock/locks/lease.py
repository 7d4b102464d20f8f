"""The proof of one holding, with its ``with`` and ``release``."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from django_distlock.concurrency import finalizers
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step, arun, run
from django_distlock.exceptions import DistlockError, LockLost, LockNotHeld, UnsupportedOperation
from django_distlock.manager import owner
from django_distlock.manager.hold import FORKED, Hold, State
from django_distlock.manager.keepalive import RENEWALS_PER_TTL, keepalive
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.open_transactions import begun_by_sql
from django_distlock.manager.release import freed_now, give_back, lose, lose_dead
from django_distlock.manager.transactions import defer
from django_distlock.validation import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.records import Grant

    from .task_guard import TaskGuard


class BaseLease:
    """``with lease:`` and ``async with lease:`` for whatever can be released."""

    __slots__ = ()

    def _release_flow(self, raising: bool) -> Flow[None]:
        raise NotImplementedError

    def _release(self, raising: bool) -> None:
        run(self._release_flow(raising))

    def _aenters(self) -> None:
        """An ``async with`` block begins in this task."""

    async def _aleave(self, error: BaseException | None) -> None:
        """The block has ended, with that exception."""
        await arun(self._release_flow(error is None))

    def release(self) -> None:
        """Give it back. Releasing twice is harmless.

        Raises LockLost if it was lost before, unless another exception is on its way already. Inside a transaction
        the engine keeps the lock until that has ended.
        """
        if finalizers.collecting():
            finalizers.later(self._release, False)
        else:
            self._release(sys.exc_info()[0] is None)

    async def arelease(self) -> None:
        """:meth:`release` for a task."""
        if finalizers.collecting():
            finalizers.later(self._release, False)
        elif not owner.on_event_loop():  # the coroutine is being closed: nothing can be awaited
            self._release(False)
        else:
            await arun(self._release_flow(sys.exc_info()[0] is None))

    def __enter__(self) -> Self:
        owner.refuse_event_loop("async with")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if finalizers.collecting():
            finalizers.later(self._release, False)
        else:
            self._release(kind is None)

    async def __aenter__(self) -> Self:
        self._aenters()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if finalizers.collecting():
            finalizers.later(self._release, False)
        elif not owner.on_event_loop():
            self._release(False)
        else:
            await self._aleave(error)


logger = logging.getLogger("django_distlock.locks")


class Lease(BaseLease):
    """One acquire's own handle on a lock that is held; released once, by any thread or task.

    A Lease that is dropped without a release keeps the lock.
    """

    __slots__ = ("__weakref__", "_guard", "_hold", "_leaving", "_released")

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self._guard: TaskGuard | None = None
        self._released = False
        self._leaving = False  # is its release the one that asks the engine?

    def __repr__(self) -> str:
        state = "lost" if self.lost else "held" if self.held else "released"
        return f"<Lease {self.name!r} on {self.using!r}: {state}>"

    @property
    def owner(self) -> object:
        """The context that acquired it."""
        return self._hold.owner

    @property
    def name(self) -> str:
        """The name as the code spells it."""
        return self._hold.key.name

    @property
    def using(self) -> str:
        """The alias."""
        return self._hold.backend.alias

    @property
    def shared(self) -> bool:
        """Is it held together with other readers?"""
        return self._hold.shared

    @property
    def _grant(self) -> Grant:
        grant = self._hold.grant
        assert grant is not None  # noqa: S101 - a Lease is handed out only once there is a grant
        return grant

    @property
    def fence(self) -> int:
        """The fencing token: an integer that is higher than that of every earlier holder of this name.

        Source: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html. UnsupportedOperation where
        the engine gives none.
        """
        fence = self._grant.fence
        if fence is None:
            raise self._hold.backend.unsupported("give a fencing token")
        return fence

    @property
    def valid_until(self) -> float | None:
        """The end of the lease on the clock of ``django_distlock.concurrency.clock.monotonic()``.

        None where the lock has no TTL.

        It moves on with each renewal. That clock runs on while the host is suspended, which ``time.monotonic()`` does
        not: to learn whether there is time enough ask :meth:`held_for`.
        """
        return self._grant.valid_until

    @property
    def lost(self) -> bool:
        """Was the lock lost, as far as this process can know without asking the engine?"""
        hold = self._hold
        if hold.lost is not None:
            return True
        if self._released or hold.state is State.ENDED:
            return False
        grant = self._grant
        if grant.valid_until is not None and monotonic() >= grant.valid_until:
            return lose(hold, "expired") or hold.lost is not None
        if not hold.backend.look(grant):
            return lose_dead(hold, grant, "session") or hold.lost is not None
        return False

    @property
    def held(self) -> bool:
        """Is it held, neither released nor lost nor ended with its transaction, which was not aborted either?"""
        return not (self._released or self._hold.state is State.ENDED or self.lost or self._hold.in_doubt)

    def held_for(self, duration: float) -> bool:
        """Is it held, and surely for ``duration`` seconds more, even if it cannot be renewed any more?

        Where the lock has no TTL this is :attr:`held`.
        """
        until = self.valid_until
        return self.held and (until is None or monotonic() + duration < until)

    def ensure_held(self) -> None:
        """Raise LockLost if the lock was lost, LockNotHeld if it was released or has ended with its transaction."""
        if self.lost or self._hold.in_doubt:
            raise LockLost(self._lost_message())
        if self._released or self._hold.state is State.ENDED:
            raise LockNotHeld(f"The lease of {self.name!r} has been released.")

    def on_lost(self, callback: Callable[[Lease], object]) -> None:
        """Have ``callback(lease)`` called once if the lock is lost; at once if it is lost already.

        It runs in whatever thread notices, most often the keepalive thread. An exception in it is logged.
        """
        pending = [callback]

        def call() -> None:
            try:
                taken = pending.pop()
            except IndexError:
                return
            if not self._released or self._leaving:
                taken(self)

        # registered before the question: the loss may be noticed in another thread meanwhile
        self._hold.callbacks.append(call)
        if self.lost:
            call()

    def extend(self, ttl: float) -> None:
        """Let the lease live for ``ttl`` seconds from now, and renew it by as much from here on.

        Raises LockLost if it was not ours any more, UnsupportedOperation where locks have no TTL.
        """
        owner.refuse_event_loop("await lease.aextend()")
        run(self._extend_flow(ttl))

    async def aextend(self, ttl: float) -> None:
        """:meth:`extend` for a task."""
        await arun(self._extend_flow(ttl))

    def _extend_flow(self, ttl: float) -> Flow[None]:
        ttl = seconds("ttl", ttl, positive=True) or 0.0
        hold = self._hold
        if not hold.backend.supports_ttl:
            raise hold.backend.unsupported("extend a lease: its locks have no TTL")
        self.ensure_held()
        lock_table.shorten(hold, ttl)
        asked = self._grant
        grant: Grant | None = yield Step(hold.backend.extend, hold.backend.aextend, (asked, ttl))
        if grant is None:
            lose_dead(hold, asked, "stolen")
            raise LockLost(self._lost_message())
        hold.ttl = ttl
        if lock_table.renew(hold, grant):
            keepalive.wake_at(monotonic() + ttl / RENEWALS_PER_TTL)
            return
        if hold.lost is not None:  # it ended while the engine was asked, which has prolonged it all the same
            yield Step(hold.backend.release, hold.backend.arelease, (grant,))
        self.ensure_held()

    def _lost_message(self) -> str:
        return f"The lock {self.name!r} of alias {self.using!r} was lost ({self._hold.reason})."

    def _aenters(self) -> None:
        if self._guard is not None:
            self._guard.arm()

    async def _aleave(self, error: BaseException | None) -> None:
        if self._guard is None or not self._guard.disarm(error):
            await arun(self._release_flow(error is None))
            return
        with contextlib.suppress(DistlockError):
            await arun(self._release_flow(True))
        if self._hold.lost is None:
            raise LockLost(f"The lock {self.name!r} of alias {self.using!r} was in doubt while it was held.") from error
        raise LockLost(self._lost_message()) from error

    def _release(self, raising: bool) -> None:
        if not self._leaves(raising):
            return
        begun = begun_by_sql()
        if not freed_now(self._hold):
            if owner.on_event_loop():
                # a task of this very loop may be in the middle of a statement, which ends only if the loop goes on
                threading.Thread(target=self._give_back, args=(False,), name="distlock-release", daemon=True).start()
            else:
                self._give_back(raising)
        if begun:
            self._report(_uncommitted(self, begun), raising)

    def _give_back(self, raising: bool) -> None:
        error = run(give_back(self._hold))
        if error is not None:
            self._report(error, raising)

    def _release_flow(self, raising: bool) -> Flow[None]:
        if self._leaves(raising):
            begun = begun_by_sql()
            error = yield from give_back(self._hold)
            if error is None and begun:
                error = _uncommitted(self, begun)
            if error is not None:
                self._report(error, raising)

    def _leaves(self, raising: bool) -> bool:
        """Mark it as released. True if the engine is to be told now: the last one, and no transaction is open."""
        hold = self._hold
        if self._released or hold.lost == FORKED:
            return False
        self._released = True
        if hold.lost is not None:
            self._report(LockLost(self._lost_message()), raising)
            return False
        self._leaving = lock_table.leave(hold, self) and not defer(hold)
        return self._leaving

    def _report(self, error: DistlockError, raising: bool) -> None:
        if raising:
            raise error
        logger.warning("%s Not raised, because another exception is on its way.", error)


def _uncommitted(lease: Lease, begun: list[BaseDatabaseWrapper]) -> UnsupportedOperation:
    aliases = ", ".join(repr(connection.alias) for connection in begun)
    return UnsupportedOperation(
        f"The lock {lease.name!r} was released while a transaction begun by SQL is open on {aliases}: what it writes "
        "is committed after the next holder has the lock. Use transaction.atomic(), or COMMIT before the release."
    )


class LeaseSet(BaseLease):
    """The Leases of one :func:`lock_all`, in the order in which they were acquired."""

    __slots__ = ("leases",)

    def __init__(self, leases: list[Lease]) -> None:
        self.leases = tuple(leases)

    def __repr__(self) -> str:
        return f"<LeaseSet {[lease.name for lease in self.leases]!r}>"

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.leases)

    def __len__(self) -> int:
        return len(self.leases)

    def __getitem__(self, key: str | tuple[str, str]) -> Lease:
        """The lease of one name, or of an alias and a name: ``leases["redis", "report"]``.

        Raises KeyError if there is none, ValueError for a name that several aliases hold.
        """
        found = [lease for lease in self.leases if key in (lease.name, (lease.using, lease.name))]
        if not found:
            raise KeyError(key)
        if len(found) > 1:
            ways = " or ".join(f"leases[{lease.using!r}, {lease.name!r}]" for lease in found)
            raise ValueError(f"The name {key!r} is held on several aliases: say {ways}.")
        return found[0]

    @property
    def owner(self) -> object:
        return self.leases[0].owner

    @property
    def lost(self) -> bool:
        """Was any of them lost?"""
        return any(lease.lost for lease in self.leases)

    def ensure_held(self) -> None:
        """Raise LockLost for the first one that was lost."""
        for lease in self.leases:
            lease.ensure_held()

    def _release_flow(self, raising: bool) -> Flow[None]:
        yield from release_all(self.leases, raising)


def release_all(leases: Any, raising: bool) -> Flow[None]:
    """Release in reverse order; all of them, then raise the first error."""
    first: DistlockError | None = None
    for lease in reversed(leases):
        try:
            yield from lease._release_flow(True)
        except DistlockError as error:
            first = first or error
    if first is not None and raising:
        raise first
