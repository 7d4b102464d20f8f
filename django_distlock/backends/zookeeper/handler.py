"""kazoo's handler as this package needs it: with one thread, and connections that keep a deadline.

A handler is kazoo's extension point for threads, connections and ``select``.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import select
import socket
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from kazoo.handlers.threading import SequentialThreadingHandler

from django_distlock.concurrency import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Between two checks, during a connection attempt, whether the client is being closed; seconds.
CLOSE_CHECK_INTERVAL = 0.25


class Wakeup:
    """Both ends of the socket pair with which kazoo wakes its thread: one byte is written and read for each request.

    A socket pair of Linux blocks its writer after some 270 bytes. kazoo's thread, which is the reader, also writes: it
    would wait for itself. A counter of the kernel never blocks.
    """

    ONE = (1).to_bytes(8, sys.byteorder)

    def __init__(self) -> None:
        # a file object: once closed, it cannot write to another file that got the same descriptor
        self._file = io.FileIO(os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+")
        self.fileno, self.close = self._file.fileno, self._file.close

    def send(self, data: bytes) -> int:
        self._file.write(self.ONE)
        return len(data)

    def recv(self, size: int) -> bytes:
        self._file.read(len(self.ONE))
        return b"\0"


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without worker threads: replies and events are handled in the thread that reads them.

    kazoo's two threads for that cost two changes of thread per request. So no callback may block or raise.
    """

    def __init__(
        self,
        name: str,
        connect_timeout: float,
        tick: Callable[[], float],
        on_unreachable: Callable[[], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        super().__init__()
        self._name = name
        self._connect_timeout = connect_timeout
        self._tick, self._on_unreachable, self._on_end = tick, on_unreachable, on_end
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._wakeups: tuple[Any, ...] = ()
        # the monotonic times at which the connection is dropped: without an answer to its first request; at the end
        self.answer_by: float | None = None
        self.closed_by: float | None = None

    def start(self) -> None:
        """Start no workers: kazoo then calls back at once."""

    def stop(self) -> None:
        """Do nothing, since nothing was started."""

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

        self._thread = thread = threading.Thread(target=run, name=self._name, daemon=True)
        thread.start()
        return thread

    @property
    def spawned(self) -> bool:
        """Was kazoo's thread started?"""
        return self._thread is not None and self._thread.ident is not None

    def sleep_func(self, seconds: float) -> None:
        """Sleep before all hosts are tried again: kazoo sleeps only when none of them could be reached."""
        self._on_unreachable()
        time.sleep(seconds)

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
        # the rest of a message can nearly always be read or written at once
        ready = poll.poll(0) if len(readers) + len(writers) == 1 else []
        until = math.inf if timeout is None else clock.now() + timeout
        while not ready:
            left = min(until, self._look_after()) - clock.now()
            ready = poll.poll(max(left, 0.0) * 1000)
            if clock.now() >= until:
                break
        found = {fd for fd, _ in ready}
        return *([each for each in group if each.fileno() in found] for group in (readers, writers)), []

    def _look_after(self) -> float:
        """Do what is due while the thread waits. Returns the monotonic time of the next check."""
        now = clock.now()
        limits = [each for each in (self.answer_by, self.closed_by) if each is not None]
        if limits and now >= min(limits):
            self.drop()
            return math.inf
        return min(self._tick(), *limits, math.inf if self.answer_by is None else now + CLOSE_CHECK_INTERVAL)

    def create_connection(self, address: Any, *, hostname: str, timeout: float, use_ssl: bool, **tls: Any) -> Any:
        """Connect. kazoo's own leaves a socket whose TLS handshake has failed to the garbage collector."""
        context = _tls_context(tls) if use_ssl else None
        made = socket.create_connection(address, min(timeout, self._connect_timeout))
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = made if context is None else context.wrap_socket(made, server_hostname=hostname)
        except BaseException:
            made.close()
            raise
        return self._socket

    def create_socket_pair(self) -> Any:
        # without such a counter, as on macOS, a socket pair holds thousands of bytes
        self._wakeups = (Wakeup(),) * 2 if hasattr(os, "eventfd") else super().create_socket_pair()
        return self._wakeups

    def wake(self) -> None:
        """Wake the thread once more than there are requests, which does no harm."""
        with contextlib.suppress(OSError, ValueError):  # closed
            self._wakeups[1].send(b"\0")

    def drop(self) -> None:
        """End the connection from any thread, so that kazoo opens another one."""
        if self._socket is not None:
            # not the method of an SSL socket, which is not meant for a second thread
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Close the descriptors in the child of a fork. The parent's connection does not notice."""
        for each in (self._socket, *self._wakeups):
            if each is not None:
                each.close()


def _tls_context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    """The same as kazoo's: the system's certificates count beside those of ``ca``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = tls["check_hostname"]
    context.verify_mode = ssl.CERT_REQUIRED if tls["verify_certs"] else ssl.CERT_NONE
    if tls["ca"]:
        context.load_verify_locations(tls["ca"])
    if tls["certfile"] and tls["keyfile"]:
        context.load_cert_chain(tls["certfile"], tls["keyfile"], tls["keyfile_password"])
    return context
