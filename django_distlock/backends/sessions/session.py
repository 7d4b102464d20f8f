"""One lock session: a connection on which locks live, what it holds, and how it is watched.

A thread asks by one blocking call of the driver. A task sends its statement and lets its event loop wait for the reply;
whoever needs the session meanwhile reads that reply first. So no task ever keeps the session from others.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from django_distlock.concurrency import clock, sockets
from django_distlock.concurrency.background import NotStarted
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.flow import in_task
from django_distlock.exceptions import BackendUnavailable

if TYPE_CHECKING:
    from django_distlock.backends.side_connection import SideConnection
    from django_distlock.concurrency.executor import Threads
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim

# A statement that does not wait and takes longer than this has met a server that hangs. The keepalive thread, which
# looks twice a second, ends its session then: within two seconds of the question (R5).
STATEMENT_LIMIT = 1.5
# A session that holds a lock is sent a ping once it was silent for this long; seconds. With the tick that notices the
# silence, STATEMENT_LIMIT for the reply and another tick, a loss is known within 7 s (R18).
HEARTBEAT = 3.9

# A session that is not ready this long after it was connected has met a server that hangs; seconds.
OPEN_LIMIT = 5.0

# Returns the rows of a statement.
Ask: TypeAlias = Callable[[bytes], list[Any]]


class SessionDead(Exception):
    """The session has ended; every lock on it is lost."""


class ServerError(Exception):
    """The server refused a statement; the session lives. ``code`` is the SQLSTATE or the error number."""

    def __init__(self, code: str | int, message: str) -> None:
        super().__init__(message)
        self.code = code


def unavailable(alias: str, error: BaseException) -> BackendUnavailable:
    """The error of a caller whose session has failed, with the first line of the server's message."""
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return BackendUnavailable(f"The lock session of alias {alias!r} failed: {reason}")


class Reply:
    """The reply to a statement that was sent by itself. ``waited_for`` is false if nobody will ask for it.

    It watches a duplicate of the session's descriptor: the number stays ours when the driver closes its own.
    """

    def __init__(self, descriptor: int, waited_for: bool = True) -> None:
        self.waited_for = waited_for
        self.done = False
        self._answer: bool | None = None
        self._error: Exception | None = None
        self._watched = os.dup(descriptor) if waited_for else -1
        self._loop = asyncio.get_running_loop() if waited_for and in_task() else None
        self._future: asyncio.Future[None] | None = self._loop.create_future() if self._loop is not None else None

    async def arrives(self, until: float) -> bool:
        """Wait until it can be read, or until another thread has read it; False at the monotonic time ``until``."""
        try:
            if self._loop is None or self._future is None:
                return sockets.readable(self._watched, until - clock.now())
            self._loop.add_reader(self._watched, self._notice)
            timer = None if until == math.inf else self._loop.call_later(until - clock.now(), self._notice)
            try:
                await self._future
            finally:
                self._loop.remove_reader(self._watched)
                if timer is not None:
                    timer.cancel()
            return self.done or sockets.readable(self._watched, 0)
        finally:
            self.forget()

    def forget(self) -> None:
        """Stop watching."""
        watched, self._watched = self._watched, -1
        if watched >= 0:
            os.close(watched)

    def _notice(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def finish(self, answer: bool | None, error: Exception | None) -> None:
        """Note what the server said, and wake the task that waits for it."""
        self._answer, self._error = answer, error
        self.done = True
        if self._loop is not None and self._future is not None and not self._future.done():
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._notice)

    def result(self) -> bool | None:
        """The answer, or the error."""
        error, self._error = self._error, None
        if error is None:
            return self._answer
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


class Session(ABC):
    """One connection to the server. A statement is sent while holding ``mutex``.

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
        self.connection = connection
        connection.duplicate()
        self.mutex = threading.Lock()
        self.waits = waits
        self.claims: dict[int, Claim] = {}
        self.dead: str | None = None
        self.used_at = self.heard_at = clock.now()
        # when the statement that runs now must have ended
        self.due: float | None = None
        # the reply to a statement that was sent by itself, until it is read
        self.unread: Reply | None = None
        # when others of this process may have the place of the wait that runs
        self.turn_ends = math.inf

    # what an engine must do

    @property
    @abstractmethod
    def server_id(self) -> int:
        """The server's number for this session."""

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
    def _prepared_for(self, statement: Any) -> bool:
        """May it be sent by itself?"""

    @abstractmethod
    def _send(self, statement: Any) -> None:
        """Send a statement. SessionDead, ServerError."""

    @abstractmethod
    def _receive(self) -> bool | None:
        """Read the reply to a statement that was sent, waiting for it if need be."""

    @abstractmethod
    def rows(self, sql: bytes) -> Any:
        """All rows of any statement; the caller has the mutex, or is alone."""

    @abstractmethod
    def _unexpected(self) -> None:
        """Read what the server sent unasked: a notice, or the end of the session."""

    @abstractmethod
    def _driver_fd(self) -> int:
        """The descriptor that the driver has open; -1 if it has closed it."""

    # statements

    def ask(self, statement: Any) -> bool | None:
        """Run a statement, blocking this thread; the watchdog ends it if it hangs. SessionDead, ServerError."""
        with self.mutex:
            if self.dead is not None:
                raise SessionDead(self.dead)
            if self.unread is not None:
                self._settle()
            now = clock.now()
            self.due = now + STATEMENT_LIMIT
            try:
                answer = self._ask(statement)
            finally:
                self.due = None
            self.heard_at = now
            return answer

    async def aask(
        self, statement: Any, threads: Threads, undo: Callable[[bool | None], object] | None = None
    ) -> bool | None:
        """:meth:`ask` for a task. What another thread uses now is asked in a thread, too; ``undo`` is called there if
        the task no longer waits for it. A statement that was sent takes effect though its task is cancelled."""
        reply = self._begin_at_once(statement)
        if reply is None:
            try:
                return await threads.short(self.ask, statement, undo=undo)
            except NotStarted:  # no thread to be had
                return self.ask(statement)
        try:
            await reply.arrives(math.inf)  # the watchdog ends it
        except BaseException:
            reply.waited_for = False
            raise
        return self._result(reply)

    async def wait(self, key: LockKey, shared: bool, until: float) -> bool | None:
        """Wait for the lock in the server's queue until the monotonic time ``until``; the session must hold nothing.

        None: it was not granted, or perhaps it was, and is to be released. Whoever gets an exception ends the session.
        """
        until = min(until, clock.now() + self.longest_wait)
        statement = self.wait_lock(key, shared, until)
        with self.mutex:
            reply = self._begin(statement, None)
        if not await reply.arrives(until + SILENCE):
            raise SessionDead("the server did not end a wait")
        try:
            return self._result(reply)
        except ServerError as error:
            if error.code in self.wait_is_over:
                return None
            raise

    async def query(self, sql: bytes, until: float) -> Any:
        """The rows of any statement by the monotonic time ``until``; it blocks this thread. SessionDead, ServerError"""
        with self.mutex:
            if self.dead is not None:
                raise SessionDead(self.dead)
            if self.unread is not None:
                self._settle()
            self.due = until
            try:
                return self.rows(sql)
            finally:
                self.due = None

    def _begin_at_once(self, statement: Any) -> Reply | None:
        """Send a statement, unless the session is in use now."""
        if not self.mutex.acquire(blocking=False):
            return None
        try:
            if self.unread is not None or not self._prepared_for(statement):
                return None
            return self._begin(statement, clock.now() + STATEMENT_LIMIT)
        finally:
            self.mutex.release()

    def _begin(self, statement: Any, due: float | None, waited_for: bool = True) -> Reply:
        """Send a statement; the caller has the mutex."""
        if self.dead is not None:
            raise SessionDead(self.dead)
        if self.unread is not None:
            self._settle()
        reply = Reply(self.connection.descriptor, waited_for)
        try:
            self.due, self.unread = due, reply
            self._send(statement)
        except BaseException:
            self.due, self.unread = None, None
            reply.forget()
            raise
        return reply

    def _result(self, reply: Reply) -> bool | None:
        if not reply.done:
            with self.mutex:
                if not reply.done:
                    self._settle()
        return reply.result()

    def _settle(self) -> None:
        """Read the reply that is due, for whoever waits for it; the caller has the mutex."""
        reply = self.unread
        if reply is None:
            return
        now = clock.now()
        try:
            if self.dead is not None:
                raise SessionDead(self.dead)
            self.due = now + STATEMENT_LIMIT  # it may break off in the middle
            answer = self._receive()
            self.heard_at = now
            reply.finish(answer, None)
        except (ServerError, SessionDead) as error:
            reply.finish(None, error)
        except BaseException:
            self.kill("the reading of a reply was interrupted")
            raise
        finally:
            self.due, self.unread = None, None

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

    def kill(self, reason: str) -> None:
        """Declare the session dead and end the statement that hangs on it; from any thread."""
        self.dead = self.dead or reason
        self.connection.cut()

    def close(self) -> bool:
        """Close the connection. False while a statement runs on it: a driver crashes if its connection is closed while
        another thread reads from it."""
        if self.mutex.locked():
            return False
        with self.mutex:  # an interrupt between an acquire() and its try would leave it locked
            self.dead = self.dead or "closed"
            if self.unread is not None:
                self._settle()
            self.connection.close()
        return True

    def close_if_unused(self) -> bool:
        """:meth:`close`, unless a claim has come."""
        if self.mutex.locked():
            return False
        with self.mutex:
            if self.claims or self.unread is not None:
                return False
            self.dead = "closed"
            self.connection.close()
        return True

    def abandon(self) -> None:
        """In the child of a fork: leave the parent's connection alone."""
        self.dead = "fork"
        if self.unread is not None:
            self.unread.forget()
        if self.connection.descriptor >= 0:
            self.connection.abandon(self._driver_fd())

    def notice_end(self) -> None:
        """Notice that the server has hung up, unless a statement runs."""
        if self.dead is None and not self.mutex.locked():
            with self.mutex:  # it waits, for a moment, if another thread has just taken it
                self._look(overdue=False)

    def _look(self, overdue: bool) -> bool:
        """Read what has come that nobody reads. False if nothing has come."""
        if self.dead is not None or not sockets.readable(self.connection.descriptor, 0):
            return False
        if self.unread is None:
            with suppress(SessionDead):  # self.dead says so
                self._unexpected()
        elif overdue or not self.unread.waited_for:
            self._settle()
        return True

    def tick(self, now: float) -> None:
        """The watchdog and the heartbeat; the keepalive thread calls this, and is not kept waiting by a server."""
        due = self.due
        overdue = due is not None and now >= due
        if self.dead is not None:
            return
        if not self.mutex.acquire(blocking=False):
            if overdue and self.due == due:
                self.kill("a statement hung")
            return
        try:
            if self._look(overdue) or self.dead is not None:
                return
            if overdue:
                self.kill("a statement hung")
            elif self.claims and self.unread is None and now - self.heard_at >= HEARTBEAT:
                self._begin(self.ping(), now + STATEMENT_LIMIT, waited_for=False)
        except Exception as error:
            self.kill(f"{type(error).__name__} while looking after it")
        finally:
            self.mutex.release()
