"""The lease table on a database server: a session beside the caller's, used by one thread or task at a time.

A lease written inside the caller's transaction would be invisible to rivals until that ends. Leases are rows, so the
loss of the session loses none of them: a statement that hangs is ended by shutting the socket down, and is sent again
on a new session while there is time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, InternalError, OperationalError, connections

from django_distlock.backends.side_connection import SideConnection
from django_distlock.concurrency import clock, sockets
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.deadline import pause
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.parking import FairLock

from .records import StoreError, StoreOverloaded
from .statements import Store, statements_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.concurrency.executor import Threads

P = ParamSpec("P")
T = TypeVar("T")

# Seconds for a statement: none of them waits for anything, so a server that takes longer hangs.
STATEMENT_LIMIT = 0.5
# Seconds that a statement gets once it has begun, though its caller has no time left.
LEAST_LIMIT = 0.03
# A server that has answered within the last seconds works: a caller without time left only came late.
SILENCE = 0.25
# The server undid the statement in favour of another one: SQLSTATEs of PostgreSQL, error numbers of MySQL and MariaDB.
CONFLICTS = frozenset({"40001", "40P01", "55P03", 1020, 1205, 1213})
NO_TABLE = frozenset({"42P01", 1146})
CONFLICT_PAUSE = 0.001
# An idle session may be dead, and so may the next one. After that the server is taken to refuse sessions.
LOST_SESSIONS = 2


class LeaseSession(SideConnection):
    """A session of this package. Its statements go to the driver's cursor, so that Django does not log them."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        if self.wrapper.vendor == "postgresql":
            self.options["server_side_binding"] = True  # without it statements cannot be prepared
        elif self.wrapper.vendor == "mysql":
            self.options["isolation_level"] = "read committed"  # the server's default would lock gaps of the queue
        self.used_at = clock.now()
        self.cursor: Any = None

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

    def change(self, statement: str, row: Any) -> int:
        """Execute a write; how many rows it changed."""
        self.cursor.execute(statement, row)
        return int(self.cursor.rowcount)

    def ask(self, statement: str, row: Any) -> list[Any]:
        """Execute a read; its rows."""
        self.cursor.execute(statement, row)
        return list(self.cursor.fetchall())

    def atomically(self, work: Callable[[], T]) -> T:
        """Execute several statements one after the other: on servers each stands for itself."""
        return work()

    def leave_to_parent(self) -> None:
        """In the child of a fork: never close it, since the driver would say goodbye on the parent's socket."""
        if self._fd >= 0:
            sockets.silence(self._fd)
        _inherited.append(self)


_inherited: list[LeaseSession] = []


class Hung(Exception):
    """The server did not reply in time, and the session was ended."""


def code(error: Exception) -> object:
    """The SQLSTATE or the number of a database error of Django's."""
    cause = error.__cause__ or error
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or (cause.args or (None,))[0]


class ServerStore(Store):
    """The session of one alias, and the watch over it."""

    def __init__(
        self, alias: str, database: str, threads: Callable[[], Threads], wake_at: Callable[[float], None]
    ) -> None:
        super().__init__(statements_of(connections[database])(alias), threads)
        self._alias = alias
        self._database = database
        self._opening = Background(f"distlock-{alias}-open")
        self._turn = FairLock()
        # the deadline of the statement that runs now
        self._limit: float | None = None
        # when the server last answered
        self._replied_at = 0.0
        self._wake_at = wake_at

    async def run(
        self, until: float, operation: Callable[Concatenate[LeaseSession, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """Repeats a statement whose session turns out to be dead. If the repetition returns False, the result is None:
        the first one may have done it."""
        lost = 0
        while True:
            left = until - clock.now()
            turn = self._turn.turn()
            try:
                if left <= 0 or not await turn.acquire(left):
                    raise self._no_time(lost > 0)
                session = self._usable() or await self._open(until, lost > 0)
                error, value = await self.aattempt(session, operation, args, until)
                if error is None:
                    return None if lost and value is False else value
                retry = self._judge(error, session, lost)
            finally:
                turn.release()
            lost += self.session is None
            if retry > 0:
                await pause(retry)

    def attempt(
        self, session: LeaseSession, operation: Callable[..., Any], args: tuple[Any, ...], until: float
    ) -> tuple[Exception | None, Any]:
        now = clock.now()
        limit = self._limit = max(min(until, now + STATEMENT_LIMIT), now + LEAST_LIMIT)
        self._wake_at(limit)
        try:
            with session.wrapper.wrap_database_errors:
                value = operation(session, *args)
            self._replied_at = clock.now()
            return None, value
        except (Error, OSError) as error:
            if clock.now() >= limit:
                return Hung(), None
            return error, None
        except BaseException:  # that of a signal: the driver is in the middle of something
            self._drop()
            raise
        finally:
            self._limit = None
            session.used_at = clock.now()

    def _usable(self) -> LeaseSession | None:
        """The session, unless the alias has another database by now: test runners change its NAME."""
        session: LeaseSession | None = self.session
        if session is not None and session.name != connections.settings[self._database]["NAME"]:
            self._drop()
            return None
        return session

    async def _open(self, until: float, uncertain: bool) -> LeaseSession:
        try:
            session: LeaseSession = await self._opening.call(
                until, LeaseSession.connect, self._database, dispose=LeaseSession.close
            )
            self.session = session
        except CallTimeout:
            raise self._no_time(uncertain) from None
        except (NotStarted, ImproperlyConfigured, Error, OSError) as error:
            raise StoreError(self._failed(error), uncertain=uncertain) from error
        return session

    def _judge(self, error: Exception, session: LeaseSession, lost: int) -> float:
        """The pause before the statement is repeated; StoreError if it is not. A dead session is dropped."""
        if code(error) in CONFLICTS:
            return CONFLICT_PAUSE
        if code(error) in NO_TABLE:
            cure = "python manage.py migrate"
            if self._database != DEFAULT_DB_ALIAS:
                cure += f" --database={self._database}"
            raise StoreError(f"The lease table of alias {self._alias!r} does not exist. Run `{cure}`.") from error
        hung = isinstance(error, Hung)
        if hung or isinstance(error, OperationalError | InterfaceError | InternalError):
            self._drop()
            if hung or lost < LOST_SESSIONS:
                return 0.0
            raise StoreError(self._failed(error), uncertain=True) from error
        raise StoreError(self._failed(error)) from error

    def _no_time(self, uncertain: bool) -> StoreError:
        if clock.now() - self._replied_at < SILENCE:
            return StoreOverloaded(
                f"The lock session of alias {self._alias!r} is overloaded: the statement could not be sent in time.",
                uncertain=uncertain,
            )
        return StoreError(f"The database server of alias {self._alias!r} did not answer in time.", uncertain=uncertain)

    def _failed(self, error: BaseException | None) -> str:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"The lease table of alias {self._alias!r} failed: {lines[0]}"

    def watch(self, now: float) -> float | None:
        limit, session = self._limit, self.session
        if limit is not None and session is not None and now >= limit:
            session.cut()
            return None
        return limit

    def _drop(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def close_idle(self) -> None:
        turn = self._turn.try_turn()
        if turn is not None:
            try:
                self._drop()
            finally:
                turn.release()

    def close(self) -> None:
        turn = self._turn.turn()
        if run(turn.acquire(STATEMENT_LIMIT)):
            self._drop()
            turn.release()
        elif (session := self.session) is not None:
            session.cut()

    def abandon(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.leave_to_parent()
        self._turn = FairLock()
        self._limit = None
