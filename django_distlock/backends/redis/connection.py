"""One connection to a Redis server: redis-py's own, on a socket that never blocks.

redis-py connects, logs in and encrypts. The waiting is done here: redis-py knows no deadlines, and its asyncio
connections belong to one event loop each, while a socket serves every thread and loop. So is the reading: the replies
of our scripts are numbers, and redis-py's parsers differ in what they do on such a socket.
"""

from __future__ import annotations

import contextlib
import select
import ssl
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import in_task
from django_distlock.concurrency.sockets import noticed, ready, shut

if TYPE_CHECKING:
    import socket

    from .scripts import Request

# A connection that owes a reply for longer than this is closed before it is used. Seconds.
FRESH = 0.5
# So many scripts a second are sent as a whole though nobody reads their replies; more would fill the socket.
FLOOD = 200
# Bytes that are read at once.
SIZE = 65536
# What a socket that never blocks raises when there is nothing to read.
_NOTHING_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Reply(Enum):
    PENDING = auto()


# There is no whole reply yet.
PENDING: Final = _Reply.PENDING


class ConnectionFailed(Exception):
    """A server was not reached, refused the request, or sent no reply. ``silent``: there was no reply in time. The
    error of redis-py or of the socket is the ``__cause__``."""

    def __init__(self, message: str, *, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent


class ErrorReply(Exception):
    """The server's refusal. ``code``: its first word, such as NOSCRIPT."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


def frame(data: bytes, at: int) -> tuple[Any, int] | None:
    """The value that begins at ``data[at]``, and where it ends; None if it is not complete. An error is returned.

    https://redis.io/docs/latest/develop/reference/protocol-spec/
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind, rest = data[at : at + 1], data[at + 1 : end]
    end += 2
    if kind == b":":
        return int(rest), end
    if kind == b"-":
        return ErrorReply(rest.decode("utf-8", "replace")), end
    if kind in (b"*", b">"):
        values = []
        for _ in range(int(rest)):
            found = frame(data, end)
            if found is None:
                return None
            values.append(found[0])
            end = found[1]
        return values, end
    if kind == b"$":
        stop = end + int(rest)
        return (data[end:stop], stop + 2) if len(data) >= stop + 2 else None
    return rest, end


class Wire:
    """The socket of a connection of redis-py that has logged in, on which we speak ourselves. Nothing here waits."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._sock: socket.socket = driver._sock
        self._sock.settimeout(0)
        self.fd = self._sock.fileno()
        self._watch = select.poll()
        self._watch.register(self.fd, select.POLLIN)
        self._unread = b""
        # scripts that the server has got on this connection
        self._known: set[str] = set()
        # requests whose replies nobody reads: how many, in the second that began then (monotonic)
        self._unheard, self._unheard_since = 0, 0.0

    def last(self, request: Request) -> bytes:
        """A request whose reply nobody reads: as a whole, because the server may have forgotten a script that it got
        (SCRIPT FLUSH; Redis 7.4 keeps 500), unless it has got very many just now."""
        now = clock.now()
        if now - self._unheard_since > 1.0:
            self._unheard, self._unheard_since = 0, now
        self._unheard += 1
        packed = self.script(request)
        return request.whole if self._unheard <= FLOOD else packed

    def script(self, request: Request) -> bytes:
        """A request whose refusal is heard in time, or does no harm: as a whole, unless the server has got the script
        on this connection."""
        packed = request.packed if request.script.sha in self._known else request.whole
        self._known.add(request.script.sha)
        return packed

    def write(self, data: bytes) -> None:
        """What the socket cannot take at once is an error: the server reads nothing."""
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def next(self) -> Any:
        """The next value, or PENDING."""
        while True:
            try:
                found = frame(self._unread, 0) if self._unread else None
                if found is not None:
                    break
                data = self._sock.recv(SIZE)
            except _NOTHING_YET:
                return PENDING
            except (OSError, ValueError) as error:  # ValueError: it is not Redis that speaks
                raise self._lost(error) from error
            if not data:
                raise self._lost(EOFError("the server has closed it"))
            self._unread += data
        value, end = found
        self._unread = self._unread[end:]
        if type(value) is ErrorReply:
            self._known.clear()  # it has not kept a script that it refused
        return value

    @staticmethod
    def _lost(error: Exception) -> ConnectionFailed:
        return ConnectionFailed(f"The connection to Redis was lost: {error}")

    def cut(self) -> None:
        """End the conversation from any thread: its user gets ConnectionFailed."""
        shut(self.fd)

    def close(self) -> None:
        """Close this process's end. After a fork, the connection of the parent is not touched."""
        self.fd = -1  # the number may be another file's soon
        with contextlib.suppress(Exception):
            self._driver.disconnect()


class Connection(Wire):
    """Used by one thread or task at a time.

    A caller may leave before its reply. ``owed`` counts the replies that have not been read; who uses the connection
    next reads them before its own.
    """

    def __init__(self, driver: Any) -> None:
        super().__init__(driver)
        self.owed = 0
        # requests of send_last() that the server has perhaps not got
        self.unconfirmed: list[Request] = []
        # since when (monotonic) the server has been silent though it owes a reply
        self._owed_since = 0.0
        self.used_at = clock.now()
        # it does not go back to the others: close() was called while it was in use, or ``unconfirmed`` is to be sent
        # again
        self.unwanted = False

    def send(self, request: bytes) -> None:
        """Write a packed command."""
        if not self.owed:
            self._owed_since = clock.now()
        self.owed += 1
        self.write(request)

    def send_script(self, request: Request) -> None:
        """:meth:`send` a request whose reply perhaps nobody reads."""
        self.send(self.script(request))

    def send_last(self, request: Request) -> None:
        """:meth:`send` a request as the last one of a caller that leaves."""
        try:
            self.take()
            if not self.owed:
                self.next()  # a server that has closed it would be told in vain, and without an error
        finally:
            self.unconfirmed.append(request)
        self.send(self.last(request))

    def take(self) -> Any:
        """The reply to the last request, or PENDING. Never waits."""
        value: Any = PENDING
        while self.owed:
            value = self.next()
            if value is PENDING:
                break
            self.owed -= 1
            if self.unconfirmed and type(value) is ErrorReply:
                self.unwanted = True  # it may have been one of them
            if self.owed:
                self._owed_since = clock.now()
            elif not self.unwanted:
                self.unconfirmed.clear()
        return value

    async def receive(self, until: float) -> Any:
        """:meth:`take`, waiting until the monotonic time ``until``. ConnectionFailed if no reply comes by then."""
        if in_task():
            while (value := self.take()) is PENDING:  # at once: a turn of the event loop costs more than a read in vain
                if not await ready(self.fd, False, until):
                    break
        else:
            value = PENDING
            while value is PENDING and noticed(self._watch, until - clock.now()):
                value = self.take()
        if value is PENDING:
            raise ConnectionFailed("Redis did not answer in time.", silent=True)
        return value

    def usable(self) -> bool:
        """Is it open, and does the server answer on it?"""
        try:
            if self.owed:
                return self.take() is not PENDING or clock.now() - self._owed_since < FRESH
            if not self._watch.poll(0):
                return True
            return self.next() is PENDING  # TLS has messages of its own
        except ConnectionFailed:
            return False
