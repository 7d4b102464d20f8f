"""One ZooKeeper session: requests with a deadline, watches, deletions that are repeated until answered, and a clock.

The leader ends a session from which it has heard nothing for the session timeout, and kazoo does not notice as long as
the network is silent. So the session keeps time itself: from the sending of the last sign of life that was answered.
That is a ``sync``, which a follower passes on to the leader. Reads prove nothing: a follower that the leader does not
hear answers them for as long as its ``syncLimit``, which may be longer than the session.

Four private names of kazoo are used, for the reasons given there; for the rest its handler, listeners and retry
objects.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from kazoo.client import KazooClient
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
from kazoo.protocol.states import EventType, KeeperState
from kazoo.retry import KazooRetry

from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.parking import Parker
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import drift

from .handler import Handler

if TYPE_CHECKING:
    from collections.abc import Mapping

# A call of kazoo's client that returns its kind of result.
Request: TypeAlias = Callable[[Any], Any]

# After these shares of the session timeout without an answer: ask for a sign of life; take the connection for dead and
# the locks for doubtful. A follower that died before it passed on the last requests had passed on older ones.
ASK, DOUBT = 1 / 6, 2 / 3
# A lock that is held for longer is watched, so that its holder learns if an operator breaks it; seconds.
WATCH_AFTER = 0.25
# kazoo waits about this long after it has tried all hosts in vain; seconds.
RETRY_DELAY = 0.1
# The server may take this long to confirm the end of the session; seconds.
CLOSE_TIMEOUT = 0.5
# kazoo's errors for requests that the server has not answered.
NOT_ANSWERED = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, SessionMovedError, AuthFailedError)
# What kazoo's client answers by itself once it has no session.
ENDED_STATES = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.CLOSED: ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}
# The server's error code for a client that has to log in; kazoo has a class for it since 2.11.
WANTS_SASL = -124
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


class Sleeper(Parker):
    """A caller that is woken by an event of the node ``path``, and by each change of the session's state.

    ``event`` is the kind of the event. It is set up before the request that asks for the watch.
    """

    __slots__ = ("_session", "event", "path")

    def __init__(self, session: ZooKeeperSession, path: str = "") -> None:
        super().__init__()
        self._session, self.path = session, path
        self.event: str | None = None

    def __enter__(self) -> Self:
        self._session.sleepers.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._session.sleepers.discard(self)


class ZooKeeperSession:
    """One ZooKeeper session of this process, with its kazoo client, which is not used again after its end.

    ``wake_at`` schedules a tick of the keepalive thread. All methods may be called from any thread; kazoo's thread runs
    the callbacks.
    """

    CONNECTING, CONNECTED, SUSPENDED, ENDED = "connecting", "connected", "suspended", "ended"

    def __init__(self, alias: str, settings: Mapping[str, Any], path: str, wake_at: Callable[[float], None]) -> None:
        self.path = path
        self.timeout: float = settings["timeout"]
        self.heard_at = clock.now()
        self.state = self.CONNECTING
        # whether there ever was a connection; if not, the end means that no server could be reached
        self.reached = False
        # the contenders that hold a lock, by the paths of their nodes
        self.held: dict[str, Any] = {}
        self.wake_at = wake_at
        # changed without a mutex: the garbage collector may close a coroutine that sleeps here
        self.sleepers: set[Sleeper] = set()
        self._alias, self._pid = alias, os.getpid()
        self._error: Exception | None = None
        self._guard, self._closing = threading.Lock(), threading.Lock()
        # nodes to be deleted, by the beginning of their paths: is it the whole path?
        self._doomed: dict[str, bool] = {}
        # how many connections there were
        self._connections = 0
        self._send_doomed = False
        # the sending time of the sign of life, or of the first request of a connection, that is to be answered
        self._asked_at: float | None = None
        self._handler = Handler(f"distlock-{alias}-zookeeper-io", self._sleep, self.end)
        self.kazoo = KazooClient(
            **settings,
            handler=self._handler,
            connection_retry=KazooRetry(
                max_tries=-1, delay=RETRY_DELAY, backoff=1, max_jitter=0, sleep_func=self._sleep
            ),
            command_retry=KazooRetry(1, sleep_func=self._sleep),
            logger=_silent,
        )
        # The one method of kazoo that is replaced, for R18: a lock must be doubted before the server gives it to
        # another process, and only this method knows the timeout that the server has agreed to
        # (https://github.com/python-zk/kazoo/issues/769).
        connection = self.kazoo._connection
        self._connect, connection._connect = connection._connect, self._connecting
        self._handler.requests = lambda: self.kazoo._queue
        # and a method that swallows KeyboardInterrupt and a task's soft time limit (R7) in a bare ``except``
        self.kazoo._call = self._call
        self.kazoo.add_listener(self._state_changed)

    def start(self) -> None:
        """Begin to connect without waiting for it."""
        # so that the locks of a program that ends are free at once, and not when its session times out
        atexit.register(self.close)
        try:
            self.kazoo.start_async()
        except Exception as error:  # at the limit of threads or of open files
            self.end(error)
            self.close()
            raise SessionEnded(self.failure(error)) from error

    # callbacks, in kazoo's thread

    def _connecting(self, *args: Any) -> Any:
        """Connect to one host, in the place of kazoo's own method."""
        began = self._asked_at = clock.now()
        try:
            read_timeout, connect_timeout = self._connect(*args)
        except SessionExpiredError:
            raise
        except (ConnectionDropped, KazooTimeoutError) as error:  # kazoo tries the next host
            self._error = error
            raise
        except Exception as error:  # the server or pure-sasl refuse the credentials, or ssl an option
            self.end(error)
            raise AuthFailedError(str(error)) from error  # others would end kazoo's thread with a traceback
        finally:
            self._asked_at = None
        with self._guard:
            if self.state is not self.ENDED:
                # kazoo waits for two thirds of the negotiated timeout for data from the server; milliseconds
                self.timeout, self.state, self.reached = read_timeout * 1.5 / 1000, self.CONNECTED, True
                self.heard_at = max(self.heard_at, began)
            self._connections += 1
        self._send_doomed = True
        self._wake_all()
        return read_timeout, connect_timeout

    def _sleep(self, seconds: float) -> None:
        """kazoo has tried all hosts in vain."""
        if not self.reached:
            self.end(self._error or OSError("none of the hosts has an address"))
        time.sleep(seconds)

    def _state_changed(self, state: str) -> None:
        if state == "LOST":
            self.end()
        elif state == "SUSPENDED":
            self._suspend()
            for contender in self.held.copy().values():
                contender.watched = False
            self._wake_all()

    def _suspend(self, connection: int | None = None) -> None:
        """There is no connection at present, if the last one was the one with the number ``connection``."""
        with self._guard:
            if self.state is not self.ENDED and connection in (None, self._connections):
                self.state = self.SUSPENDED

    def _wake_all(self) -> None:
        """Wake all who sleep, and the keepalive thread: the state has changed."""
        for sleeper in self.sleepers.copy():
            sleeper.wake()
        self.wake_at(clock.now())

    def changed(self, event: Any) -> None:
        """The watch of all nodes: kazoo keeps equal callbacks once for each path, however many wait for it."""
        for sleeper in self.sleepers.copy():
            if sleeper.path == event.path:
                sleeper.event = event.type
                sleeper.wake()
        contender = self.held.get(event.path)
        if contender is not None:
            self.unwatched(contender, deleted=event.type == EventType.DELETED)

    def unwatched(self, contender: Any, *, deleted: bool) -> None:
        """The node of a held lock is no longer watched; ``deleted`` by another client."""
        contender.watched = False
        if deleted and self.held.pop(contender.path or "", None) is not None:
            contender.broken = True
            self.wake_at(clock.now())

    # its state

    def end(self, error: Exception | None = None) -> None:
        """Mark the session as ended, and with it all its locks. This is final."""
        with self._guard:
            if self.state is not self.ENDED:
                self.state, self._error = self.ENDED, error
        self._doomed.clear()
        self._wake_all()  # each time, because an interrupted call is repeated

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

    def tick(self, now: float) -> float:
        """Ask for a sign of life if the server has been silent, drop a dead connection, and repeat on a new one the
        deletions that were not answered.

        In the keepalive thread. Returns the monotonic time of the next call.
        """
        connected, asked_at = self.state is self.CONNECTED, self._asked_at
        patience = self.timeout * (DOUBT - ASK) if connected else max(self.timeout * ASK, SILENCE)
        if asked_at is not None and now >= asked_at + patience:
            self._asked_at = None
            self._handler.drop()
        elif connected:
            if self._send_doomed:
                self._send_doomed = False
                for path in self._doomed.copy():
                    self._delete(path)
            for contender in self.held.copy().values():
                if not contender.watched and now >= contender.since + WATCH_AFTER:
                    contender.watch()
            if asked_at is None and now >= self.heard_at + self.timeout * ASK:
                self._asked_at = now
                self.send(lambda kazoo: kazoo.sync_async(self.path), lambda answer: self._heard(now))
        return now + self.timeout * ASK / 2

    def _heard(self, asked_at: float) -> None:
        self.heard_at, self._asked_at = max(self.heard_at, asked_at), None

    # requests

    def send(self, request: Request, answered: Callable[[Any], object] = bool) -> Any:
        """Send the request without waiting. Returns kazoo's result; ``answered`` gets it too, once it is an answer."""
        connection = self._connections
        try:
            result = request(self.kazoo)
        except BaseException:  # an interrupt, perhaps between kazoo's queue and its wake-up
            self._handler.wake()
            raise

        def hear(result: Any) -> None:
            if not isinstance(result.exception, NOT_ANSWERED):
                answered(result)
            elif isinstance(result.exception, ConnectionLoss):
                # before kazoo says so, which it does when it has refused all requests: those who ask again at once
                # would give it new ones for ever
                self._suspend(connection)

        result.rawlink(hear)
        return result

    async def ask(self, until: float, *requests: Request) -> list[Any]:
        """Send the requests back to back and wait for the answers until the monotonic time ``until``.

        The answer about a node that does not exist, or exists already, is None. Raises ConnectionBroken, SessionEnded,
        NoAnswer or BackendUnavailable.
        """
        if self.state is not self.CONNECTED:
            await self.connected(until)
        with Sleeper(self) as sleeper:
            if self.state is not self.CONNECTED:
                raise ConnectionBroken
            results = [self.send(request) for request in requests]
            # the server answers in order, so that the last answer is the last
            results[-1].rawlink(lambda result: sleeper.wake())
            if not await sleeper.park(until - clock.now()):
                raise NoAnswer(self.failure(None))
        if not results[-1].ready():
            raise ConnectionBroken  # the state has changed before it was sent; it may be sent later
        return [self._value(result) for result in results]

    def _value(self, result: Any) -> Any:
        error = result.exception
        if error is None or isinstance(error, (NoNodeError, NodeExistsError)):
            return result.value
        if isinstance(error, NOT_ANSWERED) and getattr(error, "code", None) != WANTS_SASL:
            raise ConnectionBroken from error
        raise BackendUnavailable(self.failure(error)) from error

    def failure(self, error: BaseException | None) -> str:
        """The text of an error for the caller. ``error``: kazoo's, None if there was no answer."""
        what = f"failed: {type(error).__name__} {error}".rstrip() if error is not None else "did not answer in time"
        return f"ZooKeeper (alias {self._alias!r}) {what}."

    async def connected(self, until: float) -> None:
        """Wait for the connection until the monotonic time ``until``. Raises SessionEnded or NoAnswer."""
        while True:
            with Sleeper(self) as sleeper:
                if self.state is self.CONNECTED:
                    return
                if not self.lives():
                    raise SessionEnded(self.failure(self._error)) from self._error
                left = min(until, self.lost_at if self.state is self.SUSPENDED else until) - clock.now()
                woken = await sleeper.park(left)
            if not woken and clock.now() >= until:
                raise NoAnswer(self.failure(None))

    def create(self, path: str, data: bytes, acl: Any, *, container: bool = False) -> Any:
        """Create an ephemeral, numbered node, or a container. Returns kazoo's kind of result, with path and stat.

        kazoo's own method knows no containers, and makes two results and five functions, a tenth of an acquire.
        """
        kind, flags = (CreateContainer, CONTAINER) if container else (Create2, EPHEMERAL | SEQUENCE)
        return self._asked(kind(self.kazoo.chroot + path, data, acl, flags))

    def release_node(self, path: str) -> Any:
        """Delete the node of a held lock, so that its watchers know that it was held. Returns kazoo's kind of result.

        Both operations are done at once. The first one uses up the watch of the next in line, who is told "changed"; a
        mere deletion tells "deleted".
        """
        path = self.kazoo.chroot + path
        return self._asked(Transaction((SetData(path, b"", -1), Delete(path, -1))))

    def _asked(self, request: Any) -> Any:
        """Kazoo's public methods know no other requests than their own."""
        result = self._handler.async_result()
        self._call(request, result)
        return result

    def _call(self, request: Any, result: Any) -> bool:
        """Give kazoo's thread a request, in the place of kazoo's own method. False if the session has ended."""
        error = ENDED_STATES.get(self.kazoo.client_state)
        if error is not None:
            result.set_exception(error())
            return False
        self.kazoo._queue.append((request, result))
        self._handler.wake()
        return True

    # deletions

    def doom(self, path: str, *, whole: bool = True) -> None:
        """Delete a node without waiting, on this connection or a later one: it would live as long as the session.

        Without ``whole``, ``path`` is the beginning of its path, whose rest was in a lost answer.
        """
        leftovers.now_or_later(self._doom, path, whole)

    def _doom(self, path: str, whole: bool) -> None:
        self._doomed[path] = whole
        if self.state is self.CONNECTED:
            self._delete(path)
        elif self.state is self.ENDED:
            self._doomed.clear()

    def _delete(self, path: str) -> None:
        """Send the deletion. What is not answered is sent again on the next connection."""
        if self._doomed.get(path):
            self.send(lambda kazoo: kazoo.delete_async(path), lambda answer: self._doomed.pop(path, None))
        else:
            parent = path.rpartition("/")[0]
            self.send(lambda kazoo: kazoo.sync_async(parent))  # the server may be a follower that is behind
            self.send(lambda kazoo: kazoo.get_children_async(parent), lambda answer: self._found(path, parent, answer))

    def _found(self, path: str, parent: str, children: Any) -> None:
        for name in children.value or ():
            if f"{parent}/{name}".startswith(path):
                self._doomed[f"{parent}/{name}"] = True
                self._delete(f"{parent}/{name}")
        self._doomed.pop(path, None)

    # its end

    def close(self) -> None:
        """Close the session, and with it all its nodes. It waits for the server, for CLOSE_TIMEOUT at most."""
        if os.getpid() != self._pid:  # a child that ends, forked while this was being closed
            return
        with self._closing:
            atexit.unregister(self.close)
            self._handler.closed_by = clock.now() + CLOSE_TIMEOUT
            if not self.kazoo.connected:
                self._handler.drop()  # nobody would answer
            with contextlib.suppress(AttributeError):  # it was never started
                self.kazoo.stop()
            self.kazoo.close()

    def abandon(self) -> None:
        """Drop the session in the child of a fork, without a message to the server."""
        atexit.unregister(self.close)
        self._handler.abandon()
