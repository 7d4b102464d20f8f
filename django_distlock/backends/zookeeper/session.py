"""One ZooKeeper session: requests with a deadline, requests that are repeated until answered, and the session's clock.

The server ends a session from which it has heard nothing for the session timeout, and kazoo does not notice as long as
the network is silent. So the session keeps time itself: from the sending of the last request that was answered.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakSet

from kazoo.exceptions import ZookeeperError

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.parking import Parker
from django_distlock.records import drift

from .client import NOT_ANSWERED, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Request = Callable[[Any], Any]

# After these shares of the session timeout without an answer: ask for a sign of life; take the connection for dead and
# the locks for doubtful. kazoo waits as long for an answer. A follower that died before it passed on the last requests
# had passed on older ones.
ASK, DOUBT = 1 / 6, 2 / 3
# The server's error code for a client that has to log in; kazoo has a class for it since 2.11.
WANTS_SASL = -124


class ConnectionBroken(Exception):
    """The connection broke before the answer; the session may go on."""


class SessionEnded(Exception):
    """The session has ended, or never began."""


class NoAnswer(Exception):
    """There was no answer in time. The request may have been executed, or be executed later."""


class Waiters:
    """Callers that are woken together."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._parkers: list[Parker] = []

    def __len__(self) -> int:
        return len(self._parkers)

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

    def forget(self) -> None:
        """Drop the watch, which kazoo will not call again."""
        self._watches.pop(self._path, None)

    def __call__(self, event: Any) -> None:
        self.forget()
        self.wake_all()


class ZooKeeperSession:
    """One ZooKeeper session of this process.

    ``wake_at`` schedules a tick of the keepalive thread. All methods may be called from any thread; kazoo's thread runs
    the callbacks.
    """

    CONNECTING, CONNECTED, SUSPENDED, ENDED = "connecting", "connected", "suspended", "ended"
    # these may follow each other; an end is final
    _ENDLESS: ClassVar = {CONNECTING, CONNECTED, SUSPENDED}

    def __init__(self, name: str, settings: Mapping[str, Any], path: str, wake_at: Callable[[float], None]) -> None:
        self.path = path
        self.timeout: float = settings["timeout"]
        self.heard_at = self.used_at = monotonic()
        self.state = self.CONNECTING
        # whether there ever was a connection; if not, the end means that no server could be reached
        self.reached = False
        self.error: Exception | None = None
        # its present users: calls, which an interrupt may end without a word, and held locks
        self.used_by: WeakSet[object] = WeakSet()
        self.held: set[Any] = set()
        self.wake_at = wake_at
        self.waiters = Waiters()  # for the connection
        self._guard = threading.Lock()
        self._repeated: dict[object, Request] = {}
        self._watches: dict[str, NodeWatch] = {}
        self._asked_at: float | None = None
        self.client = Client(
            name,
            settings,
            on_connected=self._connected,
            on_suspended=self._suspended,
            on_ended=self.end,
            on_refused=self._refused,
            tick=self._tick,
        )

    # callbacks, in kazoo's thread

    def _connected(self, timeout: float, began: float) -> None:
        with self._guard:
            if self.state is self.ENDED:
                return
            self.timeout, self.state, self._asked_at = timeout, self.CONNECTED, None
            self.reached = True
            self.heard_at = max(self.heard_at, began)
        self.waiters.wake_all()
        for token in list(self._repeated):
            self._send_again(token)
        self.wake_at(monotonic())

    def _suspended(self) -> None:
        with self._guard:
            if self.state is self.ENDED:
                return
            self.state = self.SUSPENDED
        self._watches.clear()  # kazoo has called them all
        self.waiters.wake_all()
        self.wake_at(monotonic())

    def _refused(self, error: Exception) -> None:
        if self.state is self.CONNECTING:
            self.end(error)

    def end(self, error: Exception | None = None) -> None:
        """Mark the session as ended, and with it all its locks."""
        with self._guard:
            if self.state is self.ENDED:
                return
            self.state, self.error = self.ENDED, error
        self._repeated.clear()
        self.waiters.wake_all()
        self.wake_at(monotonic())

    # its state

    @property
    def lost_at(self) -> float:
        """The monotonic time at which the server may end the session, unless it answers before."""
        return self.heard_at + self.timeout - drift(self.timeout)

    def lives(self) -> bool:
        """False, for good, once the session has ended or may have ended."""
        if self.state is self.ENDED:
            return False
        if monotonic() >= self.lost_at and self.state is not self.CONNECTING:
            self.end()
            return False
        return True

    def in_doubt(self) -> bool:
        """Is there no connection at present, or has the server been silent for DOUBT of the session timeout?"""
        return self.state is not self.CONNECTED or monotonic() >= self.heard_at + self.timeout * DOUBT

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
        now = monotonic()
        if self._asked_at is not None:
            dead = self._asked_at + self.timeout * (DOUBT - ASK)
            if now >= dead:
                self.client.handler.drop()
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
        behind for good, and kazoo swallows some interrupts: so the thread is woken once more after any failure.
        """
        sent = monotonic()
        try:
            result = request(self.client.kazoo)
        except BaseException:
            self.client.handler.wake()
            raise

        def hear(result: Any) -> None:
            if isinstance(result.exception, NOT_ANSWERED):
                self.client.handler.wake()
            else:
                self.heard_at = max(self.heard_at, sent)

        result.rawlink(hear)
        return result

    def ask(self, until: float, *requests: Request) -> Flow[list[Any]]:
        """Send the requests back to back and wait for the answers until the monotonic time ``until``.

        An answer that is an error of ZooKeeper's is returned and not raised. Raises ConnectionBroken, SessionEnded or
        NoAnswer.
        """
        if self.state is not self.CONNECTED:
            yield from self.connected(until)
        parker = Parker()
        results = [self.send(request) for request in requests]
        # the server answers in order, so that the last answer is the last
        results[-1].rawlink(lambda result: parker.wake())
        if not (yield Step(parker.park, parker.apark, (until - monotonic(),))):
            raise NoAnswer
        answers = []
        for result in results:
            error = result.exception
            if getattr(error, "code", None) == WANTS_SASL:
                raise error  # the last answer, and it will be the same each time
            if isinstance(error, NOT_ANSWERED):
                raise ConnectionBroken from error
            if error is not None and not isinstance(error, ZookeeperError):
                raise error
            answers.append(error if error is not None else result.value)
        return answers

    def connected(self, until: float) -> Flow[None]:
        """Wait for the connection until the monotonic time ``until``. Raises SessionEnded or NoAnswer."""
        while True:
            parker = Parker()
            self.waiters.add(parker)
            try:
                if self.state is self.CONNECTED:
                    return
                if not self.lives():
                    raise SessionEnded from self.error
                left = min(until, self.lost_at if self.state is self.SUSPENDED else until) - monotonic()
                woken = yield Step(parker.park, parker.apark, (left,))
            finally:
                self.waiters.remove(parker)
            if not woken and monotonic() >= until:
                raise NoAnswer

    def watch(self, path: str) -> NodeWatch:
        """The watch of that path."""
        watch = self._watches.get(path)
        return watch if watch is not None else self._watches.setdefault(path, NodeWatch(path, self._watches))

    def send_until_answered(self, request: Request, answered: Callable[[Any], object] = bool) -> None:
        """Send ``request`` on each new connection until it is answered or the session has ended, without waiting.

        ``answered`` is then called with kazoo's result, in kazoo's thread.
        """
        token = object()

        def send(kazoo: Any) -> Any:
            result = request(kazoo)
            result.rawlink(done)
            return result

        def done(result: Any) -> None:
            if not isinstance(result.exception, NOT_ANSWERED) and self._repeated.pop(token, None) is not None:
                answered(result)

        self._repeated[token] = send
        if self.state is self.CONNECTED:
            self._send_again(token)

    def _send_again(self, token: object) -> None:
        request = self._repeated.get(token)
        if request is not None:
            self.send(request)
