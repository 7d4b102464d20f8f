"""kazoo's client as this package needs it: with one thread, a known session timeout, and a close that ends in time.

It uses kazoo's extension points: the handler (threads, connections, ``select``), listeners and retry objects; and two
private names of kazoo, both in :class:`Client` and for the reasons given there.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import math
import os
import select
import socket
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Create2
from kazoo.retry import KazooRetry

from django_distlock.concurrency.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# kazoo's errors for requests that the server has not answered.
NOT_ANSWERED = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError, AuthFailedError)
# A TCP connection may take this long; seconds.
CONNECT_TIMEOUT = 2.0
# The server may take this long to confirm the end of the session; seconds.
CLOSE_TIMEOUT = 0.5
# A server may take a sixth of the session timeout to answer to a new connection, and at least this; seconds.
MIN_ANSWER_TIMEOUT = 1.0
# Between two checks, during a connection attempt, whether the client is being closed; seconds.
CLOSE_CHECK_INTERVAL = 0.25
# kazoo waits this long after it has tried all hosts in vain, growing up to the second number; seconds.
RETRY_DELAY, MAX_RETRY_DELAY = 0.02, 0.5

# Drops kazoo's log messages: the backend reports the same events in terms of locks.
_silent = logging.Logger("django_distlock.kazoo", logging.CRITICAL + 1)


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server deletes once its last child has gone; kazoo has no call for it.

    Source: https://zookeeper.apache.org/doc/r3.8.0/zookeeperProgrammers.html#Container+Nodes
    """

    type = 19


# The flags of ZooKeeper's kinds of nodes.
EPHEMERAL, SEQUENCE, CONTAINER = 1, 2, 4


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
        self, name: str, connect_timeout: float, tick: Callable[[], float], on_unreachable: Callable[[], None]
    ) -> None:
        super().__init__()
        self._name = name
        self._connect_timeout = connect_timeout
        self._tick, self._on_unreachable = tick, on_unreachable
        self._socket: socket.socket | None = None
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
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=self._name, daemon=True)
        thread.start()
        return thread

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
        until = math.inf if timeout is None else monotonic() + timeout
        while not ready:
            left = min(until, self._look_after()) - monotonic()
            ready = poll.poll(max(left, 0.0) * 1000)
            if monotonic() >= until:
                break
        found = {fd for fd, _ in ready}
        return *([each for each in group if each.fileno() in found] for group in (readers, writers)), []

    def _look_after(self) -> float:
        """Do what is due while the thread waits. Returns the monotonic time of the next check."""
        now = monotonic()
        limits = [each for each in (self.answer_by, self.closed_by) if each is not None]
        if limits and now >= min(limits):
            self.drop()
            return math.inf
        return min(self._tick(), *limits, math.inf if self.answer_by is None else now + CLOSE_CHECK_INTERVAL)

    def create_connection(self, address: Any, *, hostname: str, timeout: float, use_ssl: bool, **tls: Any) -> Any:
        """Connect. kazoo's own leaves a socket whose TLS handshake has failed to the garbage collector."""
        context = _tls_context(**tls) if use_ssl else None
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


def _tls_context(
    *,
    ca: str | None,
    certfile: str | None,
    keyfile: str | None,
    keyfile_password: str | None,
    verify_certs: bool,
    check_hostname: bool,
) -> ssl.SSLContext:
    """The same as kazoo's: the system's certificates count beside those of ``ca``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    context.check_hostname = check_hostname
    context.verify_mode = ssl.CERT_REQUIRED if verify_certs else ssl.CERT_NONE
    if ca:
        context.load_verify_locations(ca)
    if certfile and keyfile:
        context.load_cert_chain(certfile, keyfile, keyfile_password)
    return context


class Client:
    """One kazoo client that serves one ZooKeeper session and is not used again after its end.

    Callbacks come in kazoo's thread. ``on_connected(timeout, began)``: the session exists, or has a connection again;
    with its negotiated timeout in seconds, and the monotonic time before the server was asked. ``on_suspended``: the
    connection broke. ``on_ended``: the session has ended. ``on_refused(error)``: none of the hosts could be connected
    to, or the credentials are refused. ``tick``: called regularly, again at the monotonic time that it returns at the
    latest.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        *,
        on_connected: Callable[[float, float], None],
        on_suspended: Callable[[], None],
        on_ended: Callable[[], None],
        on_refused: Callable[[Exception], None],
        tick: Callable[[], float],
    ) -> None:
        self._name = name
        self._answer_timeout = max(settings["timeout"] / 6, MIN_ANSWER_TIMEOUT)
        self._on_connected, self._on_refused = on_connected, on_refused
        self._states = {"SUSPENDED": on_suspended, "LOST": on_ended}
        self._error: Exception | None = None
        self.handler = Handler(
            f"{name}-io", min(CONNECT_TIMEOUT, settings["timeout"] / 3), tick, on_unreachable=self._unreachable
        )
        sleep = self.handler.sleep_func
        self.kazoo = KazooClient(
            **settings,
            handler=self.handler,
            connection_retry=KazooRetry(max_tries=-1, delay=RETRY_DELAY, max_delay=MAX_RETRY_DELAY, sleep_func=sleep),
            command_retry=KazooRetry(max_tries=1, sleep_func=sleep),
            logger=_silent,
        )
        # The one method of kazoo that is replaced, for R18: a lock must be doubted before the server gives it to
        # another process, and only this method knows the timeout that the server has agreed to
        # (https://github.com/python-zk/kazoo/issues/769).
        connection = self.kazoo._connection
        self._connect, connection._connect = connection._connect, self._connecting
        self.kazoo.add_listener(self._changed)
        self._closing = threading.Lock()
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin to connect without waiting for it."""
        # so that the locks of a program that ends are free at once, and not when its session times out
        atexit.register(self._close)
        self.kazoo.start_async()

    def _connecting(self, *args: Any) -> Any:
        """Connect to one host, in the place of kazoo's own method."""
        # kazoo would wait for an answer until the session times out; a server that just starts may never give one
        began = monotonic()
        self.handler.answer_by = began + self._answer_timeout
        try:
            read_timeout, connect_timeout = self._connect(*args)
        except SessionExpiredError:
            raise
        except (ConnectionDropped, KazooTimeoutError) as error:  # kazoo tries the next host
            self._error = error
            raise
        except Exception as error:  # the server or pure-sasl refuse the credentials, or ssl an option
            self._on_refused(error)
            raise AuthFailedError(str(error)) from error  # others would end kazoo's thread with a traceback
        finally:
            self.handler.answer_by = None
        # kazoo waits for two thirds of the negotiated timeout for data from the server; milliseconds
        self._on_connected(read_timeout * 1.5 / 1000, began)
        return read_timeout, connect_timeout

    def _unreachable(self) -> None:
        self._on_refused(self._error or OSError("none of the hosts has an address"))

    def _changed(self, state: str) -> None:
        callback = self._states.get(state)
        if callback is not None:
            callback()

    def create_container(self, path: str, acl: Any) -> Any:
        """Create a container node. Returns kazoo's kind of result."""
        return self._call(CreateContainer(self.kazoo.chroot + path, b"", acl, CONTAINER))

    def create_contender(self, path: str, data: bytes, acl: Any) -> Any:
        """Create an ephemeral, numbered node. Returns kazoo's kind of result, with the node's path and stat.

        kazoo's own method makes two results and five functions for it, a tenth of the cost of an acquire.
        """
        return self._call(Create2(self.kazoo.chroot + path, data, acl, EPHEMERAL | SEQUENCE))

    def _call(self, request: Any) -> Any:
        # the one private method of kazoo that is called: its public ones know no other requests than their own
        result = self.handler.async_result()
        self.kazoo._call(request, result)
        return result

    def close(self, *, wait: bool) -> None:
        """Close the session, and with it all its nodes. ``wait``: until the thread has ended, which takes
        CLOSE_TIMEOUT with a server that does not answer."""
        thread = threading.Thread(target=self._close, name=f"{self._name}-close", daemon=True)
        thread.start()
        if wait:
            thread.join()

    def _close(self) -> None:
        if os.getpid() != self._pid:  # a child that ends, forked while this was being closed
            return
        with self._closing:
            atexit.unregister(self._close)
            self.handler.closed_by = monotonic() + CLOSE_TIMEOUT
            self.kazoo.stop()
            self.kazoo.close()

    def abandon(self) -> None:
        """Drop the session in the child of a fork, without a message to the server."""
        atexit.unregister(self._close)
        self.handler.abandon()
