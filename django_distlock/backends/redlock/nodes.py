"""One of the nodes: how it is reached.

A node that hangs or is down must not cost its caller time: connections are opened in threads aside, at most one at a
time to a node that is in trouble, and whoever asks meanwhile does without it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from django_distlock.backends.redis.pool import Link
from django_distlock.backends.redis.protocol import PENDING
from django_distlock.concurrency.clock import monotonic

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from django_distlock.backends.redis.target import Target

    from .lanes import Lane

# So long may it take to connect; and between two attempts at a node that cannot be reached. Seconds.
CONNECT_TIMEOUT, RETRY = 1.0, 0.1
# So many wait for one node at once: one for each lane. No timeout ends a look-up of its name, and lanes come and go.
MOST_CONNECTING = 8
# So many threads connect, and one more if each of them is held up for so long; seconds.
AT_ONCE, HELD_UP = 2, 0.05


class Slot:
    """One request to one node and its reply. ``undo`` takes back what it may have done there, which is what a ``final``
    one asks for."""

    __slots__ = ("final", "lost", "reply", "sent", "sent_at", "ttl", "undo", "until", "vote")

    def __init__(
        self, now: float, until: float, vote: str = "", undo: bytes = b"", ttl: float = 0.0, *, final: bool = False
    ) -> None:
        self.sent_at = now
        self.until = until
        self.vote, self.undo, self.ttl = vote, undo, ttl
        self.final = final
        self.sent = False
        self.lost = False  # the connection was, and the reply with it
        self.reply: Any = PENDING

    @property
    def done(self) -> bool:
        return self.reply is not PENDING


class Connectors:
    """The threads that connect: two, which is enough where nodes answer, and one more each time when all of them are
    held up. They end when there is nothing to do."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._guard = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._since: dict[threading.Thread, float] = {}  # when each began its present job

    def submit(self, job: Callable[[], None]) -> None:
        """Have it done. Raises what keeps a thread from being started, if there is none that could do it."""
        with self._guard:
            self._jobs.append(job)
            try:
                self._help()
            except BaseException as error:
                if self._since and isinstance(error, Exception):
                    return
                self._jobs.remove(job)
                raise

    def hurry(self) -> None:
        """Somebody waits: is another thread needed?"""
        with self._guard, contextlib.suppress(RuntimeError):  # no thread to be had
            self._help()

    def _help(self) -> None:
        now, busy = monotonic(), len(self._since)
        if not self._jobs or busy >= self._most:
            return
        if busy < AT_ONCE or all(now - since > HELD_UP for since in self._since.values()):
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._since[thread] = now
            try:
                thread.start()
            except BaseException:
                del self._since[thread]
                raise

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._guard:
                if not self._jobs:
                    del self._since[me]
                    return
                job = self._jobs.popleft()
                self._since[me] = monotonic()
            job()

    def join(self, until: float) -> None:
        """Wait for the threads until the monotonic time ``until``."""
        for thread in list(self._since):
            thread.join(max(0.0, until - monotonic()))


class Node:
    """``number`` counts from 1, for messages: an address may hold a password."""

    def __init__(self, number: int, target: Target, connectors: Connectors) -> None:
        self.number = number
        self.target = target
        self.hurry = connectors.hurry
        self._submit = connectors.submit
        self._guard = threading.Lock()
        self._connecting: set[Lane] = set()
        self._retry_at = 0.0
        # has the last attempt to connect failed?
        self.trouble = False
        # what it failed with last, since it was connected to
        self.error: BaseException | None = None

    def connecting(self, lane: Lane) -> bool:
        return lane in self._connecting

    def connect(self, lane: Lane, attach: Callable[[Link], None], wake: socket.socket) -> bool:
        """Open a connection in another thread, which calls ``attach`` and writes to ``wake``. False if that is of no
        use at present."""
        with self._guard:
            if lane in self._connecting:
                return True
            if self.trouble and (self._connecting or monotonic() < self._retry_at):
                return False
            if len(self._connecting) >= MOST_CONNECTING:
                self.error = TimeoutError(f"{MOST_CONNECTING} attempts to connect are under way.")
                return False
            self._connecting.add(lane)
        try:
            self._submit(lambda: self._connect(lane, attach, wake))
        except BaseException as error:  # too many threads, or interrupted
            self._connecting.discard(lane)
            self._failed(error)
            if not isinstance(error, Exception):
                raise
            return False
        return True

    def _failed(self, error: BaseException) -> None:
        self.error, self.trouble = error, True
        self._retry_at = monotonic() + RETRY

    def _connect(self, lane: Lane, attach: Callable[[Link], None], wake: socket.socket) -> None:
        try:
            if not lane.closed:
                link = Link(self.target.connect(CONNECT_TIMEOUT))
                self.trouble, self.error = False, None
                attach(link)
        except BaseException as error:
            self._failed(error)
        finally:
            self._connecting.discard(lane)
            with contextlib.suppress(OSError):  # its reader has gone
                wake.send(b"x")
