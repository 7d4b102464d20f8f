"""The connections of this process to one server, and the callers that wait for one."""

from __future__ import annotations

import contextlib
import itertools
import threading
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

from django_distlock.backends.base import IDLE
from django_distlock.concurrency import finalizers
from django_distlock.concurrency.abandoned_calls import Background, CallTimeout, NotStarted
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.parking import Parker

from .connection import Connection, ConnectionFailed

if TYPE_CHECKING:
    from .target import Target

# Connections of one process to one server at most; later callers wait for one, in order of arrival.
MAX_CONNECTIONS = 64
# A connection that was idle for longer than this is checked before it is used; seconds.
FRESH = 0.5


class ConnectionWaiter:
    """A caller that waits for a connection. It is handed one, or else a place to open one."""

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
        self._queue: deque[ConnectionWaiter] = deque()
        self._background = Background("distlock-redis-open")

    def take(self) -> Connection | None:
        """An idle connection, or None. Never waits."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if monotonic() - connection.used_at < FRESH or not connection.stale():
                return connection
            self.discard(connection)

    def open(self, timeout: float) -> None:
        """Open a connection in this thread and add it to the idle ones. Raises the driver's errors."""
        connection = self._connect(timeout)
        with self._guard:
            self._connections.add(connection)
        self.give(connection)

    def get(self, until: float) -> Flow[Connection]:
        """An idle connection, a new one, or the next that is returned, in order of arrival. ConnectionFailed at the
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

    def _arrive(self) -> ConnectionWaiter | None:
        """Reserve a place for a new connection, and return None; or else queue for one."""
        with self._guard:
            if not self._queue and len(self._connections) + self._opening < MAX_CONNECTIONS:
                self._opening += 1
                return None
            waiter = ConnectionWaiter()
            self._queue.append(waiter)
        self._serve()  # a connection may have been given back just before the queue had a waiter
        return waiter

    def _desert(self, waiter: ConnectionWaiter) -> None:
        """Hand the connection or the place of a waiter that has left to the next one."""
        if not waiter.parker.leave():
            with self._guard, contextlib.suppress(ValueError):
                self._queue.remove(waiter)
        elif waiter.connection is not None:
            self.give(waiter.connection)
        else:
            self._unreserve()

    def _opened(self, until: float) -> Flow[Connection]:
        """A new connection, in the place that the caller has reserved."""
        left = max(0.01, min(until - monotonic(), IDLE))
        try:
            try:
                connection = yield from self._background.call(until, self._connect, left, dispose=Connection.close)
            except NotStarted as error:
                if error.__cause__ is None:  # too many attempts are under way
                    raise
                connection = self._connect(left)  # there is no thread, as at the end of the interpreter
            with self._guard:
                self._connections.add(connection)
            return connection
        except CallTimeout:
            raise ConnectionFailed("Redis could not be reached in time.", timed_out=True) from None
        except Exception as error:
            raise ConnectionFailed(f"Redis cannot be reached: {error}") from error
        finally:
            self._unreserve()

    def _connect(self, timeout: float) -> Connection:
        return Connection(self._target.connect(timeout))

    def _unreserve(self) -> None:
        with self._guard:
            self._opening -= 1
        self._serve()

    def give(self, connection: Connection) -> None:
        """Take a connection back, or close it if a reply is still on its way."""
        if not connection.clean or connection not in self._connections:  # the pool has closed it
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
        """When the driver was imported, which takes longer than a caller that does not wait has. It is made up for,
        once."""
        if not self._target.resolved_at:
            with contextlib.suppress(Exception):  # raised again when a connection is opened
                self._target.resolve()
        return self._target.resolved_at

    @property
    def is_open(self) -> bool:
        """Is there a connection?"""
        return bool(self._connections)

    @property
    def size(self) -> int:
        """The number of connections, those included that are being opened."""
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
        """Close the connections that are not in use, because the server behind them is the wrong one."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self.discard(self._idle.pop())

    def close(self) -> None:
        """Close every connection; a caller that waits on one gets ConnectionFailed. The next command opens another."""
        with self._guard:
            connections, self._connections = self._connections, set()
        idle, self._idle = self._idle, []
        for connection in connections:
            connection.close() if connection in idle else connection.cut()

    def abandon(self) -> None:
        """In the child of a fork: leave the connections to the parent, which must not notice."""
        for connection in self._connections:
            connection.close()
        self.__init__(self._target)  # type: ignore[misc]


class Place:
    """One of :class:`Places`, or a request for one.

    The caller creates it first and leaves it last, so that an interrupt cannot lose it.
    """

    __slots__ = ("number", "parker")

    def __init__(self, number: int) -> None:
        self.number = number
        self.parker: Parker | None = None


class Places:
    """``size`` places for the waiters of this process at a server, given in order of arrival.

    Callers without a place wait here.
    """

    def __init__(self, size: int) -> None:
        self._guard = threading.Lock()
        self._size = size
        self._taken: set[Place] = set()
        self._queue: list[Place] = []
        self._numbers = itertools.count()

    def new(self) -> Place:
        """A place for a caller that arrives now. The caller must leave it in any case."""
        return Place(next(self._numbers))

    def take(self, place: Place) -> bool:
        """Take the place if there is room and no other caller waits. True if taken."""
        with self._guard:
            if len(self._taken) >= self._size or self._queue:
                return False
            self._taken.add(place)
            return True

    def enter(self, place: Place, timeout: float) -> Flow[bool]:
        """Wait for at most ``timeout`` seconds. True if taken. After an exception the caller leaves."""
        place.parker = parker = Parker()
        with self._guard:
            if len(self._taken) < self._size:
                self._taken.add(place)
                return True
            insort(self._queue, place, key=lambda place: place.number)
        if (yield Step(parker.park, parker.apark, (timeout,))):
            return True
        self.leave(place)
        return False

    def leave(self, place: Place) -> None:
        """Give the place to the first waiter. Leaving twice, or without having taken it, is harmless."""
        try:
            self._leave(place)
        except BaseException:  # interrupted by Ctrl-C: the second call does the rest
            self._leave(place)
            raise

    def left_behind(self, place: Place) -> None:
        """:meth:`leave` after any exception, including one raised by the garbage collector."""
        finalizers.now_or_later(self.leave, place)

    def _leave(self, place: Place) -> None:
        with self._guard:
            if place in self._queue:
                self._queue.remove(place)
            self._taken.discard(place)
            while self._queue and len(self._taken - {self._queue[0]}) < self._size:
                head = self._queue[0]
                self._taken.add(head)
                if head.parker is None or not head.parker.wake():
                    self._taken.discard(head)
                self._queue.pop(0)
