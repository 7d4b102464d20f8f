"""Locks in the caller's own transaction: taken on the caller's connection, they die with the transaction they protect.

They need no other session and are safe behind a transaction pooler.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections
from django.db.backends import utils
from django.db.backends.postgresql import base
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.utils import CursorWrapper
from psycopg import Connection, Error, pq
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.waiting import WAIT_R

from django_distlock.backends.sessions import exclusion
from django_distlock.backends.sessions.session import (
    GRACE,
    ServerError,
    SessionDead,
    StatementTimeout,
    locked,
    unavailable,
)
from django_distlock.concurrency import sockets
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.deadline import LEAST_PATIENCE
from django_distlock.concurrency.flow import Flow, run
from django_distlock.concurrency.parking import FairLock
from django_distlock.concurrency.sockets import READY
from django_distlock.exceptions import BackendUnavailable, DeadlockDetected
from django_distlock.records import Claim, Grant

from .connect import connect
from .introspection import MINE
from .session import DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, QUERY_CANCELED, PostgresSession, lock_timeout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.backends.sessions.backend import BusyKeys
    from django_distlock.keys import LockKey

logger = logging.getLogger("django_distlock.backends")

# If no second session could be opened to prove that the server excludes, the next attempt comes after this; seconds.
PROVE_AGAIN = 60.0
# A server that has just said that the wait is over lives. For the way back to the savepoint it has this much longer,
# because a moment without a processor must not cost the caller's transaction; seconds.
RETREAT = 0.25
# The connection is ended when its socket stays silent for SILENT after the deadline and this thread notices it not more
# than LATE afterwards. A thread that comes later says that the process or the host is busy, and nothing about the
# server: it waits again, for up to PATIENCE. Seconds.
SILENT, LATE, PATIENCE = 0.02, 0.005, 0.5
# psycopg waits for the socket in pieces of a tenth of a second, between which signals are handled. The last piece
# before the deadline is waited for here; seconds.
LAST_STRETCH = 0.15

TRY = "SELECT %s(%d), current_setting('transaction_isolation')"
_ACTIVE = pq.TransactionStatus.ACTIVE
# The classes of cursors that Django gives its connections, with and without server-side binding.
_CURSORS: tuple[Any, ...] = (base.Cursor, base.ServerBindingCursor)
# What psycopg sends before the first statement of a transaction, by the settings of the connection.
_BEGIN: dict[tuple[Any, ...], bytes] = {}
# Without parameters the server takes several statements at once. The caller's lock_timeout is restored explicitly: a
# setting made after a savepoint outlives its release.
WAIT = """SAVEPOINT distlock_wait;
SELECT set_config('distlock.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', '%d', true);
SELECT %s(%d);
RELEASE SAVEPOINT distlock_wait;
SELECT set_config('lock_timeout', current_setting('distlock.lock_timeout'), true),
       current_setting('transaction_isolation')"""


def nobody_looks(connection: Any) -> bool:
    """Would nothing see a statement on this connection, and may it be sent now?

    Django's query log and its wrappers of statements would see one, and so would programs that trace statements: they
    replace a method of Django, the class of the cursors or that of the connection.
    """
    raw = connection.connection
    return not (
        connection.queries_logged
        or connection.needs_rollback
        or any(getattr(wrapper, "_distlock", None) is not True for wrapper in connection.execute_wrappers)
        or type(raw) is not Connection
        or raw.cursor_factory not in _CURSORS
        or raw.pgconn.pipeline_status
        or raw.pgconn.transaction_status == _ACTIVE  # an interrupt has left the statement before
        or getattr(connection.cursor, "__func__", None) is not type(connection).cursor
        or type(connection).create_cursor is not DatabaseWrapper.create_cursor
        or CursorWrapper.execute.__code__.co_filename != utils.__file__
    )


def directly(connection: Any, statement: bytes) -> list[str]:
    """The row of ``statement``, without a cursor, and with BEGIN in the same packet if the transaction has not begun.

    The rest is as with a cursor: psycopg waits for the reply, cancels the statement after an interrupt, and the
    transaction is aborted after an error.
    """
    raw = connection.connection
    connection.validate_thread_sharing()
    with connection.wrap_database_errors, raw.lock:
        if raw.pgconn.transaction_status == pq.TransactionStatus.IDLE and not raw.autocommit:
            statement = _begin(raw) + statement
        try:
            raw.pgconn.send_query(statement)
            result = raw.wait(execute(raw.pgconn))[-1]
        except BaseException:
            if raw.pgconn.transaction_status == _ACTIVE:
                with contextlib.suppress(Error):  # an interrupt came before psycopg waited, which would have read it
                    raw.wait(execute(raw.pgconn))
            raise
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise error_from_result(result, raw.info.encoding)
    return [(result.get_value(0, column) or b"").decode() for column in range(result.nfields)]


def _begin(raw: Connection) -> bytes:
    settings = raw.isolation_level, raw.read_only, raw.deferrable
    begin = _BEGIN.get(settings)
    if begin is None:
        words = ["BEGIN"]
        if raw.isolation_level is not None:
            words.append("ISOLATION LEVEL " + raw.isolation_level.name.replace("_", " "))
        if raw.read_only is not None:
            words.append("READ ONLY" if raw.read_only else "READ WRITE")
        if raw.deferrable is not None:
            words.append("DEFERRABLE" if raw.deferrable else "NOT DEFERRABLE")
        begin = _BEGIN[settings] = (" ".join(words) + ";").encode()
    return begin


class TransactionSession:
    """The session of a transaction-scoped lock: the caller's connection."""

    __slots__ = ("connection", "dead", "isolation", "raw")

    def __init__(self, connection: BaseDatabaseWrapper, isolation: str) -> None:
        self.connection = connection
        self.raw: Any = connection.connection
        self.isolation = isolation.upper()
        self.dead: str | None = None

    @property
    def aborted(self) -> bool:
        return bool(self.raw.pgconn.transaction_status == pq.TransactionStatus.INERROR)

    def notice_end(self) -> None:
        if self.connection.connection is not self.raw or self.raw.closed:
            self.dead = "the connection was closed"


class Bounded:
    """A context in which statements on a connection of psycopg end by the monotonic time ``until`` (R5).

    psycopg runs each statement as a generator that says what it waits for at the socket, and gives it to the method
    ``wait`` of the connection. Here that method gets this object instead, which passes on :meth:`__next__` and
    :meth:`send`. If the server does not answer in time, the socket is shut, and psycopg raises its usual error.
    """

    __slots__ = ("_generator", "_outer", "_raw", "_wait", "ended", "until")

    def __init__(self, raw: Any, until: float) -> None:
        self._raw = raw
        self.until = until
        self.ended = False

    def __enter__(self) -> None:
        self._outer = self._raw.__dict__.get("wait")  # of a lock that is acquired around this one, in a wrapper
        self._wait = self._raw.wait
        self._raw.wait = self.wait

    def __exit__(self, *error: object) -> None:
        if self._outer is None:
            del self._raw.wait
        else:
            self._raw.wait = self._outer

    def wait(self, generator: Any, *args: Any, **options: Any) -> Any:
        self._generator = generator
        return self._wait(self, *args, **options)

    def __iter__(self) -> Bounded:
        return self

    def __next__(self) -> Any:
        wanted = next(self._generator)
        return wanted if monotonic() < self.until - LAST_STRETCH else self._answered(wanted)

    def send(self, ready: Any) -> Any:
        wanted = self._generator.send(ready)
        return wanted if monotonic() < self.until - LAST_STRETCH else self._answered(wanted)

    def _answered(self, wanted: Any) -> Any:
        """Wait until the socket is ready for what psycopg wants, or end the connection."""
        fd, write = self._raw.pgconn.socket, wanted != WAIT_R
        if not READY.poll(fd, write, self.until):
            self._insist(fd, write)
        return wanted

    def _insist(self, fd: int, write: bool) -> None:
        """Wait a little longer, and end the connection if the server remains silent."""
        late = math.inf
        while late > LATE and monotonic() < self.until + PATIENCE:
            limit = monotonic() + SILENT
            if READY.poll(fd, write, limit):
                return
            late = monotonic() - limit
        self.ended = True
        sockets.shut(fd)


class TransactionLocks:
    """Locks in the transactions of the database ``database``. Lock sessions, which prove that the server excludes, are
    opened with the parameters of ``session_database``. ``busy`` are keys to wait for without trying first."""

    def __init__(self, alias: str, database: str, session_database: str, busy: BusyKeys) -> None:
        self.alias = alias
        self.database = database
        self.session_database = session_database
        self._busy = busy
        self._proven = False  # proven, for this process and its children
        self._prove_from = -math.inf
        self._proving = FairLock()

    def after_fork(self) -> None:
        self._proving = FairLock()

    def acquire(self, claim: Claim, wait: float) -> Grant | None:
        """Take the lock on the caller's connection. Wrappers and debugging of the caller see the statements."""
        connection = connections[self.database]
        asked = monotonic()
        bounded: Bounded | None = None
        try:
            connection.close_if_health_check_failed()
            connection.ensure_connection()
            until = max(claim.answer_by or asked + max(wait, LEAST_PATIENCE), asked + GRACE)
            raw: Any = connection.connection
            outer = raw.__dict__.get("wait")
            bounded = Bounded(raw, until + GRACE / 2)
            isolation = None
            with bounded:
                if wait <= 0 or not self._busy.lately(claim.key.digest, asked):
                    isolation = self._try(connection, claim)
                    if isolation is None:
                        self._proven = True  # the server has just kept this one out
                        self._busy.add(claim.key.digest, asked)
                    elif not self._proven and asked >= self._prove_from:
                        run(self._prove(claim, until))
                if isolation is None and wait > 0:
                    with connection.cursor() as cursor:
                        isolation = self._wait(bounded, cursor, claim, asked + wait)
        except BaseException as error:
            if bounded is not None:  # an interrupt at the entrance of its __exit__() has left it in place
                if outer is not None:
                    raw.wait = outer
                elif "wait" in raw.__dict__:
                    del raw.wait
            if not isinstance(error, DatabaseError):
                raise
            if bounded is not None and bounded.ended:
                raise BackendUnavailable(
                    f"The server of alias {self.alias!r} did not answer in time: the connection of this thread to "
                    f"database {connection.alias!r} was ended, and its transaction rolled back."
                ) from error
            raise unavailable(self.alias, error) from error
        if isolation is None:
            return None
        return Grant(claim=claim, acquired_at=asked, session=TransactionSession(connection, isolation))

    def _try(self, connection: BaseDatabaseWrapper, claim: Claim) -> str | None:
        """The isolation level of the transaction if the lock was free."""
        function = "pg_try_advisory_xact_lock_shared" if claim.shared else "pg_try_advisory_xact_lock"
        # our integer is spelt out: binding it would cost a quarter of the statement
        statement = TRY % (function, claim.key.number)
        if nobody_looks(connection):
            granted, isolation = directly(connection, statement.encode())
            return isolation if granted == "t" else None
        with connection.cursor() as cursor:
            cursor.execute(statement)
            granted, isolation = cursor.fetchone()
        return isolation if granted else None

    def _wait(self, bounded: Bounded, cursor: Any, claim: Claim, until: float) -> str | None:
        """Wait in the server's queue, within one round trip, behind a savepoint: an error would abort the caller's
        transaction.

        Rolling back to the savepoint also frees a lock that was granted just before the timeout.
        """
        function = "pg_advisory_xact_lock_shared" if claim.shared else "pg_advisory_xact_lock"
        raw: Any = cursor.connection
        threshold, raw.prepare_threshold = raw.prepare_threshold, None  # several statements cannot be prepared as one
        try:
            cursor.execute(WAIT % (lock_timeout(until), function, claim.key.number))
            while cursor.nextset():
                pass
            return str(cursor.fetchone()[1])
        except BaseException as error:  # KeyboardInterrupt too: the driver cancels the statement
            code = getattr(error.__cause__, "sqlstate", None)
            if not raw.closed:
                bounded.until = monotonic() + RETREAT
                cursor.execute("ROLLBACK TO SAVEPOINT distlock_wait; RELEASE SAVEPOINT distlock_wait")
            if code == DEADLOCK_DETECTED:
                raise DeadlockDetected from error
            if code not in (LOCK_NOT_AVAILABLE, QUERY_CANCELED):
                raise
            return None
        finally:
            if not raw.closed:
                raw.prepare_threshold = threshold

    def _prove(self, claim: Claim, until: float) -> Flow[None]:
        """The server must refuse another session the lock that the caller's transaction has just got (R22b). One
        statement without a transaction: behind a pooler it needs a server session for no longer than that.

        If no second session can be opened, the lock is given out all the same, and a later one proves it. The caller's
        transaction occupies a session while it asks, so in a pool that is full of first locks each would wait for the
        others for ever.
        """
        with contextlib.suppress(StatementTimeout):  # another thread proves it, for all
            yield from locked(self._proving, until - monotonic(), self._proof(claim, until))

    def _proof(self, claim: Claim, until: float) -> Flow[None]:
        if self._proven:
            return
        parameters = connections[self.session_database].get_connection_params()
        try:
            opened = yield from connect(self.alias, parameters, exclusion.limit(until))
            second = PostgresSession(opened, False)
            try:
                sql = b"SELECT pg_try_advisory_xact_lock(%s)" % claim.key.number_bytes
                if (yield from second.query(sql, exclusion.limit(until))) != [["f"]]:
                    yield from exclusion.refuse(self.alias, second, exclusion.limit(until))
            finally:
                second.close()
            self._proven = True
        except (BackendUnavailable, ServerError, SessionDead, StatementTimeout) as error:
            self._prove_from = monotonic() + PROVE_AGAIN
            logger.warning("%s It is asked again in %g s.", exclusion.unproven(self.alias, error), PROVE_AGAIN)

    def still_held(self, connection: BaseDatabaseWrapper, keys: Iterable[LockKey]) -> set[LockKey]:
        """Those of ``keys`` that the transaction of ``connection`` holds."""
        with connection.cursor() as cursor:
            cursor.execute(MINE)
            numbers = {row[0] for row in cursor.fetchall()}
        return {key for key in keys if key.number in numbers}
