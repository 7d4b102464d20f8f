"""kazoo's handler as this package needs it: one thread, and a connection that any thread can drop.

A handler is kazoo's extension point for threads, connections and ``select``.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import threading
import traceback
from typing import TYPE_CHECKING, Any

from kazoo.handlers.threading import SequentialThreadingHandler

from django_distlock.concurrency import clock
from django_distlock.concurrency.sockets import Bell

if TYPE_CHECKING:
    from collections.abc import Callable

# A TCP connection may take this long, and a third of the session timeout; seconds.
CONNECT_TIMEOUT = 2.0


class Doorbell(Bell):
    """Both ends of the pair of sockets through which kazoo's thread is told of each request, as one byte.

    A real pair holds some 270 bytes, and kazoo's thread reads none while it looks for a server. The next writer would
    wait for it: an event loop with all its tasks, and for ever if the session has ended. This one never blocks: it
    rings as long as there are ``requests``.
    """

    def __init__(self, requests: Callable[[], object]) -> None:
        super().__init__()
        self._requests = requests

    def send(self, _byte: bytes) -> None:
        self.ring()

    def recv(self, _count: int) -> bytes:
        self.silence()
        if self._requests():
            self.ring()
        return b""

    def close(self) -> None:
        """Its files are closed with the last reference."""


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without worker threads: replies and events are handled in the thread that reads them.

    kazoo's two threads for that cost two changes of thread per request. So no callback may block or raise.
    """

    def __init__(
        self, thread_name: str, sleep: Callable[[float], None], on_end: Callable[[Exception | None], None]
    ) -> None:
        super().__init__()
        self.sleep_func = sleep
        self._thread_name, self._on_end = thread_name, on_end
        self._socket: socket.socket | None = None
        self._bell: Doorbell | None = None
        # what waits for kazoo's thread
        self.requests: Callable[[], object] = tuple
        # the monotonic time at which a client that is being closed drops its connection
        self.closed_by = math.inf

    def start(self) -> None:
        """Start no workers: kazoo then calls back at once."""

    def stop(self) -> None:
        """Leave the bell, whose files are closed once nobody rings it. Nothing else was started."""
        self._bell = None

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        def run() -> None:
            error: Exception | None = None
            try:
                func(*args, **kwargs)
            except Exception as raised:  # kazoo lets it through, as it does at the limit of open files
                error = raised
            finally:
                self._on_end(error)

        thread = threading.Thread(target=run, name=self._thread_name, daemon=True)
        thread.start()
        return thread

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        """kazoo's own makes a selector for every call, and misses what TLS has read already."""
        decrypted = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        if decrypted:
            return decrypted, [], []
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        left = min(math.inf if timeout is None else timeout, self.closed_by - clock.now())
        found = {fd for fd, _ in poll.poll(None if left == math.inf else max(left, 0.0) * 1000)}
        if clock.now() >= self.closed_by:
            self.drop()
        return *([each for each in group if each.fileno() in found] for group in (readers, writers)), []

    def create_connection(self, *args: Any, timeout: float, **options: Any) -> Any:
        try:
            self._socket = super().create_connection(*args, timeout=min(CONNECT_TIMEOUT, timeout / 3), **options)
        except Exception as error:
            # kazoo closes no socket whose handshake failed, and the error, which is kept to be told, would keep it open
            traceback.clear_frames(error.__traceback__)
            raise
        return self._socket

    def create_socket_pair(self) -> tuple[Doorbell, Doorbell]:
        self._bell = Doorbell(self.requests)
        return self._bell, self._bell

    def wake(self) -> None:
        """Wake kazoo's thread."""
        bell = self._bell  # another thread may stop this one
        if bell is not None:
            bell.ring()

    def drop(self) -> None:
        """End the connection from any thread, so that kazoo opens another one."""
        if self._socket is not None:
            # not the method of an SSL socket, which is not meant for a second thread
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close the descriptors in the child of a fork. The parent's connection does not notice."""
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.abandon()
        if self._socket is not None:
            self._socket.close()
