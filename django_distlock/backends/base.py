"""The interface of an engine: what it must be able to do, and what it may."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django_distlock.concurrency import clock
from django_distlock.concurrency.background import CallTimeout, NotStarted
from django_distlock.concurrency.deadline import PATIENCE, backoff
from django_distlock.concurrency.executor import Threads
from django_distlock.exceptions import BackendUnavailable, UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from django.core.checks import CheckMessage

    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Finding, Grant, LockInfo

    T = TypeVar("T")


# Seconds without a command after which a session is closed.
IDLE = 5.0
# Longest sleep of the keepalive thread while a lock or a session is left; seconds. A session that was killed is noticed
# within this time.
TICK = 0.5


def _no_keepalive(when: float) -> None:
    """Stands for the keepalive thread in a backend outside the registry, which has none."""


class Backend(ABC):
    """One attempt at a time. Its callers handle deadlines, re-entry, queues inside the process and renewal.

    Engines are blocking code; the calls of tasks run in threads of the backend, unless the engine has asynchronous ones
    of its own. All threads and tasks of a process share one backend. The flags say what it can do; what they do not
    declare is refused with :class:`~django_distlock.exceptions.UnsupportedOperation`.
    """

    # Can several holders share one lock?
    supports_shared: ClassVar[bool] = False
    # Does a grant live for a TTL and have to be renewed?
    supports_ttl: ClassVar[bool] = False
    # Does a grant carry a fencing token that rises from holder to holder?
    supports_fencing: ClassVar[bool] = False
    # Does a claim with a limit admit that many holders? Otherwise a semaphore is made of that many locks.
    supports_semaphore: ClassVar[bool] = False
    # Can an operator take a lock away from its holder?
    supports_break: ClassVar[bool] = False
    # Can a lock live on the caller's own connection and die with its transaction?
    supports_transaction_scope: ClassVar[bool] = False
    # Does try_acquire(wait=...) wait at the engine, without polling?
    waits_natively: ClassVar[bool] = False
    # Does it wait at all? Otherwise it asks once, and the caller asks again after pause().
    waits_inside: ClassVar[bool] = False
    # Is a lock seen outside this process, so that its name is hashed with the site key?
    needs_site_key: ClassVar[bool] = True
    # Is its server outside of DATABASES, so that projects with different databases may share it?
    apart_from_databases: ClassVar[bool] = False
    # Does the engine keep only a hash of the name, so that a table of ``notes_database`` has to keep the names?
    keeps_notes: ClassVar[bool] = False
    # Models whose tables `migrate` makes for it in ``database``.
    tables: tuple[str, ...] = ()
    # Seconds for which a task waits for the answer to a short request, perhaps behind others in the same thread; None:
    # the backend itself ends what hangs. Less than PATIENCE, so that its event loop has heard of the end by then (R5).
    patience: ClassVar[float | None] = PATIENCE - 0.1
    # Why in_doubt() may be true, for messages.
    doubt: ClassVar[str] = "its transaction was aborted"
    # The keys allowed in OPTIONS.
    option_names: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        self.alias = alias
        self.options = dict(options)
        self.threads = Threads(alias)
        # The alias in DATABASES of the names' table.
        self.notes_database = ""
        # Set by the registry: requests a tick() of the keepalive thread at a monotonic time, or before.
        self.wake_at: Callable[[float], None] = _no_keepalive
        # Set by the registry: the names that this process used lately, by the keys that the engine lists.
        self.known_names: Callable[[], Mapping[str, str]] = dict
        # Set by the registry: seconds of holding after which the keepalive thread warns.
        self.warn_hold_seconds: float | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias!r}>"

    def load(self) -> None:  # noqa: B027 - most import their driver with their module
        """Import what the first request would import, without a connection."""

    @abstractmethod
    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        """Ask the engine once. It may wait for at most ``wait`` seconds (``math.inf``: without end).

        None means busy. It may come before ``wait`` is over; then the caller asks again. After an Exception nothing is
        held. After the exception of a signal (KeyboardInterrupt) the caller has another thread :meth:`undo` the claim.
        """

    @abstractmethod
    def release(self, grant: Grant) -> bool:
        """Release the lock. False: ``grant`` no longer held it."""

    def release_again(self, grant: Grant) -> bool:
        """:meth:`release` after one that was interrupted and may have reached the engine."""
        return self.release(grant)

    @abstractmethod
    def inspect(self) -> Iterable[LockInfo]:
        """The locks that are held now, by all processes. Also locks on tables and rows of the same database that block
        a session, by any program: ``details["kind"]`` is "relation" or "row", ``details["blocks"]`` names the blocked
        sessions."""

    def listed_as(self, key: LockKey) -> str:
        """The name of ``key`` in :meth:`inspect`."""
        return key.path

    def held_among(self, keys: Iterable[LockKey]) -> set[LockKey]:
        """Those of ``keys`` that anybody holds now. It takes nothing; BackendUnavailable without an answer."""
        listed = {self.listed_as(key): key for key in keys}
        return {listed[info.key] for info in self.inspect() if info.key in listed}

    def server_session(self, grant: Grant) -> int:
        """The server's number of the session that has ``grant``; 0 if there is none or it is not known."""
        return 0

    def prune_old(self, days: float) -> Mapping[str, int]:
        """Delete rows that are no longer needed; the number of each kind."""
        return {}

    def verify(self, grant: Grant) -> bool:
        """Ask the engine whether ``grant`` still holds."""
        return self.alive(grant)

    def alive(self, grant: Grant) -> bool:
        """False if this process knows that ``grant`` is lost. The engine is not asked."""
        return True

    def look(self, grant: Grant) -> bool:
        """:meth:`alive`, and whether the socket is still open, if there is one. No round trip."""
        return self.alive(grant)

    def in_doubt(self, grant: Grant) -> bool:
        """Is it unknown at present whether ``grant`` still holds? Unlike a loss this may pass."""
        return False

    def pause(self, claim: Claim, attempt: int) -> float:
        """Seconds to sleep before the next attempt at ``claim``."""
        return backoff(attempt)

    def stop(self, claim: Claim) -> None:  # noqa: B027 - most do not wait
        """Let the wait for ``claim`` in another thread end soon. This must not wait."""

    def undo(self, claim: Claim) -> None:  # noqa: B027 - most leave nothing behind
        """Give back what ``claim`` has got or may still get, and leave the queue: its caller has gone.

        It is called in any thread, and may be called again, even while another thread is in :meth:`try_acquire`.
        """

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        """Let the lock live for ``ttl`` seconds from now; None if ``grant`` no longer held it."""
        raise self.unsupported("extend: its locks have no TTL")

    def renew(self, grant: Grant, ttl: float) -> Grant | None:
        """:meth:`extend` for the keepalive thread. The renewals of the alias that are due as well wait for it."""
        return self.extend(grant, ttl)

    def break_lock(self, info: LockInfo) -> bool:
        """End the hold that ``info`` shows; False if it has ended before."""
        raise self.unsupported("break a lock")

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        """:meth:`try_acquire` for a task. A cancelled call leaves nothing held."""
        until = clock.now() + wait
        at_once = 0 if self.waits_inside else wait
        grant = await self._in_thread(self.try_acquire, claim, at_once, undo=self._give_back, wait=wait)
        if grant is None and self.waits_inside and (left := until - clock.now()) > 0:
            try:
                return await self.threads.long(
                    self.try_acquire, claim, left, stop=lambda: self.stop(claim), undo=self._give_back
                )
            except NotStarted as error:
                raise BackendUnavailable(f"The backend of alias {self.alias!r} cannot wait. {error}") from error
        return grant

    async def arelease(self, grant: Grant) -> bool:
        """:meth:`release` for a task."""
        return await self._in_thread(self.release, grant)

    async def averify(self, grant: Grant) -> bool:
        """:meth:`verify` for a task."""
        return await self._in_thread(self.verify, grant)

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        """:meth:`extend` for a task."""
        return await self._in_thread(self.extend, grant, ttl)

    def _give_back(self, grant: Grant | None) -> None:
        if grant is not None:
            self.release(grant)

    async def _in_thread(
        self, function: Callable[..., T], *args: Any, undo: Callable[[Any], Any] | None = None, wait: float = 0
    ) -> T:
        """Call ``function``: for a task in the thread of short statements, else at once in the calling thread."""
        patience = None if self.patience is None else min(wait + self.patience, threading.TIMEOUT_MAX)
        try:
            return await self.threads.short(function, *args, undo=undo, patience=patience)
        except CallTimeout as error:
            raise BackendUnavailable(f"The backend of alias {self.alias!r} has not answered. {error}") from error
        except NotStarted as error:
            if function != self.release:  # a moment of this event loop is better than a lock that is not released
                raise BackendUnavailable(f"The backend of alias {self.alias!r} cannot be asked. {error}") from error
            return function(*args)

    def tick(self, now: float) -> float | None:
        """Called by the keepalive thread: heartbeats, watchdogs, idle sessions.

        The monotonic time of the next call; None if none is needed.
        """
        return None

    def check(self) -> list[CheckMessage]:
        """System checks of this alias, without a connection."""
        return []

    def diagnose(self) -> Iterable[Finding]:
        """Findings about the server for `distlock doctor`, which tests acquiring by itself."""
        return ()

    def close(self) -> None:
        """Close every session and end every thread. The backend may be used again."""
        self.threads.stop()

    def after_fork(self) -> None:
        """In the child of a fork: forget sessions and threads without a message to the engine."""
        self.threads = Threads(self.alias)

    def unsupported(self, what: str) -> UnsupportedOperation:
        """The error for something this engine cannot do."""
        return UnsupportedOperation(f"The backend {type(self).__name__} of alias {self.alias!r} cannot {what}.")
