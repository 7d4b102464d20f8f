"""The connections of this process to one server, and the callers that wait for one.

A connection is redis-py's own, on a socket that never blocks.

redis-py connects, logs in, encrypts and parses. The waiting is done here: redis-py knows no deadlines, and its asyncio
connections belong to one event loop each, while a socket serves every thread and loop. Nothing is retried: a command
that is sent twice unnoticed takes a lock twice. The protocol is RESP3, whose pushes may come between replies
(https://redis.io/docs/latest/develop/reference/protocol-spec/).
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import ssl
import struct
import threading
import uuid
from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from django_distlock.backends.base import IDLE
from django_distlock.backends.redis.target import WrongTarget, clustered
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.flow import in_task
from django_distlock.concurrency.parking import Parker
from django_distlock.concurrency.sockets import LONGEST_POLL, ready, shut

if TYPE_CHECKING:
    from django_distlock.backends.redis.target import Target

# Connections of one process to one server at most; later callers wait for one, in order of arrival.
MAX_CONNECTIONS = 64
# A connection that was idle for longer than this is checked before it is used; seconds.
FRESH = 0.5
# TCP keepalive: a waiter is silent for long and must notice when the network has forgotten its connection. Seconds, and
# the number of probes. macOS calls the first one TCP_KEEPALIVE.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
# SO_LINGER with no time (socket(7)): closing drops what the network has not delivered.
DROP = struct.pack("ii", 1, 0)
# What a socket that never blocks raises when there is nothing to read.
_NOTHING_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# redis-py strips the code from the text of the errors that it knows.
_CODES = {
    "NoScriptError": "NOSCRIPT",
    "ReadOnlyError": "READONLY",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "ClusterDownError": "CLUSTERDOWN",
    "ClusterCrossSlotError": "CROSSSLOT",
}


class _Reply(Enum):
    PENDING = auto()


# There is no whole reply yet.
PENDING: Final = _Reply.PENDING


class Push(list[Any]):
    """A message that the server sends unasked: ``[b"message", channel, payload]``."""


class ConnectionFailed(Exception):
    """A server was not reached, or sent no reply. ``uncertain``: it may have executed the command, or may do so later.
    The error of the driver or of the socket is the ``__cause__``."""

    def __init__(self, message: str, *, uncertain: bool = False, timed_out: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain
        self.timed_out = timed_out


def pack(*parts: bytes | str | int) -> bytes:
    """One command as it goes over the wire. str is sent as UTF-8."""
    return b"*%d\r\n" % len(parts) + pack_words(*parts)


def pack_words(*parts: bytes | str | int) -> bytes:
    """The words of a command, without their number."""
    packed = b""
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        packed += b"$%d\r\n%b\r\n" % (len(raw), raw)
    return packed


def reply_code(reply: object) -> str:
    """The first word of an error reply, such as NOSCRIPT or MOVED; empty if ``reply`` is a value."""
    if not isinstance(reply, Exception):
        return ""
    return _CODES.get(type(reply).__name__) or str(reply).partition(" ")[0]


def _parser() -> Any:
    """The fastest parser that tells pushes from replies: hiredis from 3.2 on with redis-py from 6.0 on."""
    from redis._parsers import _RESP3Parser
    from redis.connection import DefaultParser

    with contextlib.suppress(ImportError):
        from hiredis import PushNotification  # noqa: F401

        if hasattr(DefaultParser, "set_pubsub_push_handler"):
            return DefaultParser
    return _RESP3Parser


def timed_out(error: BaseException | None) -> bool:
    """Is ``error`` a timeout of redis-py or of a socket?"""
    kinds: list[type[BaseException]] = [TimeoutError]
    with contextlib.suppress(ImportError):
        from redis.exceptions import TimeoutError as RedisTimeout

        kinds.append(RedisTimeout)
    return isinstance(error, tuple(kinds))


class ClusterNode(WrongTarget):
    """The server is a node of a Redis Cluster: it has the names of its slots, and refuses all others."""

    def __init__(self) -> None:
        super().__init__(
            "A node of a Redis Cluster has only a part of the names, and refuses the others. Use a server without "
            "cluster mode: several independent ones for Redlock, or the cluster for the backend of Redis."
        )


class Connection:
    """A connection, used by one thread or task at a time. After ConnectionFailed it can only be closed.

    ``send`` never waits; ``receive`` returns the replies in order. ``owed`` counts the replies that have not come yet:
    a connection with any of them must not go back into the pool.
    """

    def __init__(self, driver: Any) -> None:
        """``driver``: a connected ``redis.Connection`` that speaks RESP3."""
        sock: socket.socket = driver._sock
        sock.settimeout(0)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE.items():
                if hasattr(socket, option):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        parser = driver._parser
        handle_pushes = getattr(parser, "set_pubsub_push_handler", None) or parser.set_push_handler  # redis-py 5.0
        handle_pushes(Push)
        self._driver = driver
        self._sock = sock
        self._read = parser.read_response
        self.fd = sock.fileno()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._first = b""
        self.owed = 0
        # True while the next reply cannot have been read together with an earlier one
        self._fresh = False
        self.pushes: deque[Push] = deque()
        # the channel on which a waiter with this connection is handed the lock
        self.channel = b"distlock:" + uuid.uuid4().hex.encode()
        self.subscribed = self._joining = False
        self.used_at = clock.now()

    def fileno(self) -> int:
        return self.fd

    def subscribe(self) -> bytes:
        """Have the next :meth:`send` subscribe to the channel first that is returned, unless that has been done.

        The server confirms it by a push, or refuses it by an error ahead of the replies.
        """
        if not self.subscribed:
            self.subscribed = self._joining = True
            self._first = pack("SUBSCRIBE", self.channel)
        return self.channel

    def send(self, *commands: bytes) -> None:
        """Write packed commands. What the socket cannot take at once is an error: the server reads nothing."""
        data = commands[0] if len(commands) == 1 else b"".join(commands)
        if self._first:
            data, self._first = self._first + data, b""
        self._fresh = not self.owed
        self.owed += len(commands)
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise ConnectionFailed(
                f"The connection to Redis was lost: {error}", uncertain=self.owed > len(commands)
            ) from error

    def take(self) -> Any:
        """The next reply, or PENDING if it has not come yet; pushes go to ``pushes``. Never waits.

        An error reply is returned, not raised: an instance of ``redis.exceptions.ResponseError``.
        """
        while type(value := self._next()) is Push:
            self.pushes.append(value)
        if value is PENDING:
            return PENDING
        if self._joining:  # taken for a reply it would shift all that follow
            raise ConnectionFailed(f"Redis does not let us listen: {value}", uncertain=True)
        self.owed -= 1
        return value

    def _next(self) -> Any:
        """The next reply or push, or PENDING."""
        try:
            value = self._read(True, True)  # bytes are not decoded, and a push is returned by itself
        except Exception as error:
            if isinstance(error.__context__, _NOTHING_YET):  # the parser keeps what it has read
                return PENDING
            raise ConnectionFailed(f"The connection to Redis was lost: {error}", uncertain=self.owed > 0) from error
        if type(value) is Push:
            self._joining = False
        return value

    def receive(self, until: float) -> Any:
        """:meth:`take`, waiting until the monotonic time ``until``. ConnectionFailed if no reply comes by then."""
        value = PENDING if self._fresh else self.take()
        self._fresh = False
        while value is PENDING:
            if not self._wait(until):
                raise self._silent()
            value = self.take()
        return value

    async def areceive(self, until: float) -> Any:
        """:meth:`receive` for threads and tasks. Cancelled, the connection can be used on: the reply is still owed."""
        if not in_task():
            return self.receive(until)
        while (value := self.take()) is PENDING:  # at once: a turn of the event loop costs more than a read in vain
            if not await ready(self.fd, False, until):
                raise self._silent()
        return value

    def listen(self, until: float) -> Push | None:
        """The next push, None at the monotonic time ``until``. Replies must not be owed."""
        while not self._heard():
            if not self._wait(until):
                return None
        return self.pushes.popleft()

    async def alisten(self, until: float) -> Push | None:
        """:meth:`listen` for threads and tasks."""
        if not in_task():
            return self.listen(until)
        while not self._heard():
            if not await ready(self.fd, False, until):
                return None
        return self.pushes.popleft()

    def _heard(self) -> bool:
        """Is there a push? What follows it is not read: a waiter that is handed the lock has no time for that."""
        while not self.pushes:
            value = self._next()
            if type(value) is not Push:
                if value is PENDING:
                    return False
                raise ConnectionFailed("Redis sent a reply without a command.")
            self.pushes.append(value)
        return True

    def _wait(self, until: float) -> bool:
        left = until - clock.now()
        if left > LONGEST_POLL:
            return bool(self._poll.poll(None))
        # rounded up: a poll that comes back early would be taken for the deadline
        return bool(self._poll.poll(math.ceil(left * 1000) if left > 0 else 0))

    def _silent(self) -> ConnectionFailed:
        return ConnectionFailed("Redis did not answer in time.", uncertain=True, timed_out=True)

    @property
    def clean(self) -> bool:
        """Is no reply on its way?"""
        return not self.owed and self.fd >= 0

    def stale(self) -> bool:
        """Has the server closed the connection, or sent a reply without a command?"""
        try:
            return self.take() is not PENDING
        except ConnectionFailed:
            return True

    def cut(self) -> None:
        """End the conversation from any thread: a caller that waits on it gets ConnectionFailed."""
        if self.fd >= 0:
            shut(self.fd)

    def close(self) -> None:
        """Close this process's end. After a fork, the connection of the parent is not touched.

        A request without a reply that the network has not delivered yet is dropped. TCP would deliver it when a broken
        network is whole again, long after the clean-up has undone it.
        """
        self.fd = -1
        if self.owed and self._driver.pid == os.getpid():
            with contextlib.suppress(OSError):  # some systems refuse it for a socket that was reset
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, DROP)
        with contextlib.suppress(Exception):
            self._driver.disconnect()


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
            if clock.now() - connection.used_at < FRESH or not connection.stale():
                return connection
            self.discard(connection)

    def open(self, timeout: float) -> None:
        """Open a connection in this thread and add it to the idle ones. Raises the driver's errors."""
        connection = self._connect(timeout)
        with self._guard:
            self._connections.add(connection)
        self.give(connection)

    async def get(self, until: float) -> Connection:
        """An idle connection, a new one, or the next that is returned, in order of arrival. ConnectionFailed at the
        monotonic time ``until``."""
        connection = self.take()
        if connection is not None:
            return connection
        waiter = self._arrive()
        if waiter is None:
            return await self._opened(until)
        try:
            if not await waiter.parker.park(until - clock.now()):
                raise ConnectionFailed("All connections to Redis are in use.", timed_out=True)
        except BaseException:
            leftovers.now_or_later(self._desert, waiter)
            raise
        return waiter.connection or await self._opened(until)

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

    async def _opened(self, until: float) -> Connection:
        """A new connection, in the place that the caller has reserved."""
        left = max(0.01, min(until - clock.now(), IDLE))
        try:
            try:
                connection = await self._background.call(until, self._connect, left, dispose=Connection.close)
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
        driver = self._target.connect(timeout, parser_class=_parser())
        if clustered(driver):
            driver.disconnect()
            raise ClusterNode
        return Connection(driver)

    def _unreserve(self) -> None:
        with self._guard:
            self._opening -= 1
        self._serve()

    def give(self, connection: Connection) -> None:
        """Take a connection back, or close it if a reply is still on its way."""
        if not connection.clean or connection not in self._connections:  # the pool has closed it
            self.discard(connection)
            return
        connection.used_at = clock.now()
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
            self._serve_in_order()

    def _serve_in_order(self) -> None:
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
