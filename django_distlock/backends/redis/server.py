"""One Redis server as this process uses it: connections, and calls with a deadline."""

from __future__ import annotations

import contextlib
import math
import re
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from django_distlock.backends.base import IDLE
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.deadline import PATIENCE, SILENCE, pause
from django_distlock.concurrency.flow import in_task, run
from django_distlock.concurrency.parking import FairLock, Parker

from .connection import Connection, ConnectionFailed, ErrorReply
from .listener import Listener
from .scripts import RELEASE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .scripts import Request
    from .target import Target

# Connections of one process to one server at most, and how many are opened at the same time. Further callers wait for
# one, in order of arrival.
MAX_CONNECTIONS, MAX_OPENING = 16, 4
# What nodes of a Redis Cluster answer while a slot moves or a replica takes over, as a primary that was demoted answers
# READONLY. It has changed a moment later; the request is repeated this often (seconds).
NOT_NOW, REFUSED_AGAIN = ("TRYAGAIN", "ASK", "CLUSTERDOWN"), 0.05
# A call is repeated on another connection if one is lost: idle ones may be dead.
TRIES = 3
# Requests that wait to be sent again.
MOST_UNSENT = 1000


class Refused(ConnectionFailed):
    """The server answered with an error: it did nothing."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(f"Redis refused: {reply}")
        self.__cause__ = reply


class NotUnderstood(ConnectionFailed):
    """No script of ours returns this."""

    def __init__(self, reply: object) -> None:
        super().__init__(f"What was sent is no reply of our script: {str(reply)[:80]!r}")


class Moved(Refused):
    """A node of a Redis Cluster says which ``address`` has the keys of the ``slot``."""

    pattern = re.compile(r"MOVED (\d+) (\S*:\d+)")

    def __init__(self, reply: ErrorReply, slot: str, address: str) -> None:
        super().__init__(reply)
        self.slot, self.address = int(slot), address


class Server:
    """``name`` is for threads: an address may hold a password. ``opened`` is called when there is something to look
    after: see :meth:`tick`."""

    def __init__(self, target: Target, name: str, opened: Callable[[], object]) -> None:
        self.target = target
        self.name = name
        self._opened = opened
        self._start()

    def _start(self) -> None:
        self._idle: list[Connection] = []  # the one used last is used first
        # weakly: one that an interrupt has lost between two statements is closed with the last reference to it
        self._all: WeakSet[Connection] = WeakSet()
        self._opening: set[object] = set()
        self._line = FairLock()  # of callers that found nothing at hand
        self._change: Parker | None = None  # what the first of them waits for
        self._background = Background(f"{self.name}-connect")
        self._unsent: deque[Request] = deque(maxlen=MOST_UNSENT)  # see take_back()
        self._sending = False
        self.silent_at = -math.inf  # when a caller got no answer last (monotonic)
        self.listener = Listener(lambda: self.target.connect(IDLE), f"{self.name}-listen", self._opened, self.take_back)

    # connections

    def take(self) -> Connection | None:
        """A connection at hand, or None. Never waits."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.usable():
                return connection
            self._discard(connection)
        return None

    async def connect(self, until: float, releases: bool = False) -> Connection:
        """A connection at hand, a new one, or the next that is given back, in order of arrival. ConnectionFailed at the
        monotonic time ``until``. ``releases``: it is for a release."""
        turn, mark = self._line.turn(), object()
        try:
            first = await turn.acquire(until - clock.now())
            while first:
                self._change = change = Parker()  # before the look, or it may be missed
                if (connection := self.take()) is not None:
                    return connection
                if len(self._opening) < MAX_OPENING and len(self._all) + len(self._opening) < MAX_CONNECTIONS:
                    self._opening.add(mark)
                    turn.release()
                    return await self._connected(until, releases)
                first = await change.park(until - clock.now())
            raise ConnectionFailed("There was no free connection to Redis in time.", silent=True)
        finally:
            self._opening.discard(mark)
            turn.release()
            leftovers.now_or_later(self._call_first)

    def _call_first(self) -> None:
        """Have the first caller in line look again."""
        change, self._change = self._change, None
        if change is not None:
            change.wake()

    async def _connected(self, until: float, releases: bool = False) -> Connection:
        """A new connection."""
        left = max(0.01, min(until - clock.now(), IDLE))
        try:
            try:
                connection = await self._background.call(until, self._connect, left, dispose=Connection.close)
            except NotStarted as error:
                if error.__cause__ is None or (in_task() and not releases):  # too many attempts are under way, or
                    raise  # the event loop would stand still
                connection = self._connect(left)  # there is no thread, as at the end of the interpreter
        except CallTimeout:
            raise ConnectionFailed("Redis could not be reached in time.", silent=True) from None
        except Exception as error:  # of the socket or of redis-py
            raise ConnectionFailed(f"Redis cannot be reached: {error}") from error
        self._all.add(connection)
        self._opened()
        return connection

    def _connect(self, timeout: float) -> Connection:
        return Connection(self.target.connect(timeout))

    def give(self, connection: Connection) -> None:
        """Take a connection back."""
        connection.used_at = clock.now()
        if connection.unwanted:
            self._discard(connection)
            return
        self._idle.append(connection)
        if self._change is not None:
            self._call_first()

    def _discard(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.close()
        if connection.unconfirmed:
            self.take_back(connection.unconfirmed)
        if self._change is not None:
            self._call_first()

    # requests

    async def call(
        self, request: Request, until: float, withdrawal: Callable[[], Request] | None = None, least: float = 0.0
    ) -> tuple[Any, bool]:
        """The reply, and whether the request may have been executed before. ConnectionFailed after SILENCE: the server
        hangs, or is no longer at the address of the connection. A request that is repeated has until the monotonic
        time ``until``. ``least``: until when SILENCE lasts, if the caller has asked another server before.

        ``withdrawal`` takes the request back. It is sent behind it on the same connection if the caller leaves before
        the reply: a server that hangs executes both when it wakes. A request without one does no harm when it comes
        late, and is repeated on another connection. A release is sent even after this call has failed.
        """
        unanswered: list[ConnectionFailed] = []
        try:
            return await self._repeated(request, until, withdrawal, least, unanswered), bool(unanswered)
        except Moved:
            raise
        except BaseException as error:
            if request.script is RELEASE and isinstance(error, ConnectionFailed):
                self.take_back([request])
            elif unanswered and withdrawal is not None:
                leftovers.now_or_later(self.take_back, [withdrawal()])
            raise

    async def _repeated(
        self,
        request: Request,
        until: float,
        withdrawal: Callable[[], Request] | None,
        least: float,
        unanswered: list[ConnectionFailed],
    ) -> Any:
        """The reply. ``unanswered`` gets the errors after which the request is repeated."""
        tries, asked_at = 0, 0.0
        least = least or max(until, clock.now() + SILENCE)
        while True:
            connection = None if self._change else self.take()
            try:
                if connection is None:  # to connect takes its time, which does not count against a short timeout
                    connect_by = min(max(until, clock.now() + SILENCE), least + SILENCE)
                    connection = await self.connect(connect_by, request.script is RELEASE)
                asked_at = asked_at or clock.now()
                reply = await self._asked(connection, request, least + SILENCE)
            except ConnectionFailed as error:
                tries += 1
                if connection is not None:
                    self._give_up(connection, error, withdrawal)
                elif not unanswered:
                    raise
                if tries == TRIES or (error.silent and (withdrawal is not None or clock.now() >= until)):
                    raise
                unanswered.append(error)
            except BaseException as error:  # cancelled, interrupted or closed
                if connection is not None:
                    self._give_up(connection, error, withdrawal)
                raise
            else:
                if request.understands(reply):
                    self.give(connection)
                    return reply
                if type(reply) is not ErrorReply:  # nor is the next reply to be trusted
                    connection.unwanted = True
                    self.leave(connection, withdrawal and withdrawal())
                    raise NotUnderstood(reply)
                tries = 0
                await self._refused(connection, reply, min(least, asked_at + PATIENCE))

    def _give_up(self, connection: Connection, error: BaseException, withdrawal: Callable[[], Request] | None) -> None:
        """Part with a connection on which there was no answer."""
        if isinstance(error, ConnectionFailed) and not error.silent:
            self.lost(connection)
        else:
            leftovers.now_or_later(self.leave, connection, withdrawal and withdrawal())

    async def _refused(self, connection: Connection, reply: ErrorReply, until: float) -> None:
        """Wait a moment if another server is about to have the keys, but not beyond the monotonic time ``until``; else
        raise what this one says."""
        demoted = "READONLY" in str(reply)  # not always the first word, before Redis 7
        if demoted:
            self.lost(connection)
        else:
            self.give(connection)
        if not (demoted or reply.code in NOT_NOW) or clock.now() >= until:
            moved = Moved.pattern.fullmatch(str(reply))
            raise Moved(reply, *moved.groups()) if moved else Refused(reply)
        await pause(REFUSED_AGAIN)

    @staticmethod
    async def _asked(connection: Connection, request: Request, until: float) -> Any:
        until = min(until, clock.now() + SILENCE)
        connection.send(request.packed)
        reply = await connection.receive(until)
        if type(reply) is ErrorReply and reply.code == "NOSCRIPT":
            connection.send(request.whole)
            reply = await connection.receive(until)
        return reply

    def leave(self, connection: Connection, last: Request | None) -> None:
        """Take a connection back on which a reply may be due. ``last`` ends what has been asked for on it."""
        try:
            if last is not None:
                connection.send_last(last)
        except ConnectionFailed:
            self.lost(connection)
        else:
            self.give(connection)

    def lost(self, connection: Connection) -> None:
        """It is broken; so are the idle ones, which lead to the same dead server."""
        self._discard(connection)
        self._close_idle()

    def take_back(self, requests: Iterable[Request]) -> None:
        """Have them sent as soon as the server can be reached: what they end may have been executed on a connection
        that is lost."""
        waiting = bool(self._unsent)
        self._unsent.extend(requests)
        if not waiting:
            leftovers.leave(self._send_again)

    def _send_again(self) -> None:
        if self._sending:
            return
        self._sending = True
        try:
            while self._unsent:
                request = self._unsent[0]
                if clock.now() < request.until:
                    run(self._repeated(request, clock.now() + PATIENCE, None, 0.0, []))
                self._unsent.popleft()
        except ConnectionFailed:  # tick() tries again
            self._unsent.rotate(-1)
            self._opened()
        except IndexError:  # close() was faster
            pass
        finally:
            self._sending = False

    # looking after

    def tick(self, now: float) -> bool:
        """Close idle connections. False if there is nothing to look after."""
        self._close_idle(now - IDLE)
        self._hear_confirmations()
        if self._unsent:
            leftovers.leave(self._send_again)
        return any((self._all, self._unsent, self.listener.rest(now), self.target.rest(now)))

    def _hear_confirmations(self) -> None:
        """And learn which connections were cut."""
        for connection in [each for each in list(self._idle) if each.unconfirmed]:
            with contextlib.suppress(ValueError):  # it has just been taken
                self._idle.remove(connection)
                self.give(connection) if connection.usable() else self._discard(connection)

    def _close_idle(self, unused_since: float = float("inf")) -> None:
        for connection in list(self._idle):
            if connection.used_at <= unused_since:
                with contextlib.suppress(ValueError):
                    self._idle.remove(connection)
                    self._discard(connection)

    def close(self) -> None:
        """Close every connection; a caller that waits on one gets ConnectionFailed."""
        self.listener.close()
        self.target.close()
        self._unsent.clear()
        connections, self._all = list(self._all), WeakSet()
        idle, self._idle = self._idle, []
        for connection in connections:
            connection.unwanted = True
            connection.close() if connection in idle else connection.cut()

    def after_fork(self) -> None:
        """In the child: the connections are the parent's. redis-py knows that by itself."""
        for connection in list(self._all):
            connection.close()
        self.listener.abandon()
        self._start()
