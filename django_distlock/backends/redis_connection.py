"""Connections to Redis: redis-py opens them, with all that it knows of TLS, sockets, Sentinel and credentials, and from
then on the socket is ours.

Three reasons. redis-py retries ten times by default, and a lock command that is sent twice behind our back takes a lock
twice; its asyncio connections belong to one event loop each, while a plain socket is at home in every thread and loop;
and sending apart from receiving lets one caller ask several servers at once. The protocol is RESP3, whose pushes may
come between replies (https://redis.io/docs/latest/develop/reference/protocol-spec/).
"""

from __future__ import annotations

import contextlib
import math
import select
import ssl
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from django_distlock.parking import Parker
from django_distlock.waiting import Call, Flow

from .redis_protocol import PENDING, Garbled, Push, pack, parse
from .sockets import LONGEST_POLL, READY, shut

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from .redis_target import Target

# Links of one process to one server at most; who comes later waits for one, in order of arrival.
MAX_LINKS = 64
# A link without a command is closed after this time; seconds.
IDLE = 5.0
# One that was idle for longer than this is looked at before it is used; seconds.
FRESH = 0.5
CHUNK = 65536


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

    __slots__ = ("_in", "_out", "_poll", "_sock", "channel", "fd", "owed", "pushes", "subscribed", "used_at")

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
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
        self.subscribed = False
        self.used_at = time.monotonic()

    def send(self, *commands: bytes, subscribe: bool = False) -> None:
        """Write packed commands, as many as replies are due; before them SUBSCRIBE to the link's own channel, if it was
        not done yet, which gets a push for a reply. What the socket does not take now is sent by :meth:`receive`."""
        data = commands[0] if len(commands) == 1 else b"".join(commands)
        if subscribe and not self.subscribed:
            self.subscribed = True
            data = pack("SUBSCRIBE", self.channel) + data
        self.owed += len(commands)
        if self._out:
            self._out += data
            return
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
                        self.pushes.append(value)
                        continue
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
        left = until - time.monotonic()
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


class Opening:
    """A link on its way, opened in a thread of its own: no driver keeps a deadline while it looks up a name."""

    def __init__(self, connect: Callable[[float], socket.socket], until: float) -> None:
        self.link: Link | None = None
        self.error: BaseException | None = None
        self._parker = Parker()
        left = max(0.01, min(until - time.monotonic(), IDLE))
        threading.Thread(target=self._open, args=(connect, left), name="distlock-redis-open", daemon=True).start()

    def _open(self, connect: Callable[[float], socket.socket], left: float) -> None:
        try:
            self.link = Link(connect(left))
        except BaseException as error:
            self.error = error
        if not self._parker.wake() and self.link is not None:
            self.link.close()

    def finish(self, until: float) -> bool:
        """Wait until it is open or has failed; False at the monotonic time ``until``."""
        try:
            return self._parker.park(until - time.monotonic())
        except BaseException:
            self._leave()
            raise

    async def afinish(self, until: float) -> bool:
        """:meth:`finish` for a task."""
        try:
            return await self._parker.apark(until - time.monotonic())
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._parker.leave() and self.link is not None:
            self.link.close()

    def result(self) -> Link:
        """The link, after :meth:`finish` was true. LinkError, with the driver's error as its cause, if it failed."""
        if self.link is None:
            raise LinkError(f"Redis cannot be reached: {self.error}") from self.error
        return self.link


class Pool:
    """The links of this process to one server; the one used last is used first."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._guard = threading.Lock()
        self._idle: list[Link] = []
        self._links: set[Link] = set()
        self._opening = 0
        self._queue: deque[Parker] = deque()

    def take(self) -> Link | None:
        """A link at hand, or None. Never waits."""
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - link.used_at < FRESH or not link.stale():
                return link
            self.discard(link)

    def start(self, until: float) -> Opening:
        """Begin to open a link, in another thread; the caller calls :meth:`adopt` with what comes of it."""
        return Opening(self._target.connect, until)

    def adopt(self, opening: Opening) -> Link:
        """The link that was opened. LinkError if that failed."""
        link = opening.result()
        with self._guard:
            self._links.add(link)
        return link

    def link(self, until: float) -> Flow[Link]:
        """A link by the monotonic time ``until``, else LinkError: one at hand, a new one, or the next that is given
        back."""
        while (link := self.take()) is None:
            parker = self._reserve()
            if parker is None:
                return (yield from self._opened(until))
            try:
                if not (yield Call(parker, "park", (until - time.monotonic(),))):
                    raise LinkError("All connections to Redis are in use.", timed_out=True)
            finally:
                with self._guard, contextlib.suppress(ValueError):
                    self._queue.remove(parker)
        return link

    def _reserve(self) -> Parker | None:
        """None: a place for one more link; else where to wait for one."""
        with self._guard:
            if len(self._links) + self._opening < MAX_LINKS:
                self._opening += 1
                return None
            parker = Parker()
            self._queue.append(parker)
            if self._idle:
                parker.wake()
            return parker

    def _opened(self, until: float) -> Flow[Link]:
        try:
            opening = self.start(until)
            if not (yield Call(opening, "finish", (until,))):
                raise LinkError("Redis could not be reached in time.", timed_out=True)
            return self.adopt(opening)
        finally:
            with self._guard:
                self._opening -= 1
            self._call_next()

    def give(self, link: Link) -> None:
        """Back into the pool, or closed if anything is still on its way."""
        if not link.clean or link not in self._links:  # closed meanwhile with all others
            self.discard(link)
            return
        link.used_at = time.monotonic()
        self._idle.append(link)
        if self._queue:
            self._call_next()

    def discard(self, link: Link) -> None:
        """Close a link."""
        with self._guard:
            self._links.discard(link)
        link.close()
        self._call_next()

    def _call_next(self) -> None:
        with self._guard:
            while self._queue:
                if self._queue.popleft().wake():
                    return

    @property
    def is_open(self) -> bool:
        """Is there any link?"""
        return bool(self._links)

    def close_idle(self, now: float) -> None:
        """Close the links that had no command for IDLE seconds."""
        while self._idle:
            try:
                link = self._idle.pop(0)
            except IndexError:
                return
            if now - link.used_at < IDLE:
                self._idle.insert(0, link)
                return
            self.discard(link)

    def close(self) -> None:
        """Close every link; who waits on one gets a LinkError. The next command opens another."""
        with self._guard:
            links, self._links = self._links, set()
        idle, self._idle = self._idle, []
        for link in links:
            link.close() if link in idle else link.cut()

    def abandon(self) -> None:
        """In the child of a fork: the connections are the parent's, who must not notice."""
        for link in self._links:
            link.close()
        self.__init__(self._target)  # type: ignore[misc]
