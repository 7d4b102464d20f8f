"""PostgreSQL's advisory locks (https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS).

Outside a transaction a lock belongs to a dedicated session; inside ``atomic()`` it is taken on the caller's own
connection and dies with the transaction it protects: no session more, and safe behind a transaction pooler.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from django_distlock.backends.query import LockQuery
from django_distlock.backends.sessions import exclusion
from django_distlock.backends.sessions.backend import SessionLockBackend
from django_distlock.backends.sessions.session import (
    GRACE,
    STATEMENT_LIMIT,
    ServerError,
    SessionDead,
    StatementTimeout,
)
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.deadline import LEAST_PATIENCE
from django_distlock.concurrency.flow import Flow, Step, arun, run
from django_distlock.concurrency.parking import FairLock
from django_distlock.exceptions import BackendUnavailable, DeadlockDetected, UnsupportedOperation
from django_distlock.records import Claim, Finding, Grant

from . import doctor, introspection, select
from .introspection import OURS, PostgresNotes
from .select import NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.backends.query import Chosen, Mine
    from django_distlock.keys import LockKey
    from django_distlock.records import LockInfo

try:
    from psycopg import pq

    from .session import (
        DEADLOCK_DETECTED,
        LOCK_NOT_AVAILABLE,
        QUERY_CANCELED,
        PostgresSession,
        connect,
        lock_timeout,
        open_session,
    )
    from .watched import RETREAT, Watched, look_after
except ImportError as error:
    raise ImproperlyConfigured(
        "The PostgreSQL lock backend needs psycopg 3: pip install 'django-distlock[postgres]'."
    ) from error

logger = logging.getLogger("django_distlock.backends")

# So long a process goes without the proof inside transactions if no second session was to be had; seconds.
PROVE_AGAIN = 60.0
MINE = f"SELECT {NUMBER} FROM pg_locks WHERE {OURS} AND granted AND pid = pg_backend_pid()"  # noqa: S608 - constants
TRY = "SELECT %s(%d), current_setting('transaction_isolation')"
# Without parameters the server takes several statements at once. The caller's lock_timeout is put back explicitly: what
# was set after a savepoint outlives its release.
WAIT = """SAVEPOINT distlock_wait;
SELECT set_config('distlock.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', '%d', true);
SELECT %s(%d);
RELEASE SAVEPOINT distlock_wait;
SELECT set_config('lock_timeout', current_setting('distlock.lock_timeout'), true),
       current_setting('transaction_isolation')"""


class TransactionSession:
    """Where a transaction-scoped lock lives: the caller's connection."""

    __slots__ = ("connection", "dead", "isolation", "raw")

    def __init__(self, connection: BaseDatabaseWrapper, isolation: str) -> None:
        self.connection = connection
        self.raw: Any = connection.connection
        self.isolation = isolation.upper()
        self.dead: str | None = None

    @property
    def aborted(self) -> bool:
        return bool(self.raw.pgconn.transaction_status == pq.TransactionStatus.INERROR)

    def look(self) -> None:
        if self.connection.connection is not self.raw or self.raw.closed:
            self.dead = "the connection was closed"


class AdvisoryBackend(SessionLockBackend[PostgresSession]):
    """OPTIONS: ``database`` (the alias whose transaction counts), ``session_database`` (the alias whose parameters the
    dedicated sessions use; a direct one behind a pooler), ``wait_sessions`` (default 8)."""

    supports_shared = True
    supports_transaction_scope = True
    notes_sql = PostgresNotes()

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._guard = threading.Lock()
        self._watched: dict[int, Watched] = {}
        self._transactions_exclude = False  # proven, as self._proven_at tells for lock sessions
        self._prove_from = -math.inf
        self._proving = FairLock()

    def _open(self, waits: bool, until: float) -> Flow[PostgresSession]:
        connection = connections[self.session_database]
        if connection.vendor != "postgresql":
            raise ImproperlyConfigured(
                f"DISTLOCK[{self.alias!r}]: the database {self.session_database!r} is {connection.vendor}, "
                "not PostgreSQL."
            )
        try:
            return (yield from open_session(self.alias, connection.get_connection_params(), waits, until))
        except SessionDead as error:
            raise self._unavailable(error) from error

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        if claim.scope == "transaction":
            return self._in_transaction(claim, wait)
        return run(self._acquire(claim, wait))

    def acquire_fast(self, claim: Claim, wait: float) -> Grant | None:
        if claim.scope == "transaction":
            return self._in_transaction(claim, wait)
        return super().acquire_fast(claim, wait)

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        if claim.scope == "transaction":  # Django's connections are not for tasks
            claim = replace(claim, scope="session")
        return await super().atry_acquire(claim, wait)

    def release(self, grant: Grant) -> bool:
        # its transaction takes it along
        return True if grant.claim.scope == "transaction" else run(self._release(grant))

    async def arelease(self, grant: Grant) -> bool:
        if grant.claim.scope == "transaction":
            return True
        return await super().arelease(grant)

    def verify(self, grant: Grant) -> bool:
        if grant.claim.scope != "transaction":
            return run(self._verify(grant))
        if grant.session.connection is connections[self.database]:
            return self._in_transaction(replace(grant.claim, answer_by=0.0), 0) is not None
        return self.look(grant)  # asked in the name of a thread that waits, and whose connection is its own

    async def averify(self, grant: Grant) -> bool:
        return self.look(grant) if grant.claim.scope == "transaction" else await arun(self._verify(grant))

    def in_doubt(self, grant: Grant) -> bool:
        # the error has freed the locks of the transaction, but for those from before a savepoint
        return grant.claim.scope == "transaction" and grant.session.aborted

    # on the caller's connection

    def _in_transaction(self, claim: Claim, wait: float) -> Grant | None:
        """Through Django's own cursor: the caller's connection, its wrappers and its debugging are his."""
        connection = connections[self.database]
        asked = monotonic()
        me = threading.get_ident()
        try:
            connection.ensure_connection()
            until = max(claim.answer_by or asked + max(wait, LEAST_PATIENCE), asked + GRACE)
            self._watch_over(me, connection, until + GRACE / 2)
            with connection.cursor() as cursor:
                isolation = None
                if wait <= 0 or not self._is_hot(claim.key.digest, asked):
                    isolation = self._try_in_transaction(cursor, claim)
                    if isolation is None:
                        self._transactions_exclude = True  # the server has just kept this one out
                        self._heat(claim.key.digest, asked)
                    elif not self._transactions_exclude and asked >= self._prove_from:
                        self._look_away(me)  # nothing is asked on it any more, and the proof may take longer
                        run(self._prove_in_transaction(claim, until))
                if isolation is None and wait > 0:
                    isolation = self._wait_in_transaction(connection, cursor, claim, asked + wait)
        except DatabaseError as error:
            watched = self._watched.get(me)
            raise (watched and watched.verdict(self.alias)) or self._unavailable(error) from error
        finally:
            self._look_away(me)
        if isolation is None:
            return None
        return Grant(claim=claim, acquired_at=asked, session=TransactionSession(connection, isolation))

    def _prove_in_transaction(self, claim: Claim, until: float) -> Flow[None]:
        """The server must refuse another session the lock that the caller's transaction has just got (R22b). One
        statement without a transaction: behind a pooler it needs a server session for no longer than that.

        Where no second session is to be had the lock is given out all the same, and a later one proves it: the caller's
        transaction occupies a session while it asks, so in a pool that is full of first locks each would wait for the
        others, and none would ever be had.
        """
        parameters = connections[self.session_database].get_connection_params()
        entered: list[bool] = []
        try:
            # one thread asks for all
            if not (
                yield Step(self._proving.acquire, self._proving.aacquire, (max(0.0, until - monotonic()),), entered)
            ):
                raise StatementTimeout
            if self._transactions_exclude:
                return
            opened = yield from connect(self.alias, parameters, exclusion.limit(until))
            second = PostgresSession(opened, False)
            try:
                sql = b"SELECT pg_try_advisory_xact_lock(%s)" % claim.key.number_bytes
                if (yield Step(second.query, second.aquery, (sql, exclusion.limit(until)))) != [["f"]]:
                    yield from exclusion.refuse(self.alias, second, exclusion.limit(until))
            finally:
                second.close()
            self._transactions_exclude = True
        except (BackendUnavailable, ServerError, SessionDead, StatementTimeout) as error:
            if any(entered):  # else another thread is at it, and its answer counts for all
                self._prove_from = monotonic() + PROVE_AGAIN
                logger.warning("%s It is asked again in %g s.", exclusion.unproven(self.alias, error), PROVE_AGAIN)
        finally:
            if any(entered):
                self._proving.release()

    @staticmethod
    def _try_in_transaction(cursor: Any, claim: Claim) -> str | None:
        """The isolation level of the transaction if the lock was free."""
        function = "pg_try_advisory_xact_lock_shared" if claim.shared else "pg_try_advisory_xact_lock"
        # an integer of our own making, spelt out: binding it would cost a quarter of the statement
        cursor.execute(TRY % (function, claim.key.number))
        granted, isolation = cursor.fetchone()
        return isolation if granted else None

    def _wait_in_transaction(
        self, connection: BaseDatabaseWrapper, cursor: Any, claim: Claim, until: float
    ) -> str | None:
        """In the queue, within one round trip, behind a savepoint: an error would abort the caller's transaction.

        Rolling back to the savepoint also frees a lock that was granted just before the timeout.
        """
        function = "pg_advisory_xact_lock_shared" if claim.shared else "pg_advisory_xact_lock"
        raw: Any = connection.connection
        threshold, raw.prepare_threshold = raw.prepare_threshold, None  # several statements cannot be prepared as one
        try:
            cursor.execute(WAIT % (lock_timeout(until), function, claim.key.number))
            while cursor.nextset():
                pass
            return str(cursor.fetchone()[1])
        except BaseException as error:  # KeyboardInterrupt too: the driver cancels the statement
            code = getattr(error.__cause__, "sqlstate", None)
            if not raw.closed:
                self._watch_over(threading.get_ident(), connection, monotonic() + RETREAT)
                cursor.execute("ROLLBACK TO SAVEPOINT distlock_wait; RELEASE SAVEPOINT distlock_wait")
            if code == DEADLOCK_DETECTED:
                raise DeadlockDetected from error
            if code not in (LOCK_NOT_AVAILABLE, QUERY_CANCELED):
                raise
            return None
        finally:
            if not raw.closed:
                raw.prepare_threshold = threshold

    def _watch_over(self, me: int, connection: BaseDatabaseWrapper, until: float) -> None:
        """Have the keepalive thread end the caller's connection if the server hangs beyond the deadline (R5)."""
        if until != math.inf:
            self._watched[me] = Watched(connection, until)
            self.wake_at(until)

    def _look_away(self, me: int) -> None:
        if me in self._watched:
            with self._guard:
                del self._watched[me]

    def still_held(self, connection: BaseDatabaseWrapper, keys: Iterable[LockKey]) -> set[LockKey]:
        """Which of ``keys`` the transaction of ``connection`` holds."""
        with connection.cursor() as cursor:
            cursor.execute(MINE)
            numbers = {row[0] for row in cursor.fetchall()}
        return {key for key in keys if key.number in numbers}

    def tick(self, now: float) -> float | None:
        due = super().tick(now)
        if self._watched:
            with self._guard:
                due = min(due or math.inf, look_after(list(self._watched.values()), now))
        return due

    def after_fork(self) -> None:
        super().after_fork()
        self._guard = threading.Lock()
        self._proving = FairLock()
        self._watched = {}

    # for operators

    def server_session(self, grant: Grant) -> int:
        if grant.claim.scope != "transaction":
            return super().server_session(grant)
        raw = grant.session.raw
        return 0 if raw.closed else int(raw.info.backend_pid)

    def inspect(self) -> Iterable[LockInfo]:
        return self.select(LockQuery(kind="named")).locks

    def select(self, query: LockQuery, mine: Sequence[Mine] = (), known: Sequence[str] = ()) -> Chosen:
        def row(session: PostgresSession) -> Flow[list[Any]]:
            statement = functools.partial(select.statement, query, mine, known)
            until = monotonic() + STATEMENT_LIMIT
            try:
                rows: list[Any] = yield Step(session.query, session.aquery, (statement(), until))
                return rows
            except ServerError as error:
                if error.code not in (introspection.UNDEFINED_TABLE, introspection.INSUFFICIENT_PRIVILEGE):
                    raise self._unavailable(error) from error
            rows = yield Step(session.query, session.aquery, (statement(notes=False), until))
            return rows

        return introspection.chosen(self.alias, run(self._aside(row))[0])

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self._ask, int(self.options.get("wait_sessions", 8)))

    def break_lock(self, info: LockInfo) -> bool:
        if info.holder == select.PREPARED:
            raise UnsupportedOperation(
                f"The lock {info.key} of alias {self.alias!r} belongs to a prepared transaction "
                "(pg_prepared_xacts), which has no session to be ended. COMMIT PREPARED or ROLLBACK PREPARED ends it."
            )
        statement = introspection.breaking(info)
        return statement is not None and run(self._aside(lambda session: self._break(session, statement)))

    def _break(self, session: PostgresSession, statement: bytes) -> Flow[bool]:
        try:
            rows = yield Step(session.query, session.aquery, (statement, monotonic() + STATEMENT_LIMIT))
        except ServerError as error:
            if error.code != introspection.INSUFFICIENT_PRIVILEGE:
                raise self._unavailable(error) from error
            raise UnsupportedOperation(
                f"The role of alias {self.alias!r} may not end this session: it belongs to another role. Grant it "
                "pg_signal_backend, or membership in that role; a superuser's session only a superuser may end."
            ) from error
        return bool(rows == [["t"]])
