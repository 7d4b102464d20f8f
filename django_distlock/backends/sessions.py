"""Dedicated sessions for database locks: one that is shared by all locks of the process, a few to wait on.

A session lock must not live on a request's connection: ``close_old_connections()`` loses it, a connection pool hands it
to the next request, an aborted transaction cannot release it, and a second task on that connection gets in. So the
locks of a process live on sessions of their own, outside Django's connection handler.

Locks that are free are taken on the shared session. A lock that is busy is waited for on a session from a small set,
and stays there while it is held. A session that holds for one owner never waits for another.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from django_distlock.parking import Turnstile
from django_distlock.waiting import Call, Flow

from . import sockets

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.names import LockKey

# A statement on the shared session that takes longer than this has met a server that hangs; seconds.
STATEMENT_LIMIT = 2.0
# A session that holds a lock is asked for a sign of life when it was silent for this long; seconds.
HEARTBEAT = 4.5
# A session without locks is closed after this time; seconds.
IDLE = 5.0
# How often sessions are looked at while there are any; seconds.
TICK = 0.5
# A reply may come this much after the deadline of its statement, seconds.
GRACE = 0.02


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
        self.turnstile = Turnstile()
        self.waits = waits
        self.pid = os.getpid()
        self.dead: str | None = None
        # holds something that cannot be accounted for: takes no new locks, is closed after its last one
        self.retired = False
        self.held: dict[bytes, int] = {}
        self.used_at = self.replied_at = time.monotonic()
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
        """The descriptor of the socket."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection, politely if it lives."""

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
    def wait(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        """Wait for the lock until the monotonic time ``until``; on a session that holds nothing."""

    @abstractmethod
    def unlock(self, key: LockKey, shared: bool) -> Flow[bool]:
        """Give the lock back. False if this session did not hold it."""

    @abstractmethod
    def ping(self, until: float) -> Flow[None]:
        """Prove that the session lives."""

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


S = TypeVar("S", bound=Session)


class Sessions(Generic[S]):
    """The sessions of one alias. ``connect(waits, until)`` is a flow that opens one."""

    def __init__(self, connect: Callable[[bool, float], Flow[S]], waiters: int) -> None:
        self._connect = connect
        self._limit = waiters
        self._mutex = threading.Lock()
        self._opening = Turnstile()
        self._shared: S | None = None
        self._idle: list[S] = []
        self._lent: set[S] = set()
        self._places = 0

    def shared(self, until: float) -> Flow[S]:
        """The shared session, opened if need be. StatementTimeout if the deadline passes first."""
        session = self._shared
        if session is not None and session.dead is None:
            return session
        if not (yield Call(self._opening, "acquire", (max(0.0, until - time.monotonic()),))):
            raise StatementTimeout
        try:
            session = self._shared
            if session is None or session.dead is not None:
                if session is not None:
                    self.drop(session)
                session = yield from self._connect(False, until)
                with self._mutex:
                    self._shared = session
            return session
        finally:
            self._opening.release()

    def lend(self, until: float) -> Flow[S | None]:
        """A session to wait on, for the caller alone; None if all are taken."""
        with self._mutex:
            while self._idle:
                session = self._idle.pop()
                session.check()
                if session.dead is None:
                    self._lent.add(session)
                    return session
                self._places -= 1
                session.close()
            if self._places >= self._limit:
                return None
            self._places += 1
        try:
            session = yield from self._connect(True, until)
        except BaseException:
            with self._mutex:
                self._places -= 1
            raise
        with self._mutex:
            self._lent.add(session)
        return session

    def give_back(self, session: S) -> None:
        """A session that was lent and holds nothing any more; a dead one is dropped."""
        session.used_at = time.monotonic()
        with self._mutex:
            if session not in self._lent:
                return
            self._lent.remove(session)
            if session.dead is None and not session.retired:
                self._idle.append(session)
                return
            self._places -= 1
        session.close()

    def drop(self, session: S) -> None:
        """Close a session whatever it holds."""
        session.kill(session.dead or "closed")
        with self._mutex:
            if session is self._shared:
                self._shared = None
            if session in self._lent:
                self._lent.remove(session)
                self._places -= 1
        session.close()

    def retire(self, session: S) -> None:
        """Take no new locks on ``session``; it is closed when its last one is released."""
        with self._mutex:
            session.retired = True
            if session is self._shared:
                self._shared = None
                self._lent.add(session)
                self._places += 1

    def all(self) -> list[S]:
        """Every session that is open, or was until somebody noticed its end."""
        with self._mutex:
            shared = [self._shared] if self._shared is not None else []
            return [*shared, *self._idle, *self._lent]

    def tick(self, now: float) -> float | None:
        """Look after each session, and close those that were idle for too long."""
        for session in self.all():
            session.tick(now)
            if not session.held and now - session.used_at >= IDLE:
                self._close_idle(session)
        return now + TICK if self.all() else None

    def _close_idle(self, session: S) -> None:
        if session in self._lent or not session.turnstile.try_acquire():
            return
        try:
            with self._mutex:
                if session.held or session.orphaned_at is not None:
                    return
                if session is self._shared:
                    self._shared = None
                elif session in self._idle:
                    self._idle.remove(session)
                    self._places -= 1
                else:
                    return
            session.close()
        finally:
            session.turnstile.release()

    def close(self) -> None:
        """Close all of them; what they hold is lost."""
        for session in self.all():
            self.drop(session)
        with self._mutex:
            self._idle.clear()
            self._places = 0

    def abandon(self) -> None:
        """In the child of a fork: the sessions are the parent's, who must not notice."""
        for session in [self._shared, *self._idle, *self._lent]:
            if session is not None:
                session.silence()
        self.__init__(self._connect, self._limit)  # type: ignore[misc]
