"""One connection to Redis: redis-py's own, on a socket that never blocks.

redis-py connects, logs in, encrypts and parses. The waiting is done here: redis-py knows no deadlines, and its asyncio
connections belong to one event loop each, while a socket serves every thread and loop. Nothing is retried: a command
that is sent twice unnoticed takes a lock twice. The protocol is RESP3, whose pushes may come between replies
(https://redis.io/docs/latest/develop/reference/protocol-spec/).
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import uuid
from collections import deque
from typing import Any, Final

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.sockets import LONGEST_POLL, READY, shut

# TCP keepalive: a waiter is silent for long and must notice when the network has forgotten its connection. Seconds, and
# the number of probes. macOS calls the first one TCP_KEEPALIVE.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
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


class _Pending:
    def __repr__(self) -> str:
        return "PENDING"


# There is no whole reply yet.
PENDING: Final = _Pending()


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
    chunks = [b"*%d\r\n" % len(parts)]
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        chunks.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(chunks)


def reply_code(reply: object) -> str:
    """The first word of an error reply, such as NOSCRIPT or MOVED; empty if ``reply`` is a value."""
    if not isinstance(reply, Exception):
        return ""
    return _CODES.get(type(reply).__name__) or str(reply).partition(" ")[0]


class Connection:
    """A connection, used by one thread or task at a time. After ConnectionFailed it can only be closed.

    ``send`` never waits; ``receive`` returns the replies in order. ``owed`` counts the replies that have not come yet:
    a connection with any of them must not go back into the pool.
    """

    __slots__ = (
        "_driver",
        "_first",
        "_fresh",
        "_joining",
        "_poll",
        "_read",
        "_sock",
        "channel",
        "fd",
        "owed",
        "pushes",
        "subscribed",
        "used_at",
    )

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
        self.used_at = monotonic()

    def fileno(self) -> int:
        return self.fd

    def subscribe(self) -> None:
        """Have the next :meth:`send` subscribe to ``channel`` first. The server confirms it by a push, or refuses it by
        an error ahead of the replies."""
        self.subscribed = self._joining = True
        self._first = pack("SUBSCRIBE", self.channel)

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
        while True:
            try:
                value = self._read(True, True)  # bytes are not decoded, and a push is returned by itself
            except Exception as error:
                if isinstance(error.__context__, _NOTHING_YET):  # the parser keeps what it has read
                    return PENDING
                raise ConnectionFailed(f"The connection to Redis was lost: {error}", uncertain=self.owed > 0) from error
            if type(value) is Push:
                self._joining = False
                self.pushes.append(value)
                continue
            if self._joining:  # taken for a reply it would shift all that follow
                raise ConnectionFailed(f"Redis does not let us listen: {value}", uncertain=True)
            self.owed -= 1
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
        """:meth:`receive` for a task. Cancelled, the connection can be used on: the reply is still owed."""
        while (value := self.take()) is PENDING:  # at once: a turn of the event loop costs more than a read in vain
            if not await READY.apoll(self.fd, False, until):
                raise self._silent()
        return value

    def listen(self, until: float) -> Push | None:
        """The next push, None at the monotonic time ``until``. Replies must not be owed."""
        while not self._heard():
            if not self._wait(until):
                return None
        return self.pushes.popleft()

    async def alisten(self, until: float) -> Push | None:
        """:meth:`listen` for a task."""
        while not self._heard():
            if not await READY.apoll(self.fd, False, until):
                return None
        return self.pushes.popleft()

    def _heard(self) -> bool:
        if not self.pushes and self.take() is not PENDING:
            raise ConnectionFailed("Redis sent a reply without a command.")
        return bool(self.pushes)

    def _wait(self, until: float) -> bool:
        left = until - monotonic()
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
        """Close this process's end. After a fork, the connection of the parent is not touched."""
        self.fd = -1
        with contextlib.suppress(Exception):
            self._driver.disconnect()
