"""One dedicated session: a connection on which locks live, watched, and cleaned up after."""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from django_distlock.concurrency import sockets
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.parking import FairLock

if TYPE_CHECKING:
    from django_distlock.concurrency.flow import Flow
    from django_distlock.keys import LockKey

# A statement on the shared session that takes longer than this has met a server that hangs; seconds.
STATEMENT_LIMIT = 2.0
# A session that holds a lock is asked for a sign of life when it was silent for this long; seconds. With a tick until
# that is noticed, STATEMENT_LIMIT and another tick a loss is known within 7 s (R18).
HEARTBEAT = 3.9
# How often sessions are looked at while there are any; seconds.
TICK = 0.5
# A reply may come this much after the deadline of its statement; seconds.
GRACE = 0.03


# The rows of a statement.
Ask: TypeAlias = Callable[[bytes], list[Any]]


class SessionDead(Exception):
    """The session has ended; every lock on it is lost."""


class StatementTimeout(Exception):
    """No reply in time. The statement may still take effect; the session knows and cleans up."""


class ServerError(Exception):
    """The server refused a statement; the session lives. ``code`` is the SQLSTATE or the error number."""

    def __init__(self, code: str | int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Session(ABC):
    """One connection to the server. All statements are made while its ``turnstile`` is held."""

    def __init__(self, waits: bool) -> None:
        self.turnstile = FairLock()
        self.waits = waits
        self.pid = os.getpid()
        self.dead: str | None = None
        # holds something that cannot be accounted for: takes no new locks, is closed after its last one
        self.retired = False
        self.held: dict[bytes, int] = {}
        self.used_at = self.replied_at = monotonic()
        # when the statement was sent that a thread is blocked on, for the watchdog
        self.started: float | None = None
        # when the statement was sent whose reply nobody waits for any more
        self.orphaned_at: float | None = None
        # a thread may end the conversation while another closes the descriptor, whose number is then somebody else's
        self._end = threading.Lock()
        self._closed = False

    @property
    @abstractmethod
    def fd(self) -> int:
        """The descriptor of the socket; -1 if the driver has closed it."""

    @property
    @abstractmethod
    def server_id(self) -> int:
        """What the server calls this session."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection, politely if it lives."""

    @abstractmethod
    def query(self, sql: bytes, until: float) -> Any:
        """The rows of ``sql`` by the monotonic time ``until``. Errors: ServerError, SessionDead, StatementTimeout."""

    @abstractmethod
    async def aquery(self, sql: bytes, until: float) -> Any:
        """:meth:`query` for a task."""

    @abstractmethod
    def beat(self) -> None:
        """Send a statement that proves that the session lives, and orphan it."""

    @abstractmethod
    def collect(self) -> None:
        """Read what has come for the orphaned statement, without waiting; if it is complete, clean up after it."""

    @abstractmethod
    def unexpected(self) -> None:
        """Something can be read though nothing was asked: news, or the end of the session."""

    @abstractmethod
    def lock(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        """Take the lock if it is free."""

    @abstractmethod
    def lock_now(self, key: LockKey, shared: bool) -> bool:
        """:meth:`lock` in this thread, under the eyes of the watchdog."""

    @abstractmethod
    def unlock_now(self, key: LockKey, shared: bool) -> bool:
        """:meth:`unlock` in this thread, under the eyes of the watchdog."""

    @abstractmethod
    def wait_now(self, key: LockKey, shared: bool, until: float) -> bool:
        """:meth:`wait` in this thread, if that takes one statement. False, and nothing held: it would have taken more,
        or the lock was busy to the end. StatementTimeout: the session is dead."""

    @abstractmethod
    def wait(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        """Wait for the lock until the monotonic time ``until``; on a session that holds nothing."""

    @abstractmethod
    def unlock(self, key: LockKey, shared: bool) -> Flow[bool]:
        """Give the lock back. False if this session did not hold it."""

    @abstractmethod
    def settle(self, until: float) -> Flow[None]:
        """Wait for the orphaned reply, if there is one, and clean up after it."""

    @abstractmethod
    def cancel(self, other: Session, until: float) -> Flow[None]:
        """Have the server end the statement that ``other`` waits for."""

    @abstractmethod
    def clear(self, until: float) -> Flow[None]:
        """Give back every lock of this session."""

    @abstractmethod
    def ping(self, until: float) -> Flow[None]:
        """Prove that the session lives."""

    def ensure_bound(self, alias: str, second: Session, until: float) -> Flow[None]:
        """UnsupportedOperation if a pooler gives this connection another server session from time to time. ``second``
        is another connection by the same way."""
        yield from ()

    def kill(self, reason: str) -> None:
        """Declare the session dead and end whatever hangs on it; from any thread."""
        with self._end:
            if self.dead is None:
                self.dead = reason
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

    def silence(self) -> None:
        """In the child of a fork: leave the parent's connection alone."""
        self.dead = "fork"
        if not self._closed:
            self._closed = True
            sockets.silence(self.fd)

    def note(self, key: LockKey) -> None:
        self.held[key.digest] = self.held.get(key.digest, 0) + 1

    def forget(self, key: LockKey) -> None:
        left = self.held.get(key.digest, 0) - 1
        if left > 0:
            self.held[key.digest] = left
        else:
            self.held.pop(key.digest, None)

    def look(self) -> None:
        """Notice that the server has hung up, unless somebody is just talking to it."""
        if self.dead is None and self.turnstile.try_acquire():
            try:
                self.check()
            finally:
                self.turnstile.release()

    def check(self) -> None:
        """:meth:`look`, by whoever has the turnstile."""
        if self.dead is None and self.orphaned_at is None and sockets.readable(self.fd, 0):
            with contextlib.suppress(SessionDead):  # it has noted that by itself
                self.unexpected()

    def tick(self, now: float) -> None:
        """Watchdog and heartbeat; called by the keepalive thread."""
        started = self.started
        if started is not None:
            if now - started > STATEMENT_LIMIT:
                self.kill("a statement hung")
            return
        if self.dead is not None or not self.turnstile.try_acquire():
            return
        try:
            if self.orphaned_at is not None:
                self.collect()
                if self.orphaned_at is not None and now - self.orphaned_at > STATEMENT_LIMIT:
                    self.kill("a statement hung")
            else:
                self.check()
                if self.dead is None and self.held and now - self.replied_at >= HEARTBEAT:
                    self.beat()
        except Exception as error:
            self.kill(f"{type(error).__name__} while looking after it")
        finally:
            self.turnstile.release()
