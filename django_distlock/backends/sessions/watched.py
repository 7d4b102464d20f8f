"""A session beside Django's whose statements are watched: the keepalive thread ends one that hangs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from django_distlock.concurrency import clock

if TYPE_CHECKING:
    from django_distlock.backends.side_connection import SideConnection
    from django_distlock.records import Claim

    from .reply import Reply

HUNG = "a statement hung"


class SessionDead(Exception):
    """The session has ended; every lock on it is lost."""


class WatchedSession:
    """One connection to the server. ``mutex`` is held for each statement, and to close the connection: a driver crashes
    if its connection is closed while another thread reads from it."""

    def __init__(self, connection: SideConnection, waits: bool = False) -> None:
        self.connection = connection
        self.mutex = threading.Lock()
        #: Is it one of those that are lent to callers that wait for a busy lock, and has a caller got it?
        self.waits, self.lent = waits, False
        #: What is held on it, or asked for, by the id() of the claim: two callers may make equal claims.
        self.claims: dict[int, Claim] = {}
        #: Why it has ended; None while it lives.
        self.dead: str | None = None
        self.used_at = clock.now()
        # when the statement that runs now must have ended
        self.due: float | None = None
        # the reply to a statement that was sent by itself, until it is read
        self.unread: Reply | None = None

    def kill(self, reason: str) -> None:
        """Declare the session dead and end the statement that hangs on it; from any thread."""
        self.dead = self.dead or reason
        self.connection.cut()

    def close(self) -> bool:
        """Close the connection. False while a statement runs on it."""
        if self.mutex.locked():
            return False
        with self.mutex:  # an interrupt between an acquire() and its try would leave it locked
            self._close("closed")
        return True

    def close_if_unused(self) -> bool:
        """:meth:`close`, unless a claim has come."""
        if self.mutex.locked():
            return False
        with self.mutex:
            if self.claims or self.unread:
                return False
            self._close("closed")
        return True

    def _close(self, reason: str) -> None:
        self.dead = self.dead or reason
        if self.unread is not None:
            self.unread.finish(None, SessionDead(self.dead))
            self.unread = None
        self.connection.close()

    def abandon(self) -> None:
        """In the child of a fork: leave the parent's connection alone."""
        self.dead = "fork"
        if self.unread is not None:
            self.unread.forget()
        if self.connection.wrapper.connection is not None:
            self.connection.abandon(self._driver_fd())

    def _driver_fd(self) -> int:
        """The descriptor that the driver has open; -1 if it has closed it."""
        return self.connection.fd

    def tick(self, now: float) -> None:
        """Called by the keepalive thread, which is not kept waiting by a server."""
        due = self.due
        if due is not None and now >= due and self.due == due:
            self.kill(HUNG)
