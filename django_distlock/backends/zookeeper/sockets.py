"""The two sockets of kazoo's thread: the one to the server, and the one with which others wake it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

CHUNK = 65536  # bytes


class Buffered:
    """kazoo's socket. kazoo waits for and reads each reply in two parts; here what has come is read at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = memoryview(b"")
        self.send, self.fileno, self.close = connection.send, connection.fileno, connection.close
        self.setblocking, self.getpeername = connection.setblocking, connection.getpeername

    def pending(self) -> int:
        """How many bytes can be had without waiting; with TLS, what is decrypted counts too."""
        return len(self._buffer) or getattr(self._connection, "pending", int)()

    def recv(self, size: int) -> bytes:
        if not self._buffer:
            self._buffer = memoryview(self._connection.recv(CHUNK))
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken.tobytes()

    def drop(self) -> None:
        """End the connection, from another thread."""
        # not the method of an SSL socket, which is not meant for a second thread
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)


class Bell:
    """Both ends of the socket pair with which kazoo wakes its thread, and which it reads once per request sent.

    It rings for as long as there are requests, however many, and never waits: kazoo's own holds a byte for each of
    them, and its thread, which asks too, would wait for itself to read them. The thread that is woken takes the
    interpreter away from the one that asks; so requests that go together ring once.
    """

    def __init__(self, reader: socket.socket, writer: socket.socket, requests: Callable[[], Collection[Any]]) -> None:
        reader.setblocking(False)
        writer.setblocking(False)
        self._reader, self._writer, self._requests = reader, writer, requests
        self._held = threading.local()
        self.fileno = reader.fileno

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    def send(self, data: bytes) -> int:
        if getattr(self._held, "rings", None) is None:
            self._ring()
        else:
            self._held.rings = True
        return len(data)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full of what nobody has heard yet
            self._writer.send(b"\0")

    def recv(self, size: int) -> bytes:
        if not self._requests():
            with contextlib.suppress(BlockingIOError):
                self._reader.recv(CHUNK)
            if self._requests():  # one that came in between
                self._ring()
        return b"\0" * size

    @contextlib.contextmanager
    def once(self) -> Iterator[None]:
        """Ring at the end. OSError if kazoo was closed meanwhile."""
        self._held.rings = False
        try:
            yield
        finally:
            rings, self._held.rings = self._held.rings, None
            if rings:
                self._ring()
