"""Connections to Redis: redis-py opens them, with all that it knows of TLS, sockets, Sentinel and credentials, and from
then on the socket is ours.

Three reasons. redis-py retries ten times by default, and a lock command that is sent twice behind our back takes a lock
twice; its asyncio connections belong to one event loop each, while a plain socket is at home in every thread and loop;
and sending apart from receiving lets one caller ask several servers at once. The protocol is RESP3, whose pushes may
come between replies (https://redis.io/docs/latest/develop/reference/protocol-spec/).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency import finalizers
from django_distlock.concurrency.background import Stragglers
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.parking import Parker

from .connection import Connection, ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from .target import Target

# Connections of one process to one server at most; who comes later waits for one, in order of arrival.
MAX_CONNECTIONS = 64
# A connection without a command is closed after this time; seconds.
IDLE = 5.0
# One that was idle for longer than this is looked at before it is used; seconds.
FRESH = 0.5


class Opening:
    """A connection on its way, opened in a thread of its own: no driver keeps a deadline while it looks up a name."""

    def __init__(self, connect: Callable[[float], Any], until: float) -> None:
        self.connection: Connection | None = None
        self.error: BaseException | None = None
        self._parker = Parker()
        left = max(0.01, min(until - monotonic(), IDLE))
        self.thread = threading.Thread(target=self._open, args=(connect, left), name="distlock-redis-open", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # no thread to be had, as at the end of the interpreter
            self._open(connect, left)

    def _open(self, connect: Callable[[float], Any], left: float) -> None:
        try:
            self.connection = Connection(connect(left))
        except BaseException as error:
            self.error = error
        if not self._parker.wake() and self.connection is not None:
            self.connection.close()

    def finish(self, until: float) -> bool:
        """Wait until it is open or has failed; False at the monotonic time ``until``."""
        try:
            return self._parker.park(until - monotonic())
        except BaseException:
            self._leave()
            raise

    async def afinish(self, until: float) -> bool:
        """:meth:`finish` for a task."""
        try:
            return await self._parker.apark(until - monotonic())
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._parker.leave() and self.connection is not None:
            self.connection.close()

    def result(self) -> Connection:
        """The connection, after :meth:`finish` was true. ConnectionFailed if it could not be opened."""
        if self.connection is None:
            raise ConnectionFailed(f"Redis cannot be reached: {self.error}") from self.error
        return self.connection


class Waiter:
    """Who waits for a connection, and is given one, or a place to open one."""

    __slots__ = ("connection", "parker")

    def __init__(self) -> None:
        self.parker = Parker()
        self.connection: Connection | None = None


class Pool:
    """The connections of this process to one server; the one used last is used first."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._guard = threading.Lock()
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._opening = 0
        self._queue: deque[Waiter] = deque()
        self._stragglers = Stragglers()

    def take(self) -> Connection | None:
        """A connection at hand, or None. Never waits."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if monotonic() - connection.used_at < FRESH or not connection.stale():
                return connection
            self.discard(connection)

    def start(self, until: float) -> Opening:
        """Begin to open a connection, in another thread; the caller calls :meth:`adopt` with what comes of it."""
        return Opening(self._target.connect, until)

    def adopt(self, opening: Opening) -> Connection:
        """The connection that was opened. ConnectionFailed if that failed."""
        connection = opening.result()
        with self._guard:
            self._connections.add(connection)
        return connection

    def get(self, until: float) -> Flow[Connection]:
        """A connection at hand, a new one, or the next that is given back, in order of arrival. ConnectionFailed at the
        monotonic time ``until``."""
        connection = self.take()
        if connection is not None:
            return connection
        waiter = self._arrive()
        if waiter is None:
            return (yield from self._opened(until))
        try:
            if not (yield Step(waiter.parker.park, waiter.parker.apark, (until - monotonic(),))):
                raise ConnectionFailed("All connections to Redis are in use.", timed_out=True)
        except BaseException:
            finalizers.now_or_later(self._desert, waiter)
            raise
        return waiter.connection or (yield from self._opened(until))

    link = get  # Redlock still calls it so

    def _arrive(self) -> Waiter | None:
        """None: a place for one more connection; else where to wait for one."""
        with self._guard:
            if not self._queue and len(self._connections) + self._opening < MAX_CONNECTIONS:
                self._opening += 1
                return None
            waiter = Waiter()
            self._queue.append(waiter)
        self._serve()  # one may have been given back just before there was anybody in the queue
        return waiter

    def _desert(self, waiter: Waiter) -> None:
        """Whoever waited has gone: the next one gets what it was given meanwhile."""
        if not waiter.parker.leave():
            with self._guard, contextlib.suppress(ValueError):
                self._queue.remove(waiter)
        elif waiter.connection is not None:
            self.give(waiter.connection)
        else:
            self._unreserve()

    def _opened(self, until: float) -> Flow[Connection]:
        try:
            if (reason := self._stragglers.refuse()) is not None:
                raise ConnectionFailed(f"Redis cannot be reached: {reason}")
            opening = self.start(until)
            finished = False
            try:
                finished = yield Step(opening.finish, opening.afinish, (until,))
            finally:
                if not finished:
                    self._stragglers.add(opening.thread)
            if not finished:
                raise ConnectionFailed("Redis could not be reached in time.", timed_out=True)
            return self.adopt(opening)
        finally:
            self._unreserve()

    def _unreserve(self) -> None:
        with self._guard:
            self._opening -= 1
        self._serve()

    def give(self, connection: Connection) -> None:
        """Back into the pool, or closed if anything is still on its way."""
        if not connection.clean or connection not in self._connections:  # closed meanwhile with all others
            self.discard(connection)
            return
        connection.used_at = monotonic()
        connection.pushes.clear()
        self._idle.append(connection)
        if self._queue:
            self._serve()

    def discard(self, connection: Connection) -> None:
        """Close a connection."""
        with self._guard:
            self._connections.discard(connection)
        connection.close()
        if self._queue:
            self._serve()

    def _serve(self) -> None:
        """Hand the connections at hand, or places for new ones, to the waiters in order. Waiters that were merely woken
        could be overtaken by the caller that has just given a connection back."""
        with self._guard:
            while self._queue:
                waiter = self._queue[0]
                try:
                    waiter.connection = self._idle.pop()
                except IndexError:
                    if len(self._connections) + self._opening >= MAX_CONNECTIONS:
                        return
                self._queue.popleft()
                if waiter.connection is None:
                    self._opening += 1
                if waiter.parker.wake():
                    continue
                if waiter.connection is None:
                    self._opening -= 1
                else:
                    self._idle.append(waiter.connection)

    @property
    def ready_at(self) -> float:
        """When it was known how to connect: importing the driver takes longer than a caller who does not wait has. That
        is made up for, once."""
        if not self._target.resolved_at:
            with contextlib.suppress(Exception):  # told when a connection is opened
                self._target.resolve()
        return self._target.resolved_at

    @property
    def is_open(self) -> bool:
        """Is there any connection?"""
        return bool(self._connections)

    @property
    def size(self) -> int:
        """How many connections there are, those included that are being opened."""
        return len(self._connections) + self._opening

    def close_idle(self, now: float) -> None:
        """Close the connections that had no command for IDLE seconds."""
        while self._idle:
            try:
                connection = self._idle.pop(0)
            except IndexError:
                return
            if now - connection.used_at < IDLE:
                self._idle.insert(0, connection)
                return
            self.discard(connection)

    def discard_idle(self) -> None:
        """Close the connections that nobody uses, because the server behind them is the wrong one."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self.discard(self._idle.pop())

    def close(self) -> None:
        """Close every connection; who waits on one gets a ConnectionFailed. The next command opens another."""
        with self._guard:
            connections, self._connections = self._connections, set()
        idle, self._idle = self._idle, []
        for connection in connections:
            connection.close() if connection in idle else connection.cut()

    def abandon(self) -> None:
        """In the child of a fork: the connections are the parent's, who must not notice."""
        for connection in self._connections:
            connection.close()
        self.__init__(self._target)  # type: ignore[misc]


# Names that Redlock still uses.
Link = Connection
LinkError = ConnectionFailed
