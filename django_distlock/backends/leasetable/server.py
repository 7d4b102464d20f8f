"""The lease table on a database server: a session beside the caller's, used by one thread at a time.

A lease written inside the caller's transaction would be invisible to rivals until that ends. Leases are rows, so the
loss of the session loses none of them: a statement that hangs is ended by shutting the socket down, and is sent again
on a new session while there is time.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, InternalError, OperationalError, connections

from django_distlock.backends.side_connection import SideConnection, code_of
from django_distlock.concurrency import clock
from django_distlock.concurrency.background import CallTimeout, NotStarted, SharedCall
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.exceptions import BackendUnavailable

from .statements import MySQLStatements, PostgresStatements, Statements

if TYPE_CHECKING:
    from collections.abc import Callable

# By the vendor of the database.
STATEMENTS: dict[str, type[Statements]] = {"postgresql": PostgresStatements, "mysql": MySQLStatements}
# The server undid the statement in favour of another one: SQLSTATEs of PostgreSQL, error numbers of MySQL and MariaDB.
CONFLICTS = frozenset({"40001", "40P01", "55P03", 1020, 1205, 1213})
NO_TABLE = frozenset({"42P01", 1146})
CONFLICT_PAUSE = 0.001
# An idle session may be dead, and so may the next one. After that the server is taken to refuse sessions.
LOST_SESSIONS = 2


class LostReply(BackendUnavailable):
    """There was no reply to a statement, which the server may have executed, or may execute later."""


class SessionDead(Exception):
    """A statement of another caller has ended the session; nothing was sent."""


class LeaseSession(SideConnection):
    """A session of this package. Its statements go to the driver's cursor, so that Django does not log them.

    ``mutex`` is held for each operation, and to close the session: a driver crashes if another thread is reading.
    """

    def __init__(self, database: str) -> None:
        super().__init__(database)
        if self.wrapper.vendor == "postgresql":
            self.options["server_side_binding"] = True  # without it statements cannot be prepared
        elif self.wrapper.vendor == "mysql":
            self.options["isolation_level"] = "read committed"  # the server's default would lock gaps of the queue
        self.mutex = threading.Lock()
        self.used_at = clock.now()
        self.cursor: Any = None
        # when the operation that runs now is taken to hang, and whether one did
        self.due: float | None = None
        self.hung = False

    @classmethod
    def connect(cls, database: str) -> LeaseSession:
        """A session that is open. Slow, and deaf to deadlines. Errors are Django's."""
        session = cls(database)
        try:
            session.open()
        except BaseException:
            session.close()
            raise
        return session

    def open(self) -> None:
        super().open()
        raw: Any = self.wrapper.connection
        self.cursor = self.wrapper.create_cursor()
        if hasattr(raw, "prepare_threshold"):  # psycopg 3
            self.cursor.execute("SELECT pg_backend_pid()")
            pooled = self.cursor.fetchone()[0] != raw.info.backend_pid
            # Planning costs more than executing. A pooler that changes the server session loses prepared statements.
            raw.prepare_threshold = None if pooled else 1

    @property
    def dead(self) -> bool:
        """Is it closed?"""
        return self.wrapper.connection is None

    def execute(self, operation: Callable[..., Any], args: tuple[Any, ...], wake_at: Callable[[float], None]) -> Any:
        """Execute an operation, under the mutex. An error after which the driver cannot go on closes the session."""
        if self.dead:
            raise SessionDead
        due = clock.now() + SILENCE
        wake_at(due)
        self.due = due
        try:
            with self.wrapper.wrap_database_errors:
                return operation(self, *args)
        except (OperationalError, InterfaceError, InternalError) as error:
            if code_of(error) not in CONFLICTS:
                self.close()
            raise
        except Error:
            raise
        except BaseException:  # that of a signal: the driver is in the middle of something
            self.close()
            raise
        finally:
            self.due, self.used_at = None, clock.now()


class ServerStore:
    """The session of one alias, and the watch over it."""

    #: Seconds for which a statement may still be executed after its session was ended: it was on its way.
    late = 5.0

    def __init__(self, alias: str, database: str, wake_at: Callable[[float], None]) -> None:
        self.statements = STATEMENTS[connections[database].vendor](alias)
        self._alias = alias
        self._database = database
        self._wake_at = wake_at
        self._session: LeaseSession | None = None
        self._opening = SharedCall(f"distlock-{alias}-open", self._open)

    @property
    def is_open(self) -> bool:
        """Is there a session to be closed once it is idle?"""
        session = self._session
        return session is not None and not session.dead

    @property
    def used_at(self) -> float:
        session = self._session
        return clock.now() if session is None else session.used_at

    def run(self, until: float, operation: Callable[..., Any], *args: Any) -> Any:
        """Execute one of the operations on leases, again if its session dies, until the monotonic time ``until``.

        A server has a second to answer, however little time there is. If a repetition returns False, the result is
        None: the first one may have done it. BackendUnavailable; LostReply if it may have been executed.
        """
        until, lost = max(until, clock.now() + SILENCE), 0
        while True:
            session = self._usable_session(until, lost > 0)
            try:
                with session.mutex:
                    value = session.execute(operation, args, self._wake_at)
            except SessionDead as error:
                if clock.now() >= until:
                    raise self._failure(error, lost > 0) from None
            except (Error, OSError) as error:
                lost += session.dead
                self._judge(error, session, lost, until)
            else:
                return None if lost and value is False else value

    def _usable_session(self, until: float, lost: bool) -> LeaseSession:
        session = self._session
        if session is not None and session.name != connections.settings[self._database]["NAME"]:
            self._close(session)  # test runners change it
        if session is not None and not session.dead:
            return session
        try:
            return self._opening.result(until)
        except (CallTimeout, NotStarted, ImproperlyConfigured, Error, OSError) as error:
            raise self._failure(error, lost) from error

    def _open(self) -> LeaseSession:
        """In a thread: the session that all share."""
        session = self._session
        if session is None or session.dead:
            session = self._session = LeaseSession.connect(self._database)
        return session

    def _judge(self, error: Exception, session: LeaseSession, lost: int, until: float) -> None:
        """Return if the operation is to be repeated."""
        left = until - clock.now()
        if code_of(error) in NO_TABLE:
            cure = "python manage.py migrate"
            if self._database != DEFAULT_DB_ALIAS:
                cure += f" --database={self._database}"
            raise BackendUnavailable(
                f"The lease table of alias {self._alias!r} does not exist. Run `{cure}`."
            ) from error
        if left > 0 and session.dead and (session.hung or lost <= LOST_SESSIONS):
            return
        if left > 0 and code_of(error) in CONFLICTS:
            time.sleep(CONFLICT_PAUSE)
            return
        raise self._failure(None if session.hung else error, lost > 0) from error

    def _failure(self, error: Exception | None, lost: bool) -> BackendUnavailable:
        text = f"The database server of alias {self._alias!r} did not answer in time."
        if error is not None and not isinstance(error, CallTimeout | SessionDead):
            lines = str(error).strip().splitlines() or [type(error).__name__]
            text = f"The lease table of alias {self._alias!r} failed: {lines[0]}"
        return LostReply(text) if lost else BackendUnavailable(text)

    def watch(self, now: float) -> float | None:
        """End a statement that hangs; the time when the present one does."""
        session = self._session
        due = None if session is None else session.due
        if session is not None and due is not None and now >= due:
            session.hung = True
            session.cut()
            return None
        return due

    def _close(self, session: LeaseSession) -> None:
        with session.mutex:
            session.close()

    def close_idle(self) -> None:
        """Close the session, unless it is in use: the keepalive thread, which watches it, must not wait here."""
        session = self._session
        if session is not None and session.mutex.acquire(blocking=False):
            try:
                session.close()
            finally:
                session.mutex.release()

    def close(self) -> None:
        """Close the session. Leases are rows and stay; the next statement opens another session."""
        session = self._session
        if session is not None:
            if session.due is not None:
                session.cut()
            self._close(session)

    def abandon(self) -> None:
        """In the child of a fork: leave the session to the parent."""
        session, self._session = self._session, None
        if session is not None:
            session.abandon(session._fd)
        self._opening = SharedCall(f"distlock-{self._alias}-open", self._open)
