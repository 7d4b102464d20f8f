"""kazoo's client as this package needs it: one thread, a session timeout that is known, an end that comes in time."""

from __future__ import annotations

import atexit
import logging
import math
import os
import select
import socket
import threading
import traceback
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    SASLException,
    SessionExpiredError,
    SessionMovedError,
    ZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Create2
from kazoo.retry import KazooRetry

from django_distlock.concurrency.clock import monotonic

from .sockets import Bell, Buffered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

# What kazoo says to requests that the server has not answered.
NOT_ANSWERED = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError, AuthFailedError)
# Seconds that a TCP connection may take; and that the server has to say goodbye.
CONNECT, FAREWELL = 2.0, 0.5
# A sixth of the session timeout may a server take to answer to a new connection, and so many seconds at least.
LEAST_PATIENCE = 1.0
# Seconds after which the thread, while it connects, looks whether it shall end.
LOOK = 0.25
# kazoo is told to try again after so many seconds, growing up to the second number.
RETRY, LONGEST_RETRY = 0.02, 0.5

# What kazoo reports as information or as a warning of its own is reported by us, as what it means for locks.
_silent = logging.Logger("django_distlock.kazoo", logging.CRITICAL + 1)


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server deletes once its last child has gone; kazoo has no call for it.

    Source: https://zookeeper.apache.org/doc/r3.8.0/zookeeperProgrammers.html#Container+Nodes
    """

    type = 19


# The flags that go with the kinds of nodes.
EPHEMERAL, SEQUENCE, CONTAINER = 1, 2, 4


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Replies and events are dealt with where they are read: kazoo's two threads for that cost two changes of thread
    per request. So no callback may block or raise."""

    def __init__(
        self, name: str, connect_timeout: float, requests: Callable[[], Collection[Any]], tick: Callable[[], float]
    ) -> None:
        super().__init__()
        self._name = name
        self._connect_timeout = connect_timeout
        self._requests, self._tick = requests, tick
        self._socket: Buffered | None = None
        # monotonic times at which the connection is dropped: an answer to its first request; the end
        self.answer_by: float | None = None
        self.closed_by: float | None = None
        self.bell: Any = None

    def start(self) -> None:
        """Without workers: kazoo then calls back at once."""

    def stop(self) -> None:
        """Nothing was started."""

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=self._name, daemon=True)
        thread.start()
        return thread

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        """kazoo's own makes a selector for every call, and misses what TLS has read already."""
        decrypted = [each for each in readers if getattr(each, "pending", int)()]
        if decrypted:
            return decrypted, [], []
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        until = math.inf if timeout is None else monotonic() + timeout
        while True:
            left = min(until, self._look_after()) - monotonic()
            found = {fd for fd, _ in poll.poll(max(left, 0.0) * 1000)}
            if found or monotonic() >= until:
                return *([each for each in group if each.fileno() in found] for group in (readers, writers)), []

    def _look_after(self) -> float:
        """Do what is due while the thread waits; when to look again."""
        now = monotonic()
        limits = [each for each in (self.answer_by, self.closed_by) if each is not None]
        if limits and now >= min(limits):
            self.drop()
            return math.inf
        return min(self._tick(), *limits, math.inf if self.answer_by is None else now + LOOK)

    def create_connection(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        try:
            made = super().create_connection(*args, timeout=min(timeout or CONNECT, self._connect_timeout), **kwargs)
        except Exception as error:
            # kazoo leaves a socket whose TLS handshake failed to the garbage collector
            for frame, _ in traceback.walk_tb(error.__traceback__):
                left = frame.f_locals.get("conn")
                if isinstance(left, socket.socket):
                    left.close()
            raise
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = Buffered(made)
        return self._socket

    def create_socket_pair(self) -> Any:
        reader, writer = super().create_socket_pair()
        self.bell = Bell(reader, writer, self._requests)
        return self.bell, self.bell

    def drop(self) -> None:
        """End the connection, so that kazoo looks for another one."""
        if self._socket is not None:
            self._socket.drop()

    def abandon(self) -> None:
        """In the child of a fork: give back the descriptors. The parent's connection does not notice."""
        for each in (self._socket, self.bell):
            if each is not None:
                each.close()


class Client:
    """One kazoo client that serves one ZooKeeper session and is not used again after its end.

    ``on_connected(timeout, began)`` is called in kazoo's thread when the session is there, or there again: its
    negotiated timeout in seconds, and the monotonic time before the server was asked. ``on_suspended`` and
    ``on_ended`` say that there is no connection, and no session; ``on_refused(error, hosts)`` that an attempt to
    connect to one of so many addresses failed. ``tick`` is called there too, again at the latest at the monotonic time
    that it returns.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        *,
        on_connected: Callable[[float, float], None],
        on_suspended: Callable[[], None],
        on_ended: Callable[[], None],
        on_refused: Callable[[Exception, int], None],
        tick: Callable[[], float],
    ) -> None:
        self._name = name
        self._patience = max(settings["timeout"] / 6, LEAST_PATIENCE)
        self._on_connected, self._on_refused = on_connected, on_refused
        self._states = {"SUSPENDED": on_suspended, "LOST": on_ended}
        self.handler = Handler(f"{name}-io", min(CONNECT, settings["timeout"] / 3), lambda: self.kazoo._queue, tick)
        self.kazoo = KazooClient(
            **settings,
            handler=self.handler,
            connection_retry=KazooRetry(max_tries=-1, delay=RETRY, max_delay=LONGEST_RETRY),
            command_retry=KazooRetry(max_tries=1),
            logger=_silent,
        )
        # kazoo tells nobody the timeout that the server has agreed to, when it asked, and how many there are to ask
        connection = self.kazoo._connection
        self._connect, connection._connect = connection._connect, self._connecting
        self._resolve, connection._expand_client_hosts = connection._expand_client_hosts, self._resolved
        self._addresses = 0
        self.kazoo.add_listener(self._changed)
        self._closing = threading.Lock()
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin to connect; nothing is waited for."""
        # a program that ends gives its locks back at once, and not when its session has run out
        atexit.register(self._close)
        self.kazoo.start_async()

    def _resolved(self) -> Any:
        try:
            found = self._resolve()
        except Exception as error:
            self._on_refused(error, 0)
            raise
        self._addresses = len(found)
        if not found:
            self._on_refused(OSError("none of the hosts has an address"), 0)
        return found

    def _connecting(self, *args: Any) -> Any:
        # kazoo would wait for an answer for as long as the session lives; a server that just starts may never give one
        began = monotonic()
        self.handler.answer_by = began + self._patience
        try:
            read_timeout, connect_timeout = self._connect(*args)
        except SessionExpiredError:
            raise
        except (ZookeeperError, SASLException) as error:  # the credentials are refused, by the server or by pure-sasl
            self._on_refused(error, 0)
            raise AuthFailedError(str(error)) from error  # of the others kazoo's thread dies, with a traceback
        except Exception as error:
            self._on_refused(error, self._addresses)
            raise
        finally:
            self.handler.answer_by = None
        # kazoo waits for two thirds of the session's timeout for a word from the server; milliseconds
        self._on_connected(read_timeout * 1.5 / 1000, began)
        return read_timeout, connect_timeout

    def _changed(self, state: str) -> None:
        told = self._states.get(state)
        if told is not None:
            told()

    def create_container(self, path: str, acl: Any) -> Any:
        """Create a container node, with kazoo's kind of result."""
        result = self.handler.async_result()
        self.kazoo._call(CreateContainer(self.kazoo.chroot + path, b"", acl, CONTAINER), result)
        return result

    def create_contender(self, path: str, data: bytes, acl: Any) -> Any:
        """Create an ephemeral, numbered node: kazoo's kind of result, with the server's own path of it and the stat.

        kazoo's own call makes two results and five functions for it, a tenth of an acquire.
        """
        result = self.handler.async_result()
        self.kazoo._call(Create2(self.kazoo.chroot + path, data, acl, EPHEMERAL | SEQUENCE), result)
        return result

    def close(self, *, wait: bool) -> None:
        """Close the session, and with it all its nodes. ``wait``: until the thread has gone, which takes long only
        with a server that does not answer: FAREWELL."""
        thread = threading.Thread(target=self._close, name=f"{self._name}-close", daemon=True)
        thread.start()
        if wait:
            thread.join()

    def _close(self) -> None:
        if os.getpid() != self._pid:  # a child that ends, forked while this was being closed
            return
        with self._closing:
            atexit.unregister(self._close)
            self.handler.closed_by = monotonic() + FAREWELL
            self.kazoo.stop()
            self.kazoo.close()

    def abandon(self) -> None:
        """In the child of a fork: forget it without a word to the server."""
        atexit.unregister(self._close)
        self.handler.abandon()
