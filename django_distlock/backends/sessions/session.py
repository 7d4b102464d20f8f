"""One lock session: a connection on which locks live, what it holds, and how it is watched."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from django_distlock.concurrency import clock, sockets
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.exceptions import BackendUnavailable

from .reply import Reply
from .watched import HUNG, SessionDead, WatchedSession

if TYPE_CHECKING:
    from django_distlock.backends.side_connection import SideConnection
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim

T = TypeVar("T")

# A statement that does not wait and takes longer than this has met a server that hangs. The keepalive thread, which
# looks twice a second, ends its session then: within two seconds of the question (R5).
STATEMENT_LIMIT = 1.5
# A session that holds a lock is sent a ping once it was silent for this long; seconds. With the tick that notices the
# silence, STATEMENT_LIMIT for the reply and another tick, a loss is known within 7 s (R18).
HEARTBEAT = 3.9

# A session that is not ready this long after it was connected has met a server that hangs; seconds.
OPEN_LIMIT = 5.0

# How long a waiter keeps its place at the server while others want one; seconds. A waiter without a place is in no
# queue of the server. Doubled each time, so that it gets in at last even where many wait for its lock.
TURN = 1.0

# Returns the rows of a statement.
Ask: TypeAlias = Callable[[bytes], list[Any]]


class TurnOver(Exception):
    """The wait has had its turn, and another caller of this process waits instead."""


class ServerError(Exception):
    """The server refused a statement; the session lives. ``code`` is the SQLSTATE or the error number."""

    def __init__(self, code: str | int, message: str) -> None:
        super().__init__(message)
        self.code = code


def unavailable(alias: str, error: BaseException, what: str = "lock session") -> BackendUnavailable:
    """The error of a caller whose session, or other ``what``, has failed: the first line of the server's message."""
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return BackendUnavailable(f"The {what} of alias {alias!r} failed: {reason}")


class Session(WatchedSession, ABC):
    """A session on which locks live.

    ``claims`` has each claim from before the server is asked for it until it is refused or released. So a claim whose
    caller has gone is found here, whether it was granted or not. An answer is True or False; None is an error that
    leaves it open whether there was an effect.
    """

    #: Errors that end a wait: the time is over, or somebody has cancelled the statement.
    wait_is_over: ClassVar[frozenset[str | int]]
    #: The errors by which the server says that a wait would never end.
    deadlocks: ClassVar[frozenset[str | int]]
    #: Seconds for which the server can be asked to wait; a longer wait is repeated.
    longest_wait: ClassVar[float]

    def __init__(self, connection: SideConnection, waits: bool) -> None:
        super().__init__(connection, waits)
        #: The server's number for this session.
        self.server_id = 0
        #: When the latest statement that was answered was sent, not when its answer came: the session may have ended
        #: since.
        self.heard_at = clock.now()

    # what an engine must do

    @abstractmethod
    def try_lock(self, claim: Claim) -> Any:
        """The statement that takes the lock if it is free."""

    @abstractmethod
    def wait_lock(self, key: LockKey, shared: bool, until: float) -> Any:
        """The statement that waits for the lock until the monotonic time ``until``."""

    @abstractmethod
    def free_lock(self, key: LockKey, shared: bool) -> Any:
        """The statement that releases the lock. False if this session did not hold it."""

    @abstractmethod
    def ping(self) -> Any:
        """A statement without an effect."""

    @abstractmethod
    def _ask(self, statement: Any) -> bool | None:
        """Run a statement by one blocking call of the driver."""

    @abstractmethod
    def _send(self, statement: Any) -> None:
        """Send a statement. SessionDead, ServerError."""

    def _sendable(self, statement: Any) -> bool:
        """Can it be sent without a round trip before?"""
        return True

    @abstractmethod
    def _receive(self) -> bool | None:
        """Read the reply to a statement that was sent, waiting for it if need be."""

    @abstractmethod
    def rows(self, sql: bytes) -> Any:
        """All rows of any statement; the caller has the mutex, or is alone."""

    @abstractmethod
    def _unexpected(self) -> None:
        """Read what the server sent unasked: a notice, or the end of the session."""

    # statements

    def ask(self, statement: Any, reply: Reply | None = None) -> bool | None:
        """Run a statement, blocking this thread; the watchdog ends it if it hangs. SessionDead, ServerError.

        ``reply``: it was sent by :meth:`send`.
        """
        if reply is None:
            return self._alone(self._ask, statement)
        if not reply.read:
            with self.mutex:
                if self.unread is reply:
                    self._settle()
        return reply.result()

    def send(self, statement: Any) -> Reply | None:
        """Send a statement for a task; None if that would block its event loop, or if the session is dead."""
        if self.mutex.locked() or self.dead is not None or not self._sendable(statement):
            return None
        with self.mutex:  # it waits, for a moment, if another thread has just taken it
            if self.unread is not None or self.dead is not None:
                return None
            try:
                reply = Reply(self.connection.descriptor)
            except OSError:  # of all files that the process may have open
                return None
            try:
                return self._sent(statement, reply)
            except BaseException as error:
                reply.forget()
                self.kill("a statement could not be sent")
                if not isinstance(error, SessionDead):
                    raise
                return None

    def query(self, sql: bytes) -> Any:
        """:meth:`ask` for the rows of any statement."""
        return self._alone(self.rows, sql)

    def _alone(self, call: Callable[[Any], T], statement: Any) -> T:
        with self.mutex:
            self._make_ready()
            now = clock.now()
            self.due = now + STATEMENT_LIMIT
            try:
                answer = call(statement)
            finally:
                self.due = None
            self.heard_at = now
            return answer

    def wait(self, claim: Claim, until: float, turn_ends: float, gives_way: Callable[[], bool]) -> bool | None:
        """Wait for the lock in the server's queue until the monotonic time ``until``; the session must hold nothing.

        None: it was not granted, or perhaps it was, and is to be released. After an exception the session must be
        ended. TurnOver: after ``turn_ends`` the place at the server was given to another caller, by ``gives_way()``.
        """
        until = min(until, clock.now() + self.longest_wait)
        with self.mutex:
            self._make_ready()
            self._send(self.wait_lock(claim.key, claim.shared, until))
            self._await_reply(until + SILENCE, turn_ends, gives_way)
            try:
                return self._read()
            except ServerError as error:
                if error.code in self.wait_is_over:
                    return None
                raise

    def _await_reply(self, until: float, turn_ends: float, gives_way: Callable[[], bool]) -> None:
        """Block until a reply to :meth:`wait` can be read. SessionDead if none comes; TurnOver."""
        while not sockets.readable(self.connection.descriptor, min(until, turn_ends) - clock.now()):
            if (now := clock.now()) >= until:
                raise SessionDead("the server did not end a wait")
            if now >= turn_ends:
                if gives_way():
                    raise TurnOver
                turn_ends = now + TURN

    def _make_ready(self) -> None:
        """Before a statement is sent; the caller has the mutex."""
        if self.unread is not None and self.dead is None:
            self._settle()
        if self.dead is not None:
            raise SessionDead(self.dead)

    def _sent(self, statement: Any, reply: Reply) -> Reply:
        self.due, self.unread = reply.sent_at + STATEMENT_LIMIT, reply
        self._send(statement)
        return reply

    def _read(self) -> bool | None:
        """Read a reply that has begun to arrive, and may break off."""
        now = clock.now()
        self.due = now + STATEMENT_LIMIT
        try:
            answer = self._receive()
        finally:
            self.due = None
        self.heard_at = now
        return answer

    def _settle(self) -> None:
        """Read the reply that is due; the caller has the mutex."""
        reply, answer = self.unread, None
        assert reply is not None  # noqa: S101 - the caller has looked
        error: Exception | None = SessionDead("the reading of a reply was interrupted")
        try:
            answer, error = self._read(), None
            self.heard_at = reply.sent_at
        except (ServerError, SessionDead) as failure:
            error = failure
        except BaseException:
            self.kill(str(error))
            raise
        finally:
            self.unread = None
            reply.finish(answer, error)

    # claims

    def shares(self, claim: Claim) -> bool:
        """Does it hold, or ask for, the lock of ``claim`` for another claim, too? The server counts its readers."""
        return any(other is not claim and other.key == claim.key for other in list(self.claims.values()))

    # its life

    @contextmanager
    def opening(self) -> Iterator[None]:
        """While it is made ready for its locks. The keepalive thread does not watch it yet."""
        watchdog = threading.Timer(OPEN_LIMIT, self.kill, ["it was not ready in time"])
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            watchdog.cancel()

    def notice_end(self) -> None:
        """Notice that the server has hung up, unless a statement runs."""
        if self.dead is None and not self.mutex.locked():
            with self.mutex:  # it waits, for a moment, if another thread has just taken it
                self._look()

    def _look(self) -> bool:
        """Read what no thread waits for: a reply, or a message of the server. False: nothing came."""
        if self.dead is not None or not sockets.readable(self.connection.descriptor, 0):
            return False
        if self.unread is not None:
            self._settle()
        else:
            with suppress(SessionDead):  # self.dead says so
                self._unexpected()
        return True

    def tick(self, now: float) -> None:
        """The watchdog and the heartbeat; the keepalive thread calls this, and is not kept waiting by a server."""
        due = self.due
        overdue = due is not None and now >= due
        if self.dead is not None:
            return
        if not self.mutex.acquire(blocking=False):
            if overdue and self.due == due:
                self.kill(HUNG)
            return
        try:
            if self._look() or self.dead is not None:
                return
            if overdue and self.due == due:  # else it has been answered meanwhile
                self.kill("a heartbeat or a task's statement was not answered")
            elif self.claims and self.unread is None and now - self.heard_at >= HEARTBEAT:
                self._sent(self.ping(), Reply())
        except Exception as error:
            self.kill(f"{type(error).__name__} while looking after it")
        finally:
            self.mutex.release()
