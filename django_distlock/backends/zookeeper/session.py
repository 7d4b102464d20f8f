"""One ZooKeeper session: requests with a deadline, what has to be done whatever happens, and when the session is over.

The server ends a session from which it has heard nothing for the session timeout, and kazoo does not notice as long as
the network is silent. So the time counts here, from the sending of the last request that was answered.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from kazoo.exceptions import ZookeeperError

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.parking import Parker
from django_distlock.records import drift

from .client import NOT_ANSWERED, Client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Request = Callable[[Any], Any]

# After these shares of the session timeout without an answer: ask; take the connection for dead and the locks for
# doubtful. kazoo waits as long for an answer; and a follower that died with the last words of ours untold had told
# older ones.
ASK, DOUBT = 1 / 6, 2 / 3
# What a server answers to a client that has to log in; kazoo has a class for it since 2.11.
WANTS_SASL = -124


class Dropped(Exception):
    """The connection broke before the answer; the session may go on."""


class Over(Exception):
    """The session has ended, or never began."""


class Late(Exception):
    """There was no answer in time. What was asked may have been done, or be done later."""


class Watch:
    """Whom to wake when a node, or what is below it, changes. One for each path: a lock that is held for long is waited
    for many times, and kazoo keeps every callback until the node changes."""

    def __init__(self, path: str, watches: dict[str, Watch]) -> None:
        self._path, self._watches = path, watches
        self._guard = threading.Lock()
        self._parkers: list[Parker] = []

    def add(self, parker: Parker) -> None:
        with self._guard:
            self._parkers.append(parker)

    def remove(self, parker: Parker) -> None:
        with self._guard, contextlib.suppress(ValueError):
            self._parkers.remove(parker)

    def forget(self) -> None:
        """It will not be called any more."""
        self._watches.pop(self._path, None)

    def __call__(self, event: Any) -> None:
        self.forget()
        with self._guard:
            parkers, self._parkers = self._parkers, []
        for parker in parkers:
            parker.wake()


class Session:
    """``wake_at`` asks for a tick. Everything may be called from any thread; callbacks come in kazoo's."""

    CONNECTING, CONNECTED, SUSPENDED, ENDED = "connecting", "connected", "suspended", "ended"
    # may follow each other; an end is an end
    _ENDLESS: ClassVar = {CONNECTING, CONNECTED, SUSPENDED}

    def __init__(self, name: str, settings: Mapping[str, Any], path: str, wake_at: Callable[[float], None]) -> None:
        self.path = path
        self.timeout: float = settings["timeout"]
        self.heard_at = self.used_at = monotonic()
        self.state = self.CONNECTING
        # was there ever a connection? If not, its end means that no server could be reached
        self.reached = False
        self.error: Exception | None = None
        # who uses it now, the flows and the locks held
        self.flows = 0
        self.held: set[Any] = set()
        self.wake_at = wake_at
        self._guard = threading.Lock()
        self._parked: list[Parker] = []
        self._chores: dict[object, Request] = {}
        self._watches: dict[str, Watch] = {}
        self._refusals = 0
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

    # what kazoo tells, in its thread

    def _connected(self, timeout: float, began: float) -> None:
        with self._guard:
            if self.state is self.ENDED:
                return
            self.timeout, self.state, self._asked_at = timeout, self.CONNECTED, None
            self.reached = True
            self.heard_at = max(self.heard_at, began)
        self._wake_all()
        for token in list(self._chores):
            self._do(token)
        self.wake_at(monotonic())

    def _suspended(self) -> None:
        with self._guard:
            if self.state is self.ENDED:
                return
            self.state = self.SUSPENDED
        self._watches.clear()  # kazoo has called them all
        self._wake_all()
        self.wake_at(monotonic())

    def _refused(self, error: Exception, addresses: int) -> None:
        self._refusals += 1
        if self.state is self.CONNECTING and self._refusals >= addresses:
            self.end(error)

    def end(self, error: Exception | None = None) -> None:
        """The session has ended, and all its locks with it."""
        with self._guard:
            if self.state is self.ENDED:
                return
            self.state, self.error = self.ENDED, error
        self._chores.clear()
        self._wake_all()
        self.wake_at(monotonic())

    def _wake_all(self) -> None:
        with self._guard:
            parked, self._parked = self._parked, []
        for parker in parked:
            parker.wake()

    # what is known of it

    @property
    def lost_at(self) -> float:
        """The monotonic time at which the server may have ended the session, if it is not heard before."""
        return self.heard_at + self.timeout - drift(self.timeout)

    def lives(self) -> bool:
        """False once and for all if it has ended, or if nobody can tell that it has not."""
        if self.state is self.ENDED:
            return False
        if monotonic() >= self.lost_at and self.state is not self.CONNECTING:
            self.end()
            return False
        return True

    def in_doubt(self) -> bool:
        """Is there no connection at present, or has the server been silent for long?"""
        return self.state is not self.CONNECTED or monotonic() >= self.heard_at + self.timeout * DOUBT

    def _tick(self) -> float:
        """In kazoo's thread: ask for a sign of life if there was none of late, and drop a connection that is dead; when
        to come again. Not in the keepalive thread, which may be kept by what others do in it."""
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
        """Send it, or have it sent; kazoo's result."""
        sent = monotonic()
        result = request(self.client.kazoo)

        def hear(result: Any) -> None:
            if not isinstance(result.exception, NOT_ANSWERED):
                self.heard_at = max(self.heard_at, sent)

        result.rawlink(hear)
        return result

    def ask(self, until: float, *requests: Request) -> Flow[list[Any]]:
        """Send the requests back to back and wait for the answers until the monotonic time ``until``.

        An answer that is an error of ZooKeeper's is returned and not raised. Raises Dropped, Over or Late.
        """
        if self.state is not self.CONNECTED:
            yield from self.connected(until)
        parker = Parker()
        try:
            with self.client.handler.bell.once():
                results = [self.send(request) for request in requests]
        except OSError as closed:
            raise Over from closed
        # the server answers in order, so that the last answer is the last
        results[-1].rawlink(lambda result: parker.wake())
        if not (yield Step(parker.park, parker.apark, (until - monotonic(),))):
            raise Late
        answers = []
        for result in results:
            error = result.exception
            if getattr(error, "code", None) == WANTS_SASL:
                raise error  # the last answer, and it will be the same each time
            if isinstance(error, NOT_ANSWERED):
                raise Dropped from error
            if error is not None and not isinstance(error, ZookeeperError):
                raise error
            answers.append(error if error is not None else result.value)
        return answers

    def connected(self, until: float) -> Flow[None]:
        """Wait for the connection. Raises Over or Late."""
        while True:
            parker = Parker()
            with self._guard:
                if self.state is self.CONNECTED:
                    return
                if self.state in self._ENDLESS:
                    self._parked.append(parker)
            if not self.lives():
                raise Over from self.error
            left = min(until, self.lost_at if self.state is self.SUSPENDED else until) - monotonic()
            try:
                woken = yield Step(parker.park, parker.apark, (left,))
            finally:
                with self._guard, contextlib.suppress(ValueError):
                    self._parked.remove(parker)
            if not woken and monotonic() >= until:
                raise Late

    def watch(self, path: str) -> Watch:
        """The watch of that path."""
        watch = self._watches.get(path)
        return watch if watch is not None else self._watches.setdefault(path, Watch(path, self._watches))

    # what has to be done whatever happens

    def insist(self, request: Request, answered: Callable[[Any], object] = bool) -> None:
        """Send ``request`` again and again until it is answered or the session has ended; nobody waits. ``answered`` is
        called with kazoo's result then, in kazoo's thread."""
        token = object()

        def chore(kazoo: Any) -> Any:
            result = request(kazoo)
            result.rawlink(done)
            return result

        def done(result: Any) -> None:
            # else it is sent again once there is a connection
            if not isinstance(result.exception, NOT_ANSWERED) and self._chores.pop(token, None) is not None:
                answered(result)

        self._chores[token] = chore
        if self.state is self.CONNECTED:
            self._do(token)

    def _do(self, token: object) -> None:
        chore = self._chores.get(token)
        if chore is not None:
            self.send(chore)

    @property
    def idle(self) -> bool:
        """Does nobody use it, and is nothing left to be done?"""
        return not (self.flows or self.held or self._chores)
