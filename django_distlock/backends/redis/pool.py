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
from typing import TYPE_CHECKING

from django_distlock.concurrency import finalizers
from django_distlock.concurrency.background import Stragglers
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.parking import Parker

from .connection import Link, LinkError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from .target import Target

__all__ = ["Link", "LinkError", "Opening", "Pool"]

# Links of one process to one server at most; who comes later waits for one, in order of arrival.
MAX_LINKS = 64
# A link without a command is closed after this time; seconds.
IDLE = 5.0
# One that was idle for longer than this is looked at before it is used; seconds.
FRESH = 0.5


class Opening:
    """A link on its way, opened in a thread of its own: no driver keeps a deadline while it looks up a name."""

    def __init__(self, connect: Callable[[float], socket.socket], until: float) -> None:
        self.link: Link | None = None
        self.error: BaseException | None = None
        self._parker = Parker()
        left = max(0.01, min(until - monotonic(), IDLE))
        self.thread = threading.Thread(target=self._open, args=(connect, left), name="distlock-redis-open", daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # no thread to be had, as at the end of the interpreter
            self._open(connect, left)

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
        if self._parker.leave() and self.link is not None:
            self.link.close()

    def result(self) -> Link:
        """The link, after :meth:`finish` was true. LinkError, with the driver's error as its cause, if it failed."""
        if self.link is None:
            raise LinkError(f"Redis cannot be reached: {self.error}") from self.error
        return self.link


class Waiter:
    """Who waits for a link, and is given one, or a place to open one."""

    __slots__ = ("link", "parker")

    def __init__(self) -> None:
        self.parker = Parker()
        self.link: Link | None = None


class Pool:
    """The links of this process to one server; the one used last is used first."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._guard = threading.Lock()
        self._idle: list[Link] = []
        self._links: set[Link] = set()
        self._opening = 0
        self._queue: deque[Waiter] = deque()
        self._stragglers = Stragglers()

    def take(self) -> Link | None:
        """A link at hand, or None. Never waits."""
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return None
            if monotonic() - link.used_at < FRESH or not link.stale():
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
        back, in order of arrival."""
        link = self.take()
        if link is not None:
            return link
        waiter = self._arrive()
        if waiter is None:
            return (yield from self._opened(until))
        try:
            if not (yield Step(waiter.parker.park, waiter.parker.apark, (until - monotonic(),))):
                raise LinkError("All connections to Redis are in use.", timed_out=True)
        except BaseException:
            finalizers.now_or_later(self._desert, waiter)
            raise
        return waiter.link or (yield from self._opened(until))

    def _arrive(self) -> Waiter | None:
        """None: a place for one more link; else where to wait for one."""
        with self._guard:
            if not self._queue and len(self._links) + self._opening < MAX_LINKS:
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
        elif waiter.link is not None:
            self.give(waiter.link)
        else:
            self._unreserve()

    def _opened(self, until: float) -> Flow[Link]:
        try:
            if (reason := self._stragglers.refuse()) is not None:
                raise LinkError(f"Redis cannot be reached: {reason}")
            opening = self.start(until)
            finished = False
            try:
                finished = yield Step(opening.finish, opening.afinish, (until,))
            finally:
                if not finished:
                    self._stragglers.add(opening.thread)
            if not finished:
                raise LinkError("Redis could not be reached in time.", timed_out=True)
            return self.adopt(opening)
        finally:
            self._unreserve()

    def _unreserve(self) -> None:
        with self._guard:
            self._opening -= 1
        self._serve()

    def give(self, link: Link) -> None:
        """Back into the pool, or closed if anything is still on its way."""
        if not link.clean or link not in self._links:  # closed meanwhile with all others
            self.discard(link)
            return
        link.used_at = monotonic()
        link.pushes.clear()
        self._idle.append(link)
        if self._queue:
            self._serve()

    def discard(self, link: Link) -> None:
        """Close a link."""
        with self._guard:
            self._links.discard(link)
        link.close()
        if self._queue:
            self._serve()

    def _serve(self) -> None:
        """Give those who wait, in order, the links at hand, or places for new ones: if they were only woken, whoever
        gives a link back could take it again before them."""
        with self._guard:
            while self._queue:
                waiter = self._queue[0]
                try:
                    waiter.link = self._idle.pop()
                except IndexError:
                    if len(self._links) + self._opening >= MAX_LINKS:
                        return
                self._queue.popleft()
                if waiter.link is None:
                    self._opening += 1
                if waiter.parker.wake():
                    continue
                if waiter.link is None:
                    self._opening -= 1
                else:
                    self._idle.append(waiter.link)

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
        """Is there any link?"""
        return bool(self._links)

    @property
    def size(self) -> int:
        """How many links there are, those included that are being opened."""
        return len(self._links) + self._opening

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

    def discard_idle(self) -> None:
        """Close the links that nobody uses, because the server behind them is the wrong one."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self.discard(self._idle.pop())

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
