"""Dedicated sessions for database locks: one that all locks of the process share, and a few to wait on.

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
from django_distlock.concurrency.parking import FairLock

from .session import STATEMENT_LIMIT, Session, StatementTimeout, locked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from django_distlock.concurrency.parking import Turn

# The locks that one shared session holds before another is opened. PostgreSQL walks all locks of a session at the end
# of each of its transactions: with 900 of them a statement takes twice as long.
LOCKS_PER_SESSION = 128

S = TypeVar("S", bound=Session)
T = TypeVar("T")


class Sessions(Generic[S]):
    """The sessions of one alias. ``connect(waits, until)`` opens one; ``opened()`` is called after it,
    so that the keepalive thread ticks."""

    def __init__(self, connect: Callable[[bool, float], Awaitable[S]], opened: Callable[[], object]) -> None:
        self._connect = connect
        self._opened = opened
        self._mutex = threading.Lock()
        self._opening = FairLock()
        #: The shared session, if it is open.
        self.open_shared: S | None = None
        self._idle: list[S] = []
        self._lent: set[S] = set()
        self._retired: set[S] = set()  # take no new locks
        self._closing: set[S] = set()  # to be closed once no statement runs on them

    def ready_to_wait(self) -> tuple[S, Turn] | None:
        """A session to wait on, and the turn that has its mutex, if one is idle."""
        with self._mutex:
            if not self._idle:
                return None
            session = self._idle[-1]
            if session.dead is not None or session.orphaned_at is not None:
                return None
            turn = session.mutex.try_turn()
            if turn is None:
                return None
            self._lend(session)
            self._idle.pop()
            return session, turn

    def _lend(self, session: S) -> None:
        # added to the new set before it leaves the old one, so that an interrupt never leaves the session in neither
        session.used_at = clock.now()
        self._lent.add(session)

    def usable(self) -> S | None:
        """The shared session, if it is open and takes more locks."""
        session = self.open_shared
        if session is None or session.dead is not None or len(session.held) >= LOCKS_PER_SESSION:
            return None
        return session

    async def shared(self, until: float) -> S:
        """The shared session, opened if need be. StatementTimeout if the deadline passes first."""
        full = self.open_shared
        session = self.usable()
        if session is not None:
            return session
        if full is not None and full.dead is None:
            self.retire(full)
        return await locked(self._opening, until - clock.now(), self._open_shared, until)

    async def _open_shared(self, until: float) -> S:
        session = self.open_shared
        if session is not None and session.dead is None:
            return session
        if session is not None:
            self.drop(session)
        session = await self._connect(False, until)
        with self._mutex:
            self.open_shared = session
        self._opened()
        return session

    async def lend(self, until: float) -> S:
        """A session to wait on, for the caller alone."""
        with self._mutex:
            while self._idle:
                session = self._idle[-1]
                self._lend(session)
                self._idle.pop()
                if session.dead is None:
                    return session
                self._forget(session)
                self._closing.add(session)
        session = await self._connect(True, until)
        with self._mutex:
            self._lend(session)
        self._opened()
        return session

    def give_back(self, session: S) -> None:
        """Take back a session that holds no lock. It is closed if it is dead or retired."""
        session.used_at = clock.now()
        with self._mutex:
            if session in self._lent and session.dead is None:
                self._idle.append(session)
                self._lent.remove(session)
                return
        self.drop(session)

    async def aside(self, work: Callable[[S], Awaitable[T]], until: float) -> T:
        """Do ``work`` on a session that holds nothing: a statement that takes long, or hangs, costs no lock."""
        session = await self.lend(until)
        try:
            return await locked(session.mutex, until - clock.now(), work, session)
        except StatementTimeout:
            session.kill("a statement hung")
            raise
        finally:
            self.give_back(session)

    def drop(self, session: S) -> None:
        """End a session and lose what it holds. It is closed once no statement runs on it: a driver crashes if its
        connection is closed while another thread reads from it."""
        session.kill(session.dead or "closed")
        with self._mutex:
            self._forget(session)
            self._closing.add(session)
        self._close_dropped()

    def _forget(self, session: S) -> None:
        if session is self.open_shared:
            self.open_shared = None
        self._retired.discard(session)
        if session in self._idle or session in self._lent:
            self._lent.discard(session)
            if session in self._idle:
                self._idle.remove(session)

    def _close_dropped(self) -> None:
        with self._mutex:
            closing = list(self._closing)
        for session in closing:
            turn = session.mutex.try_turn()
            if turn is not None:
                try:
                    session.close()
                finally:
                    turn.release()
            elif clock.now() < session.dead_at + STATEMENT_LIMIT:
                continue
            # else an interrupt has lost the mutex: the connection closes when no thread refers to it
            with self._mutex:
                self._closing.discard(session)

    def retire(self, session: S) -> None:
        """Take no new locks on the shared session; it is closed when its last one is released."""
        with self._mutex:
            if session is self.open_shared:
                session.retired = True
                self.open_shared = None
                self._retired.add(session)

    def all(self) -> list[S]:
        """Every session that is open, as far as this process knows."""
        with self._mutex:
            return self._all()

    def _all(self) -> list[S]:
        shared = [self.open_shared] if self.open_shared is not None else []
        return [*shared, *self._idle, *self._lent, *self._retired, *self._closing]

    def heard_since(self, when: float) -> bool:
        """Has the server replied on any session since the monotonic time ``when``?"""
        return any(session.replied_at >= when for session in self.all())

    def tick(self, now: float) -> float | None:
        """Watch over each session; close the dead ones and those that were idle for IDLE seconds."""
        self._close_dropped()
        for session in self.all():
            session.tick(now)
            if session.dead is not None:
                self.drop(session)
            elif not session.held and now - session.used_at >= IDLE:
                self._close_idle(session)
        return now + TICK if self.all() else None

    def _close_idle(self, session: S) -> None:
        turn = session.mutex.try_turn()
        if turn is None:
            return
        try:
            with self._mutex:
                if session.held or session.orphaned_at is not None:
                    return
                self._forget(session)  # also one that is lent: its mutex is free, so an interrupt has lost it
            session.close()
        finally:
            turn.release()

    def close(self) -> None:
        """Close all sessions; what they hold is lost."""
        for session in self.all():
            self.drop(session)

    def abandon(self) -> None:
        """In the child of a fork: the sessions are the parent's, which must not notice."""
        for session in self._all():  # without the mutex, which another thread of the parent may have held
            session.abandon()
        self.__init__(self._connect, self._opened)  # type: ignore[misc]
