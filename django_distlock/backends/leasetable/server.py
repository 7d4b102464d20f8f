"""The lease table on a database server: a session beside the caller's, used by one thread at a time.

A lease written inside the caller's transaction would be invisible to rivals until that ends. Leases are rows, so the
loss of the session loses none of them: a statement that hangs is ended by shutting the socket down, and is sent again
on a new session while there is time.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, InternalError, OperationalError, connections

from django_distlock.backends.sessions.pool import Sessions
from django_distlock.backends.sessions.watched import HUNG, SessionDead, WatchedSession
from django_distlock.backends.side_connection import SideConnection, code_of
from django_distlock.concurrency import clock
from django_distlock.concurrency.background import CallTimeout, NotStarted
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.flow import run
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


class LeaseSession(WatchedSession):
    """Its statements go to the driver's cursor, so that Django does not log them."""

    def __init__(self, connection: SideConnection) -> None:
        super().__init__(connection)
        self.cursor: Any = connection.wrapper.create_cursor()

    @classmethod
    def connect(cls, database: str) -> LeaseSession:
        """A session that is open. Slow, and deaf to deadlines. Errors are Django's."""
        connection = SideConnection(database)
        vendor = connection.wrapper.vendor
        if vendor == "postgresql":
            connection.options["server_side_binding"] = True  # without it statements cannot be prepared
        elif vendor == "mysql":
            # the server's default would lock gaps of the queue
            connection.options["isolation_level"] = "read committed"
        try:
            connection.open()
            session = cls(connection)
            raw: Any = connection.wrapper.connection
            if hasattr(raw, "prepare_threshold"):  # psycopg 3
                session.cursor.execute("SELECT pg_backend_pid()")
                pooled = session.cursor.fetchone()[0] != raw.info.backend_pid
                # Planning costs more than executing. A pooler that changes the session loses prepared statements.
                raw.prepare_threshold = None if pooled else 1
        except BaseException:
            connection.close()
            raise
        return session

    @property
    def hung(self) -> bool:
        """Did a statement hang?"""
        return self.dead == HUNG

    def execute(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Execute an operation. An error after which the driver cannot go on closes the session."""
        with self.mutex:
            if self.dead is not None:
                raise SessionDead(self.dead)
            self.due = clock.now() + SILENCE
            try:
                with self.connection.wrapper.wrap_database_errors:
                    return operation(self, *args)
            except (OperationalError, InterfaceError, InternalError) as error:
                if code_of(error) not in CONFLICTS:
                    self._close(str(error))
                raise
            except Error:
                raise
            except BaseException:  # that of a signal: the driver is in the middle of something
                self._close("a statement was interrupted")
                raise
            finally:
                self.due, self.used_at = None, clock.now()


class ServerStore:
    """The session of one alias, and the watch over it."""

    #: Seconds for which a statement may still be executed after its session was ended: it was on its way.
    late = 5.0
    #: When the last session was lost with a statement on its way.
    lost_at = -math.inf

    def __init__(self, alias: str, database: str, on_open: Callable[[], object]) -> None:
        self.statements = STATEMENTS[connections[database].vendor](alias)
        self._alias = alias
        self._database = database
        self._sessions = Sessions(alias, lambda waits: LeaseSession.connect(database), on_open)
        self.tick = self._sessions.tick
        self.close = self._sessions.close
        self.abandon = self._sessions.abandon

    def run(self, until: float, operation: Callable[..., Any], *args: Any) -> Any:
        """Execute one of the operations on leases, again if its session dies, until the monotonic time ``until``.

        A server has a second to answer, however little time there is. If a repetition returns False, the result is
        None: the first one may have done it. BackendUnavailable; LostReply if it may have been executed.
        """
        until, lost = max(until, clock.now() + SILENCE), 0
        while True:
            session = self._usable_session(until, lost > 0)
            try:
                value = session.execute(operation, *args)
            except SessionDead as error:
                if clock.now() >= until:
                    raise self._failure(error, lost > 0) from None
            except (Error, OSError) as error:
                if session.dead is not None:
                    lost, self.lost_at = lost + 1, clock.now()
                self._judge(error, session, lost, until)
            else:
                return None if lost and value is False else value

    def keep(self) -> None:
        """Put off the end of the session for being idle."""
        if (session := self._sessions.shared_session) is not None:
            session.used_at = clock.now()

    def _usable_session(self, until: float, lost: bool) -> LeaseSession:
        session = self._sessions.shared_session
        if session is not None and session.connection.name != connections.settings[self._database]["NAME"]:
            self._sessions.drop(session)  # test runners change it
        if session is not None and session.dead is None:
            return session
        try:
            return run(self._sessions.shared(until))
        except (CallTimeout, NotStarted, ImproperlyConfigured, Error, OSError) as error:
            raise self._failure(error, lost) from error

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
        if left > 0 and session.dead is not None and (session.hung or lost <= LOST_SESSIONS):
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
