"""One of the nodes: how it is reached.

A node that hangs or is down must not cost its caller time: connections are opened in a thread aside, at most one at a
time to a node that is in trouble, and whoever asks meanwhile does without it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from .redis_connection import Link
from .redis_protocol import PENDING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from .redis_target import Target

# So long may it take to connect; and between two attempts at a node that cannot be reached. Seconds.
CONNECT_TIMEOUT, RETRY = 1.0, 0.1
# So many connect at once: one for each lane. No timeout ends a look-up of the node's name, and lanes come and go.
MOST_CONNECTING = 8


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


class Node:
    """``number`` counts from 1, for messages: an address may hold a password."""

    def __init__(self, number: int, target: Target, thread_name: str) -> None:
        self.number = number
        self.target = target
        self._thread_name = thread_name
        self._guard = threading.Lock()
        self._threads: dict[object, threading.Thread] = {}
        self._retry_at = 0.0
        # has the last attempt to connect failed?
        self.trouble = False
        self.error: BaseException | None = None

    def connecting(self, lane: object) -> bool:
        return lane in self._threads

    def connect(self, lane: object, attach: Callable[[Link], None], wake: socket.socket) -> bool:
        """Open a connection in a thread of its own, which calls ``attach`` and writes to ``wake``. False if that
        is of no use at present."""
        with self._guard:
            if lane in self._threads:
                return True
            if self.trouble and (self._threads or time.monotonic() < self._retry_at):
                return False
            if len(self._threads) >= MOST_CONNECTING:
                return False
            thread = threading.Thread(
                target=self._connect, args=(lane, attach, wake), name=self._thread_name, daemon=True
            )
            self._threads[lane] = thread
            try:
                thread.start()
            except BaseException as error:  # too many threads, or interrupted
                self._threads.pop(lane, None)
                self._failed(error)
                if not isinstance(error, Exception):
                    raise
                return False
            return True

    def _failed(self, error: BaseException) -> None:
        self.error, self.trouble = error, True
        self._retry_at = time.monotonic() + RETRY

    def _connect(self, lane: object, attach: Callable[[Link], None], wake: socket.socket) -> None:
        try:
            link = Link(self.target.connect(CONNECT_TIMEOUT))
        except BaseException as error:
            self._failed(error)
        else:
            self.trouble = False
            attach(link)
        finally:
            with self._guard:
                self._threads.pop(lane, None)
            with contextlib.suppress(OSError):  # its reader has gone
                wake.send(b"x")

    def join(self, until: float) -> None:
        """Wait for the threads that connect, until the monotonic time ``until``."""
        for thread in list(self._threads.values()):
            thread.join(max(0.0, until - time.monotonic()))
