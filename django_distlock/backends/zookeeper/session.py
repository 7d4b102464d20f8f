"""One ZooKeeper session: requests with a deadline, requests that are repeated until answered, and the session's clock.

The server ends a session from which it has heard nothing for the session timeout, and kazoo does not notice as long as
the network is silent. So the session keeps time itself: from the sending of the last request that was answered.

Three private names of kazoo are used, for the reasons given there (one in ``client.py``); for the rest its handler,
listeners and retry objects.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import Create2, Delete, SetData, Transaction
from kazoo.protocol.states import EventType
from kazoo.retry import KazooRetry

from django_distlock.concurrency import clock
from django_distlock.concurrency.parking import Parker
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import drift

from .client import Client
from .handler import Handler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Request = Callable[[Any], Any]

# After these shares of the session timeout without an answer: ask for a sign of life; take the connection for dead and
# the locks for doubtful. kazoo waits as long for an answer. A follower that died before it passed on the last requests
# had passed on older ones.
ASK, DOUBT = 1 / 6, 2 / 3
# kazoo's errors for requests that the server has not answered.
NOT_ANSWERED = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError, AuthFailedError)
# The server's error code for a client that has to log in; kazoo has a class for it since 2.11.
WANTS_SASL = -124
# A TCP connection may take this long; seconds.
CONNECT_TIMEOUT = 2.0
# The server may take this long to confirm the end of the session; seconds.
CLOSE_TIMEOUT = 0.5
# A server may take a sixth of the session timeout to answer to a new connection, and at least this; seconds.
MIN_ANSWER_TIMEOUT = 1.0
# kazoo waits this long after it has tried all hosts in vain, growing up to the second number; seconds.
RETRY_DELAY, MAX_RETRY_DELAY = 0.02, 0.5
# The two events of a marked release come one directly behind the other; this far apart on a busy machine; seconds.
MARK_TIMEOUT = 0.02
# The flags of ZooKeeper's kinds of nodes.
EPHEMERAL, SEQUENCE, CONTAINER = 1, 2, 4

# Drops kazoo's log messages: the backend reports the same events in terms of locks.
_silent = logging.Logger("django_distlock.kazoo", logging.CRITICAL + 1)


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server deletes once its last child has gone; kazoo has no call for it.

    Source: https://zookeeper.apache.org/doc/r3.8.0/zookeeperProgrammers.html#Container+Nodes
    """

    type = 19


class ConnectionBroken(Exception):
    """The connection broke before the answer; the session may go on."""


class SessionEnded(BackendUnavailable):
    """The session has ended, or never began."""


class NoAnswer(BackendUnavailable):
    """There was no answer in time. The request may have been executed, or be executed later."""


class Waiters:
    """Callers that are woken together."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._parkers: list[Parker] = []

    def add(self, parker: Parker) -> None:
        with self._guard:
            self._parkers.append(parker)

    def remove(self, parker: Parker) -> None:
        with self._guard, contextlib.suppress(ValueError):
            self._parkers.remove(parker)

    def wake_all(self) -> None:
        with self._guard:
            parkers, self._parkers = self._parkers, []
        for parker in parkers:
            parker.wake()


class NodeWatch(Waiters):
    """The waiters for a change of one node, or of its children.

    There is one watch for each path: a long-held lock has many waiters in turn, and kazoo keeps every callback until
    the node changes.
    """

    def __init__(self, path: str, watches: dict[str, NodeWatch]) -> None:
        super().__init__()
        self._path, self._watches = path, watches
        self._changed_at: float | None = None
        # whether the node was deleted directly behind a change
        self.released = False

    def forget(self) -> None:
        """Drop the watch, which kazoo will not call again."""
        self._watches.pop(self._path, None)

    def __call__(self, event: Any) -> None:
        self.forget()
        if event.type == EventType.CHANGED:
            self._changed_at = clock.now()
        elif event.type == EventType.DELETED and self._changed_at is not None:
            self.released = clock.now() - self._changed_at < MARK_TIMEOUT
        self.wake_all()

    async def marked(self, until: float) -> bool:
        """After a change: wait for the deletion directly behind it. True if this was a marked release.

        A program that writes to the node changes it too. The wait ends at the monotonic time ``until`` at the latest.
        """
        parker = Parker()
        self.add(parker)
        try:
            if self._changed_at is not None and not self.released:
                await parker.park(min(MARK_TIMEOUT, until - clock.now()))
        finally:
            self.remove(parker)
        return self.released


class ZooKeeperSession:
    """One ZooKeeper session of this process, with its kazoo client, which is not used again after its end.

    ``wake_at`` schedules a tick of the keepalive thread. All methods may be called from any thread; kazoo's thread runs
    the callbacks.
    """

    CONNECTING, CONNECTED, SUSPENDED, ENDED = "connecting", "connected", "suspended", "ended"

    def __init__(self, alias: str, settings: Mapping[str, Any], path: str, wake_at: Callable[[float], None]) -> None:
        self.path = path
        self.timeout: float = settings["timeout"]
        self.heard_at = self.used_at = clock.now()
        self.state = self.CONNECTING
        # whether there ever was a connection; if not, the end means that no server could be reached
        self.reached = False
        # its present users: calls, which an interrupt may end without a word, and held locks
        self.used_by: WeakSet[object] = WeakSet()
        self.held: set[Any] = set()
        self.wake_at = wake_at
        self.waiters = Waiters()  # for the connection
        # what waits for an answer or for a watch. kazoo may drop both without a word when it is closed: it registers no
        # watch then, and of two threads one may put a request into the queue that the other one throws away
        self.asking = Waiters()
        self._alias, self._name = alias, f"distlock-{alias}-zookeeper"
        self._error: Exception | None = None
        self._guard, self._closing = threading.Lock(), threading.Lock()
        self._repeated: dict[object, tuple[Request, Callable[[Any], object]]] = {}
        self._watches: dict[str, NodeWatch] = {}
        self._asked_at: float | None = None
        self._pid = os.getpid()
        self._answer_timeout = max(self.timeout / 6, MIN_ANSWER_TIMEOUT)
        self._handler = Handler(
            f"{self._name}-io",
            min(CONNECT_TIMEOUT, self.timeout / 3),
            self._tick,
            self._unreachable,
            self.end,
        )
        sleep = self._handler.sleep_func
        self.kazoo = Client(
            **settings,
            handler=self._handler,
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

    def start(self) -> None:
        """Begin to connect without waiting for it."""
        # so that the locks of a program that ends are free at once, and not when its session times out
        atexit.register(self._close)
        self.kazoo.start_async()

    # callbacks, in kazoo's thread

    def _connecting(self, *args: Any) -> Any:
        """Connect to one host, in the place of kazoo's own method."""
        # kazoo would wait for an answer until the session times out; a server that just starts may never give one
        began = clock.now()
        self._handler.answer_by = began + self._answer_timeout
        try:
            read_timeout, connect_timeout = self._connect(*args)
        except SessionExpiredError:
            raise
        except (ConnectionDropped, KazooTimeoutError) as error:  # kazoo tries the next host
            self._error = error
            raise
        except Exception as error:  # the server or pure-sasl refuse the credentials, or ssl an option
            self._error = error
            self._unreachable()
            raise AuthFailedError(str(error)) from error  # others would end kazoo's thread with a traceback
        finally:
            self._handler.answer_by = None
        # kazoo waits for two thirds of the negotiated timeout for data from the server; milliseconds
        self._connected(read_timeout * 1.5 / 1000, began)
        return read_timeout, connect_timeout

    def _unreachable(self) -> None:
        """None of the hosts could be connected to, or the credentials are refused."""
        if self.state is self.CONNECTING:
            self.end(self._error or OSError("none of the hosts has an address"))

    def _connected(self, timeout: float, began: float) -> None:
        """The session exists, or has a connection again. ``began``: before the server was asked."""
        with self._guard:
            if self.state is self.ENDED:
                return
            self.timeout, self.state, self._asked_at = timeout, self.CONNECTED, None
            self.reached = True
            self.heard_at = max(self.heard_at, began)
        self.waiters.wake_all()
        for token in list(self._repeated):
            self._send_again(token)
        self.wake_at(clock.now())

    def _changed(self, state: str) -> None:
        if state == "LOST":
            self.end()
        elif state == "SUSPENDED":
            with self._guard:
                if self.state is self.ENDED:
                    return
                self.state = self.SUSPENDED
            self._watches.clear()  # kazoo has called them all
            self.waiters.wake_all()
            self.wake_at(clock.now())

    # its state

    def end(self, error: Exception | None = None) -> None:
        """Mark the session as ended, and with it all its locks. This is final."""
        with self._guard:
            if self.state is not self.ENDED:
                self.state, self._error = self.ENDED, error
        # again each time, because an interrupted call is repeated
        for token in list(self._repeated):
            self._finish(token, None)
        self.waiters.wake_all()
        self.asking.wake_all()
        self.wake_at(clock.now())

    @property
    def lost_at(self) -> float:
        """The monotonic time at which the server may end the session, unless it answers before."""
        return self.heard_at + self.timeout - drift(self.timeout)

    def lives(self) -> bool:
        """False, for good, once the session has ended or may have ended."""
        if self.state is self.ENDED:
            return False
        if clock.now() >= self.lost_at and self.state is not self.CONNECTING:
            self.end()
            return False
        return True

    def in_doubt(self) -> bool:
        """Is there no connection at present, or has the server been silent for DOUBT of the session timeout?"""
        return self.state is not self.CONNECTED or clock.now() >= self.heard_at + self.timeout * DOUBT

    @property
    def idle(self) -> bool:
        """Is the session unused, with no request left to be answered?"""
        return not (self.used_by or self.held or self._repeated)

    def _tick(self) -> float:
        """Ask for a sign of life if the server has been silent, and drop a dead connection. Returns the time of the
        next call.

        It runs in kazoo's thread, since the keepalive thread may be kept busy by users' callbacks.
        """
        if self.state is not self.CONNECTED:
            return math.inf
        now = clock.now()
        if self._asked_at is not None:
            dead = self._asked_at + self.timeout * (DOUBT - ASK)
            if now >= dead:
                self._handler.drop()
            return dead
        due = self.heard_at + self.timeout * ASK
        if now >= due:
            self._asked_at = now
            self.send(lambda kazoo: kazoo.exists_async(self.path)).rawlink(self._answered)
        return due

    def _answered(self, result: Any) -> None:
        self._asked_at = None

    # requests

    def send(self, request: Request) -> Any:
        """Send the request without waiting. Returns kazoo's result.

        An interrupt between kazoo's queue of requests and the wake-up of its thread would leave that one request
        behind for good: so the thread is woken once more after any failure.
        """
        sent = clock.now()
        try:
            result = request(self.kazoo)
        except BaseException:
            self._handler.wake()
            raise

        def hear(result: Any) -> None:
            if isinstance(result.exception, NOT_ANSWERED):
                self._handler.wake()
            else:
                self.heard_at = max(self.heard_at, sent)

        result.rawlink(hear)
        return result

    async def answered(self, until: float, *requests: Request) -> list[Any]:
        """Send the requests back to back and wait for the answers until the monotonic time ``until``.

        Returns kazoo's results, for :meth:`value`. Raises ConnectionBroken, SessionEnded or NoAnswer.
        """
        parker = Parker()
        self.asking.add(parker)
        try:
            if self.state is not self.CONNECTED:
                await self.connected(until)
            results = [self.send(request) for request in requests]
            # the server answers in order, so that the last answer is the last
            results[-1].rawlink(lambda result: parker.wake())
            if not await parker.park(until - clock.now()):
                raise NoAnswer(self.failure(None))
        finally:
            self.asking.remove(parker)
        if not results[-1].ready():
            raise ConnectionBroken  # the session has ended, and :meth:`connected` says so to whoever asks again
        for error in [result.exception for result in results]:
            if getattr(error, "code", None) == WANTS_SASL:
                break  # the last answer, and it will be the same each time
            if isinstance(error, NOT_ANSWERED):
                raise ConnectionBroken from error
        return results

    def value(self, result: Any) -> Any:
        """The answer in a result of kazoo's; None if there is no such node, or if it exists already."""
        error = result.exception
        if error is None or isinstance(error, (NoNodeError, NodeExistsError)):
            return result.value
        raise BackendUnavailable(self.failure(error)) from error

    async def ask(self, until: float, *requests: Request) -> list[Any]:
        """:meth:`answered` with the values in the place of the results."""
        results = await self.answered(until, *requests)
        return [self.value(result) for result in results]

    def failure(self, error: BaseException | None) -> str:
        """The text of an error for the caller. ``error``: kazoo's, None if there was no answer."""
        what = f"failed: {type(error).__name__} {error}".rstrip() if error is not None else "did not answer in time"
        return f"ZooKeeper (alias {self._alias!r}) {what}."

    async def connected(self, until: float) -> None:
        """Wait for the connection until the monotonic time ``until``. Raises SessionEnded or NoAnswer."""
        while True:
            parker = Parker()
            self.waiters.add(parker)
            try:
                if self.state is self.CONNECTED:
                    return
                if not self.lives():
                    raise SessionEnded(self.failure(self._error)) from self._error
                left = min(until, self.lost_at if self.state is self.SUSPENDED else until) - clock.now()
                woken = await parker.park(left)
            finally:
                self.waiters.remove(parker)
            if not woken and clock.now() >= until:
                raise NoAnswer(self.failure(None))

    def watch(self, path: str) -> NodeWatch:
        """The watch of that path."""
        watch = self._watches.get(path)
        return watch if watch is not None else self._watches.setdefault(path, NodeWatch(path, self._watches))

    def send_until_answered(self, request: Request, answered: Callable[[Any], object] = bool) -> None:
        """Send ``request`` on each new connection until it is answered or the session has ended, without waiting.

        ``answered`` is then called with kazoo's result, in kazoo's thread; with None if the session has ended.
        """
        token = object()

        def send(kazoo: Any) -> Any:
            result = request(kazoo)
            result.rawlink(done)
            return result

        def done(result: Any) -> None:
            if not isinstance(result.exception, NOT_ANSWERED):
                self._finish(token, result)

        self._repeated[token] = send, answered
        if self.state is self.CONNECTED:
            try:
                self._send_again(token)
            except BaseException:  # an interrupt: the caller repeats it all
                self._repeated.pop(token, None)
                raise
        elif self.state is self.ENDED:
            self._finish(token, None)

    def _send_again(self, token: object) -> None:
        if token in self._repeated:
            self.send(self._repeated[token][0])

    def _finish(self, token: object, result: Any) -> None:
        _, answered = self._repeated.pop(token, (None, bool))
        answered(result)

    def create_container(self, path: str, acl: Any) -> Any:
        """Create a container node. Returns kazoo's kind of result."""
        return self._call(CreateContainer(self.kazoo.chroot + path, b"", acl, CONTAINER))

    def create_contender(self, path: str, data: bytes, acl: Any) -> Any:
        """Create an ephemeral, numbered node. Returns kazoo's kind of result, with the node's path and stat.

        kazoo's own method makes two results and five functions for it, a tenth of the cost of an acquire.
        """
        return self._call(Create2(self.kazoo.chroot + path, data, acl, EPHEMERAL | SEQUENCE))

    def release_node(self, path: str) -> Any:
        """Delete the node of a held lock, so that its watchers know that it was held. Returns kazoo's kind of result.

        Both operations are done at once. The first one uses up a watch for the data, the second one a watch for the
        children: who has both is told "changed" and directly behind it "deleted", and after a mere deletion, which the
        server reports to each client once, only "deleted".
        """
        path = self.kazoo.chroot + path
        return self._call(Transaction((SetData(path, b"", -1), Delete(path, -1))))

    def _call(self, request: Any) -> Any:
        # the one private method of kazoo that is called: its public ones know no other requests than their own
        result = self._handler.async_result()
        self.kazoo._call(request, result)
        return result

    # its end

    def close(self, *, wait: bool) -> None:
        """Close the session, and with it all its nodes. ``wait``: until the thread has ended, which takes
        CLOSE_TIMEOUT with a server that does not answer."""
        thread = threading.Thread(target=self._close, name=f"{self._name}-close", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started, and a session that stays open keeps its nodes
            self._close()
            return
        if wait:
            thread.join()

    def _close(self) -> None:
        if os.getpid() != self._pid:  # a child that ends, forked while this was being closed
            return
        with self._closing:
            atexit.unregister(self._close)
            self._handler.closed_by = clock.now() + CLOSE_TIMEOUT
            if self._handler.spawned:
                self.kazoo.stop()
            self.kazoo.close()

    def abandon(self) -> None:
        """Drop the session in the child of a fork, without a message to the server."""
        atexit.unregister(self._close)
        self._handler.abandon()
