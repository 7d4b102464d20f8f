"""What an engine must be able to do, and what it may."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from django_distlock.concurrency.deadline import backoff
from django_distlock.concurrency.executor import Threads
from django_distlock.exceptions import UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from django.core.checks import CheckMessage

    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Finding, Grant, LockInfo, Note, Noted

    from .query import Chosen, LockQuery, Mine


def _nobody_ticks(when: float) -> None:
    """A backend outside the registry has no keepalive thread."""


class Backend(ABC):
    """One attempt at a time. Deadlines, re-entry, queues inside the process and renewal are not its business.

    A backend is used by all threads and tasks of a process. The flags say what it can do; what is not declared is
    refused with :class:`~django_distlock.exceptions.UnsupportedOperation` before it is asked.
    """

    # Can several holders share one lock?
    supports_shared: ClassVar[bool] = False
    # Does a grant live for a TTL and have to be renewed?
    supports_ttl: ClassVar[bool] = False
    # Does a grant carry a fencing token that rises from holder to holder?
    supports_fencing: ClassVar[bool] = False
    # Does a claim with a limit admit that many holders? Else a semaphore is made of as many locks.
    supports_semaphore: ClassVar[bool] = False
    # Can an operator take a lock away from its holder?
    supports_break: ClassVar[bool] = False
    # Can a lock live on the caller's own connection and die with its transaction?
    supports_transaction_scope: ClassVar[bool] = False
    # Does try_acquire(wait=...) wait at the engine, without polling?
    waits_natively: ClassVar[bool] = False
    # Must a waiter that gives up be taken off a queue (withdraw)?
    queues_waiters: ClassVar[bool] = False
    # Is a lock seen outside this process, so that its name is hashed with the site key?
    needs_site_key: ClassVar[bool] = True
    # Is its server none of DATABASES, so that projects with different databases may share it?
    apart_from_databases: ClassVar[bool] = False
    # Does the engine keep only a hash of the name, so that names have to be noted?
    keeps_notes: ClassVar[bool] = False
    # Models whose tables `migrate` makes for it in ``database``.
    tables: tuple[str, ...] = ()
    # Why a lock may be in doubt.
    doubt: ClassVar[str] = "its transaction was aborted"
    # The keys that OPTIONS may have.
    option_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        self.alias = alias
        self.options = dict(options)
        self.threads = Threads(alias)
        # Set by the registry: asks the keepalive thread for a tick at that monotonic time at the latest.
        self.wake_at: Callable[[float], None] = _nobody_ticks
        # Set by the registry: after how many seconds of holding the keepalive thread warns.
        self.warn_hold_seconds: float | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias!r}>"

    def load(self) -> None:  # noqa: B027 - most import their driver with their module
        """Import what the first request would import; opens nothing."""

    @abstractmethod
    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        """Ask once, waiting for at most ``wait`` seconds (``math.inf`` for ever) if the engine can wait.

        None means busy; it may come before ``wait`` is over, the caller asks again. Any exception, KeyboardInterrupt
        and CancelledError included, leaves nothing held.
        """

    @abstractmethod
    def release(self, grant: Grant) -> bool:
        """Give the lock back. False: it was not ours any more."""

    @abstractmethod
    def inspect(self) -> Iterable[LockInfo]:
        """The locks that are held now, by anybody."""

    def blocking(self) -> Iterable[LockInfo]:
        """Locks on tables and rows of the same database that keep somebody waiting, whoever took them; none where the
        engine has no such locks. ``details["kind"]`` is "relation" or "row", ``details["blocks"]`` who waits."""
        return ()

    def select(self, query: LockQuery, mine: Sequence[Mine] = (), known: Sequence[str] = ()) -> Chosen | None:
        """What :meth:`inspect` and :meth:`blocking` have for ``query``, where the engine can choose, sort and cut by
        itself; else None. Of its locks this process holds ``mine``, and knows names that match of the keys ``known``.
        """
        return None

    def listed_as(self, key: LockKey) -> str:
        """What :meth:`inspect` calls ``key``."""
        return key.path

    def server_session(self, grant: Grant) -> int:
        """What the server calls the session on which ``grant`` lives; 0 if there is none, or nobody knows."""
        return 0

    def write_notes(self, notes: Sequence[Note], done: Callable[[list[Noted]], object]) -> bool:
        """Begin to write ``notes`` down, in the background, and call ``done`` when they are; False: not now."""
        return False

    def prune_old(self, days: float) -> Mapping[str, int]:
        """Delete what is kept and not needed any more, notes after ``days``; how much, by kind."""
        return {}

    def acquire_fast(self, claim: Claim, wait: float) -> Grant | None:
        """Take the lock in this thread with one statement on a session at hand, if that is possible; else None.

        Only a short cut for the most frequent cases: after None the caller asks :meth:`try_acquire`.
        """
        return None

    def release_fast(self, grant: Grant) -> bool:
        """Give a lock back in the same way. False: not done, or not ours any more; the caller asks :meth:`release`."""
        return False

    def verify(self, grant: Grant) -> bool:
        """Ask the engine whether ``grant`` still holds."""
        return self.alive(grant)

    def alive(self, grant: Grant) -> bool:
        """What this process knows of ``grant`` without asking: False if it is lost."""
        return True

    def look(self, grant: Grant) -> bool:
        """:meth:`alive`, after a look at the socket if there is one; still no round trip."""
        return self.alive(grant)

    def in_doubt(self, grant: Grant) -> bool:
        """Can nobody tell at present whether ``grant`` holds? Unlike a loss this may pass."""
        return False

    def pause(self, claim: Claim, attempt: int) -> float:
        """Seconds to sleep before the next attempt at ``claim``."""
        return backoff(attempt)

    def withdraw(self, claim: Claim) -> None:  # noqa: B027 - nothing to forget is a fair answer
        """The waiter of ``claim`` has gone: forget its place in the queue."""

    def interrupt(self, claim: Claim) -> None:  # noqa: B027 - an engine that never waits has nothing to end
        """End a :meth:`try_acquire` of ``claim`` that waits in another thread."""

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        """Let the lock live for ``ttl`` seconds from now; None if it was not ours any more."""
        raise self.unsupported("extend: its locks have no TTL")

    def break_lock(self, info: LockInfo) -> bool:
        """Take the lock away from the holder that ``info`` shows; False if that holder has gone."""
        raise self.unsupported("break a lock")

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        """:meth:`try_acquire` for a task; here in a private thread."""
        if wait <= 0 or not self.waits_natively:
            return await self.threads.short(self.try_acquire, claim, wait, undo=self._undo)
        grant = await self.threads.short(self.try_acquire, claim, 0, undo=self._undo)
        if grant is not None:
            return grant
        return await self.threads.wait(
            self.try_acquire, claim, wait, undo=self._undo, interrupt=lambda: self.interrupt(claim)
        )

    async def arelease(self, grant: Grant) -> bool:
        """:meth:`release` for a task."""
        return await self.threads.short(self.release, grant)

    async def averify(self, grant: Grant) -> bool:
        """:meth:`verify` for a task."""
        return await self.threads.short(self.verify, grant)

    async def awithdraw(self, claim: Claim) -> None:
        """:meth:`withdraw` for a task."""
        await self.threads.short(self.withdraw, claim)

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        """:meth:`extend` for a task."""
        return await self.threads.short(self.extend, grant, ttl)

    def _undo(self, grant: Grant | None) -> None:
        if grant is not None:
            self.release(grant)

    def tick(self, now: float) -> float | None:
        """Look after sessions (heartbeat, watchdog, idle ones); called by the keepalive thread.

        Returns the monotonic time of the next call, None if there is nothing to look after.
        """
        return None

    def check(self) -> list[CheckMessage]:
        """System checks of this alias, without a connection."""
        return []

    def diagnose(self) -> Iterable[Finding]:
        """What a look at the server finds, beyond whether locks can be taken."""
        return ()

    def close(self) -> None:
        """Close every session and end every thread. The backend may be used again."""
        self.threads.stop()

    def after_fork(self) -> None:
        """In the child of a fork: forget sessions and threads without a word to the engine."""
        self.threads = Threads(self.alias)

    def unsupported(self, what: str) -> UnsupportedOperation:
        """The error for something this engine cannot do."""
        return UnsupportedOperation(f"The backend {type(self).__name__} of alias {self.alias!r} cannot {what}.")
