"""One connection to Redis, of which only the socket is left: written and read apart, by threads and by tasks."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import uuid
from collections import deque
from typing import Any

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.sockets import LONGEST_POLL, READY, shut

from .protocol import PENDING, Garbled, Push, pack, parse

CHUNK = 65536
# A waiter is silent for long, and shall notice if the network has forgotten its connection. Seconds, and probes.
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


class LinkError(Exception):
    """A server was not reached, or gave no answer. ``uncertain``: it may have done what it was asked, or may do so
    later. The error of the driver or of the socket is the ``__cause__``."""

    def __init__(self, message: str, *, uncertain: bool = False, timed_out: bool = False) -> None:
        super().__init__(message)
        self.uncertain = uncertain
        self.timed_out = timed_out


class Link:
    """One connection, used by one thread or task at a time. After a LinkError it can only be closed.

    ``send`` never waits; ``receive`` gives the replies in order. ``owed`` is how many have not come yet: a link that is
    owed something must not go back into the pool.
    """

    __slots__ = (
        "_in",
        "_joining",
        "_out",
        "_poll",
        "_sock",
        "channel",
        "fd",
        "owed",
        "pushes",
        "subscribed",
        "used_at",
    )

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE.items():
                if hasattr(socket, option):  # macOS has another name for the first one
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._sock = sock
        self.fd = sock.fileno()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._in = b""
        self._out = b""
        self.owed = 0
        self.pushes: deque[Push] = deque()
        # what a hand-over is published on for whoever waits on this link
        self.channel = b"distlock:" + uuid.uuid4().hex.encode()
        self.subscribed = self._joining = False
        self.used_at = monotonic()

    def subscribe(self) -> None:
        """Have the next :meth:`send` begin to listen on ``channel``; the answer is a push, or an error ahead of the
        replies to what is sent with it."""
        self.subscribed = self._joining = True
        self._out += pack("SUBSCRIBE", self.channel)

    def send(self, *commands: bytes) -> None:
        """Write packed commands, as many as replies are due. What the socket does not take now is sent by
        :meth:`receive`."""
        data = commands[0] if len(commands) == 1 else b"".join(commands)
        self.owed += len(commands)
        if self._out:
            data, self._out = self._out + data, b""
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        except OSError as error:  # nothing of it was taken
            raise LinkError(
                f"The connection to Redis was lost: {error}", uncertain=self.owed > len(commands)
            ) from error
        if sent < len(data):
            self._out = data[sent:]

    def take(self) -> Any:
        """The next reply, or PENDING if it has not come yet; pushes go to ``pushes``. Never waits.

        An error that the server replied is returned as a :class:`~.redis_protocol.ReplyError`, not raised.
        """
        while True:
            if self._in:
                try:
                    value, at = parse(self._in, 0)
                except Garbled as error:
                    raise LinkError(str(error), uncertain=True) from error
                if value is not PENDING:
                    self._in = self._in[at:]
                    if type(value) is Push:
                        self._joining = False
                        self.pushes.append(value)
                        continue
                    if self._joining:  # taken for a reply it would shift all that follow
                        raise LinkError(f"Redis does not let us listen: {value}", uncertain=True)
                    self.owed -= 1
                    return value
            if not self._fill():
                return PENDING

    def receive(self, until: float) -> Any:
        """:meth:`take`, waiting until the monotonic time ``until``. LinkError if no reply comes by then."""
        if not self._in:
            self._wait(until)
        while (value := self.take()) is PENDING:
            if not self._wait(until):
                raise self._silent()
        return value

    async def areceive(self, until: float) -> Any:
        """:meth:`receive` for a task. Cancelled, the link can be used on: the reply is still owed."""
        while (value := self.take()) is PENDING:
            if not await READY.apoll(self.fd, bool(self._out), until):
                raise self._silent()
        return value

    def listen(self, until: float) -> Push | None:
        """The next push, None at the monotonic time ``until``. Replies must not be owed."""
        if not self.pushes and not self._in:
            self._wait(until)
        while self._unheard():
            if not self._wait(until):
                return None
        return self.pushes.popleft()

    async def alisten(self, until: float) -> Push | None:
        """:meth:`listen` for a task."""
        while self._unheard():
            if not await READY.apoll(self.fd, bool(self._out), until):
                return None
        return self.pushes.popleft()

    def _unheard(self) -> bool:
        if not self.pushes and self.take() is not PENDING:
            raise LinkError("Redis replied to nothing.")
        return not self.pushes

    def _wait(self, until: float) -> bool:
        left = until - monotonic()
        if self._out:
            return READY.poll(self.fd, True, until)
        if left > LONGEST_POLL:
            return bool(self._poll.poll(None))
        # rounded up: a poll that comes back early would be taken for the deadline
        return bool(self._poll.poll(math.ceil(left * 1000) if left > 0 else 0))

    def _fill(self) -> bool:
        try:
            if self._out:
                self._out = self._out[self._sock.send(self._out) :]
            data = self._sock.recv(CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError as error:
            raise LinkError(f"The connection to Redis was lost: {error}", uncertain=self.owed > 0) from error
        if not data:
            raise LinkError("Redis closed the connection.", uncertain=self.owed > 0)
        self._in += data
        return True

    def _silent(self) -> LinkError:
        return LinkError("Redis did not answer in time.", uncertain=True, timed_out=True)

    @property
    def clean(self) -> bool:
        """Is nothing on its way in either direction?"""
        return not self.owed and not self._out and self.fd >= 0

    def stale(self) -> bool:
        """Has the server hung up while nobody looked?"""
        try:
            return self.take() is not PENDING
        except LinkError:
            return True

    def cut(self) -> None:
        """End the conversation from any thread: whoever waits on it gets a LinkError."""
        if self.fd >= 0:
            shut(self.fd)

    def close(self) -> None:
        """Close this process's end. In the child of a fork the parent does not notice."""
        self.fd = -1
        with contextlib.suppress(OSError):
            self._sock.close()
