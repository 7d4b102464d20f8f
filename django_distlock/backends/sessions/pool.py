"""The lock sessions of one process and alias: one that all locks share, and a few to wait on.

A session lock must not live on a request's connection: ``close_old_connections()`` loses it, a connection pool hands it
to the next request, an aborted transaction cannot release it, and a second task on that connection gets in. So the
locks of a process live on dedicated sessions, outside Django's connection handler.

A free lock is taken on the shared session. A busy lock is waited for on a session from a small set, and stays there
while it is held. A session that holds for one owner never waits for another.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from django_distlock.backends.base import IDLE, TICK
from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background, SharedCall

from .watched import WatchedSession

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S", bound=WatchedSession)


class Sessions(Generic[S]):
    """The sessions of one alias. ``connect(waits)`` opens one, in a thread of its own: no driver keeps a deadline while
    it connects. ``on_open()`` is called after it, so that the keepalive thread ticks."""

    def __init__(self, alias: str, connect: Callable[[bool], S], on_open: Callable[[], object]) -> None:
        self._alias = alias
        self._connect = connect
        self._on_open = on_open
        self._guard = threading.Lock()
        self._background = Background(f"distlock-{alias}-connect")
        self._opening = SharedCall(f"distlock-{alias}-connect", self._open_shared)
        #: The shared session if it was opened; it may be dead.
        self.shared_session: S | None = None
        self._all: list[S] = []
        # rises when all are closed: what was being opened then is closed, too
        self._closings = 0

    async def shared(self, until: float) -> S:
        """The shared session, opened if need be. CallTimeout at the monotonic time ``until``, NotStarted."""
        session = self.shared_session
        return session if session is not None and session.dead is None else await self._opening.result(until)

    async def lend(self, until: float) -> S:
        """A session to wait on, for the caller alone. CallTimeout, NotStarted."""
        while (session := self._take_idle()) is None:
            await self._background.call(until, self._open, True)  # then take it, unless another caller was faster
        return session

    def _open_shared(self) -> S:
        session = self.shared_session
        if session is None or session.dead is not None:
            session = self.shared_session = self._open(False)
        return session

    def _open(self, waits: bool) -> S:
        closings = self._closings
        session = self._connect(waits)
        with self._guard:
            self._all.append(session)
        if closings != self._closings:
            self.drop(session)
        self._on_open()
        return session

    def _take_idle(self) -> S | None:
        with self._guard:
            session = self._find_idle()  # no loop in here: see manager/lock_table.py
            if session is not None:
                session.used_at, session.lent = clock.now(), True
            return session

    def _find_idle(self) -> S | None:
        for session in reversed(self._all):
            if session.waits and not session.lent and session.dead is None and not session.unread:
                return session
        return None

    def give_back(self, session: S) -> None:
        """Take back a session to wait on, which holds no lock. It is closed if it is dead."""
        session.used_at = clock.now()
        if session.dead is not None:
            self.drop(session)
        session.lent = False

    def drop(self, session: S) -> None:
        """End a session and lose what it holds; it is closed once no statement runs on it."""
        session.kill(session.dead or "closed")
        if session.close():
            self._forget(session)

    def _forget(self, session: S) -> None:
        with self._guard:
            if session is self.shared_session:
                self.shared_session = None
            if session in self._all:
                self._all.remove(session)

    def all(self) -> list[S]:
        """Every session that is open, as far as this process knows."""
        with self._guard:
            return list(self._all)

    def tick(self, now: float) -> float | None:
        """Watch over each session; close the dead ones and those that were idle for IDLE seconds. The time of the next
        call: in a TICK, or when a statement that runs now must have ended."""
        for session in self.all():
            session.tick(now)
            if session.dead is not None:
                self.drop(session)
            elif not session.claims and now - session.used_at >= IDLE and session.close_if_unused():
                self._forget(session)
        due = [now + TICK, *(session.due for session in self.all() if session.due is not None and session.due > now)]
        return min(due) if self._all else None

    def close(self) -> None:
        """Close all sessions; what they hold is lost."""
        self._closings += 1
        for session in self.all():
            self.drop(session)

    def abandon(self) -> None:
        """In the child of a fork: the sessions are the parent's, which must not notice."""
        for session in self._all:  # without the guard, which another thread of the parent may have held
            session.abandon()
        self.__init__(self._alias, self._connect, self._on_open)  # type: ignore[misc]
