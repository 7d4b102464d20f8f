"""One dedicated session: a connection on which locks live. It is watched, and cleaned up after abandoned statements."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from django_distlock.concurrency import clock, sockets
from django_distlock.concurrency.parking import FairLock
from django_distlock.concurrency.places import LOOK_EVERY
from django_distlock.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

# A statement on the shared session that takes longer than this has met a server that hangs; seconds.
STATEMENT_LIMIT = 2.0
# A session that holds a lock is sent a ping once it was silent for this long; seconds. With the tick that notices the
# silence, STATEMENT_LIMIT for the reply and another tick, a loss is known within 7 s (R18).
HEARTBEAT = 3.9
# A reply may come this much after the deadline of its statement; seconds.
GRACE = 0.03

P = ParamSpec("P")
T = TypeVar("T")

# Returns the rows of a statement.
Ask: TypeAlias = Callable[[bytes], list[Any]]


class SessionDead(Exception):
    """The session has ended; every lock on it is lost."""


class StatementTimeout(Exception):
    """No reply in time. The statement may still take effect; the session knows that and cleans up."""


class TurnOver(Exception):
    """The wait has had its turn, and others of this process want to wait. The session's statement goes on."""


class ServerError(Exception):
    """The server refused a statement; the session lives. ``code`` is the SQLSTATE or the error number."""

    def __init__(self, code: str | int, message: str) -> None:
        super().__init__(message)
        self.code = code


def unavailable(alias: str, error: BaseException) -> BackendUnavailable:
    """The error of a caller whose session has failed, with the first line of the server's message."""
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return BackendUnavailable(f"The lock session of alias {alias!r} failed: {reason}")


async def locked(
    mutex: FairLock, timeout: float, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """``work(*args)`` while holding ``mutex``. StatementTimeout if it is not free within ``timeout`` seconds."""
    turn = mutex.turn()
    try:
        try:
            if not (turn.try_acquire() or await turn.acquire(max(0.0, timeout))):
                raise StatementTimeout
            return await work(*args, **kwargs)
        finally:
            turn.release()
    except BaseException:
        turn.release()  # again: an interrupt may have come at its entrance, and whoever cleans up needs the mutex
        raise


class Session(ABC):
    """One connection to the server. A statement is sent while holding ``mutex``."""

    def __init__(self, waits: bool) -> None:
        self.mutex = FairLock()
        self.waits = waits
        self.pid = os.getpid()
        self.dead: str | None = None
        self.dead_at = math.inf
        # holds something that cannot be accounted for: takes no new locks, is closed after its last one
        self.retired = False
        # how often each lock is held, by digest
        self.held: defaultdict[bytes, int] = defaultdict(int)
        self.used_at = self.replied_at = clock.now()
        # when the statement was sent that a thread is blocked on, for the watchdog
        self.started: float | None = None
        # while a wait runs: when others of this process may have its place, and whether any want it
        self.turn_ends = math.inf
        self.wanted: Callable[[], bool] = bool
        # when the statement was sent whose caller has given up waiting
        self.orphaned_at: float | None = None
        # one thread may shut the socket while another closes it, and the number may then belong to another file
        self._end = threading.Lock()
        self._closed = False

    @property
    @abstractmethod
    def fd(self) -> int:
        """The descriptor of the socket; -1 if the driver has closed it."""

    @property
    @abstractmethod
    def server_id(self) -> int:
        """The server's number for this session."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection, with a goodbye if it lives."""

    @abstractmethod
    async def query(self, sql: bytes, until: float) -> Any:
        """The rows of ``sql`` by the monotonic time ``until``. Errors: ServerError, SessionDead, StatementTimeout."""

    @abstractmethod
    def beat(self) -> None:
        """Send a ping; :meth:`collect` reads the reply later."""

    @abstractmethod
    def collect(self) -> None:
        """Read what has arrived for the orphaned statement, without waiting; clean up if it is complete."""

    @abstractmethod
    def unexpected(self) -> None:
        """Read what the server sent unasked: a notice, or the end of the session."""

    @abstractmethod
    async def lock(self, key: LockKey, shared: bool, until: float) -> bool:
        """Take the lock if it is free."""

    @abstractmethod
    def lock_fast(self, key: LockKey, shared: bool, /) -> bool:
        """:meth:`lock` by one blocking call in this thread; the watchdog ends it if it hangs."""

    @abstractmethod
    def unlock_fast(self, key: LockKey, shared: bool, /) -> bool:
        """:meth:`unlock` by one blocking call in this thread; the watchdog ends it if it hangs."""

    @abstractmethod
    def wait_fast(self, key: LockKey, shared: bool, until: float) -> bool:
        """:meth:`wait` in this thread, if one statement is enough. False, with nothing held, if it takes more, or if
        the lock stayed busy. After StatementTimeout the caller ends the session."""

    @abstractmethod
    async def wait(self, key: LockKey, shared: bool, until: float) -> bool:
        """Wait for the lock until the monotonic time ``until``. The session must hold nothing."""

    @abstractmethod
    async def unlock(self, key: LockKey, shared: bool) -> bool:
        """Release the lock. False if this session did not hold it."""

    @abstractmethod
    async def settle(self, until: float) -> None:
        """Wait for the reply of an orphaned statement, if there is one, and clean up."""

    @abstractmethod
    async def cancel(self, other: Session, until: float) -> None:
        """Have the server end the statement that runs on ``other``."""

    @abstractmethod
    async def clear(self, until: float) -> None:
        """Release every lock of this session."""

    @abstractmethod
    async def ping(self, until: float) -> None:
        """Prove that the session lives."""

    def look_at(self, until: float) -> float:
        """When to look up from waiting for a reply by ``until``."""
        return until if self.turn_ends == math.inf else min(until, clock.now() + LOOK_EVERY)

    def look(self, until: float) -> None:
        """Nothing has come: wait on, or raise StatementTimeout or TurnOver."""
        now = clock.now()
        if now >= until:
            raise StatementTimeout
        if now >= self.turn_ends and self.wanted():
            raise TurnOver

    async def ensure_bound(self, alias: str, second: Session, until: float) -> None:  # noqa: B027 - only poolers
        """Raise UnsupportedOperation if a pooler gives this connection changing server sessions. ``second`` is another
        connection to the same address."""

    def kill(self, reason: str) -> None:
        """Declare the session dead and end the statement that hangs on it; from any thread."""
        with self._end:
            if self.dead is None:
                self.dead = reason
            self.dead_at = min(self.dead_at, clock.now())
            if not self._closed:
                sockets.shut(self.fd)

    def close(self) -> None:
        """Close the connection; once."""
        with self._end:
            self.dead = self.dead or "closed"
            if self._closed:
                return
            self._closed = True
        self.disconnect()

    def abandon(self) -> None:
        """In the child of a fork: leave the parent's connection alone."""
        self.dead = "fork"
        if not self._closed:
            self._closed = True
            sockets.silence(self.fd)

    def notice_end(self) -> None:
        """Notice that the server has hung up, unless a statement runs."""
        turn = self.mutex.try_turn() if self.dead is None else None
        if turn is not None:
            try:
                self._notice_end()
            finally:
                turn.release()

    def _notice_end(self) -> None:
        if self.dead is None and self.orphaned_at is None and sockets.readable(self.fd, 0):
            with contextlib.suppress(SessionDead):  # self.dead says so
                self.unexpected()

    def tick(self, now: float) -> None:
        """Run the watchdog and the heartbeat; the keepalive thread calls this."""
        started = self.started
        if started is not None:
            if now - started > STATEMENT_LIMIT:
                self.kill("a statement hung")
            return
        turn = self.mutex.try_turn() if self.dead is None else None
        if turn is None:
            return
        try:
            if self.orphaned_at is not None:
                self.collect()
                if self.orphaned_at is not None and now - self.orphaned_at > STATEMENT_LIMIT:
                    self.kill("a statement hung")
            else:
                self._notice_end()
                if self.dead is None and self.held and now - self.replied_at >= HEARTBEAT:
                    self.beat()
        except Exception as error:
            self.kill(f"{type(error).__name__} while looking after it")
        finally:
            turn.release()
