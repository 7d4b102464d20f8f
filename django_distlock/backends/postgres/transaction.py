"""Locks in the caller's own transaction: taken on the caller's connection, they die with the transaction they protect.

They need no other session and are safe behind a transaction pooler.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, connections
from psycopg import pq

from django_distlock.backends.sessions import exclusion
from django_distlock.backends.sessions.session import (
    GRACE,
    ServerError,
    SessionDead,
    StatementTimeout,
    locked,
    unavailable,
)
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import LEAST_PATIENCE
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.parking import FairLock
from django_distlock.exceptions import BackendUnavailable, DeadlockDetected
from django_distlock.records import Claim, Grant, grant_of

from .connect import connect
from .introspection import MINE
from .session import DEADLOCK_DETECTED, LOCK_NOT_AVAILABLE, QUERY_CANCELED, PostgresSession, lock_timeout
from .statements import Bounded, begun, by_cursor, directly, nobody_looks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.backends.sessions.backend import BusyKeys
    from django_distlock.keys import LockKey

    from .statements import Row

    Ask = Callable[[Any, bytes, Bounded], Row]

logger = logging.getLogger("django_distlock.backends")

# If no second session could be opened to prove that the server excludes, the next attempt comes after this; seconds.
PROVE_AGAIN = 60.0
# A server that has just said that the wait is over lives. For the way back to the savepoint it has this much longer,
# because a moment without a processor must not cost the caller's transaction; seconds.
RETREAT = 0.25

# Both return the isolation level of the transaction as well.
TRY = b"SELECT current_setting('transaction_isolation'), pg_try_advisory_xact_lock%s(%s)"
# The caller's lock_timeout is the text before a text of no length, for which ours is set and the lock waited for. So
# the server reads it before it sets ours, and sets it again when it has the lock. As one statement this costs the
# server half of what four cost.
WAIT = b"""SELECT current_setting('transaction_isolation'), set_config('lock_timeout', current_setting('lock_timeout')
|| left(set_config('lock_timeout', '%d', true) || pg_advisory_xact_lock%s(%s)::text, 0), true)"""
# An error would abort the caller's transaction, unless it begins with the wait. Without parameters the server takes
# several statements at once.
BEHIND_SAVEPOINT = b"SAVEPOINT distlock_wait; %s; RELEASE SAVEPOINT distlock_wait"
TO_SAVEPOINT = b"ROLLBACK TO SAVEPOINT distlock_wait; RELEASE SAVEPOINT distlock_wait"
# As text, and as psycopg's cursor returns it.
_GRANTED = ("t", True)
_INSIDE, _FAILED = pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR


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
        return bool(self.raw.pgconn.transaction_status == _FAILED)

    def notice_end(self) -> None:
        if self.connection.connection is not self.raw or self.raw.closed:
            self.dead = "the connection was closed"


class TransactionLocks:
    """Locks in the transactions of callers. Lock sessions, which prove that the server excludes, are
    opened with the parameters of ``session_database``. ``busy`` are keys to wait for without trying first."""

    def __init__(self, alias: str, session_database: str, busy: BusyKeys) -> None:
        self.alias = alias
        self.session_database = session_database
        self._busy = busy
        self._proven = False  # has the server shown that it excludes? The children of this process know it, too
        self._prove_from = -math.inf
        self._proving = FairLock()

    def after_fork(self) -> None:
        self._proving = FairLock()

    def acquire(self, connection: Any, claim: Claim, wait: float) -> Grant | None:
        """Take the lock on the caller's connection. Wrappers and debugging of the caller see the statements."""
        asked = clock.now()
        until = max(claim.answer_by or asked + max(wait, LEAST_PATIENCE), asked + GRACE)
        bounded: Bounded | None = None
        try:
            if connection.connection is None or connection.health_check_enabled:
                connection.close_if_health_check_failed()
                connection.ensure_connection()
            bounded = Bounded(connection.connection, until + GRACE / 2)
            ask = directly if nobody_looks(connection) else by_cursor
            isolation = None
            shared, number = b"_shared" if claim.shared else b"", claim.key.number_bytes
            if wait <= 0 or not (self._busy.until and self._busy.lately(claim.key.digest, asked)):
                level, granted = ask(connection, TRY % (shared, number), bounded)
                if granted in _GRANTED:
                    isolation = level
                if isolation is None:
                    self._proven = True  # the server has just kept this one out
                    self._busy.add(claim.key.digest, asked)
                elif not self._proven and asked >= self._prove_from:
                    run(self._prove(claim, until))
            if isolation is None and wait > 0:
                statement = WAIT % (lock_timeout(asked + wait), shared, number)
                isolation = self._wait(connection, ask, statement, bounded)
        except BaseException as error:
            if bounded is not None:
                bounded.__exit__()  # an interrupt at the entrance of its __exit__() has left it in place
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
        return grant_of((claim, asked, None, None, TransactionSession(connection, isolation)))

    @staticmethod
    def _wait(connection: Any, ask: Ask, statement: bytes, bounded: Bounded) -> str | None:
        """Wait in the server's queue, within one round trip. What undoes a wait without success also frees a lock that
        was granted just before the timeout.
        """
        pgconn = connection.connection.pgconn
        # what makes a cursor may send statements before ours, which must not be undone
        alone = ask is directly and not begun(connection)
        try:
            return ask(connection, statement if alone else BEHIND_SAVEPOINT % statement, bounded)[0]
        except BaseException as error:  # KeyboardInterrupt too: the driver cancels the statement
            code = getattr(error.__cause__, "sqlstate", None)
            if pgconn.transaction_status == _FAILED or (alone and pgconn.transaction_status == _INSIDE):
                bounded.until = clock.now() + RETREAT
                ask(connection, b"ROLLBACK" if alone else TO_SAVEPOINT, bounded)
            if code == DEADLOCK_DETECTED:
                raise DeadlockDetected from error
            if code not in (LOCK_NOT_AVAILABLE, QUERY_CANCELED):
                raise
            return None

    async def _prove(self, claim: Claim, until: float) -> None:
        """The server must refuse another session the lock that the caller's transaction has just got (R22b). One
        statement without a transaction: behind a pooler it needs a server session for no longer than that.

        If no second session can be opened, the lock is given out all the same, and a later one proves it. The caller's
        transaction occupies a session while it asks, so in a pool that is full of first locks each would wait for the
        others for ever.
        """
        with contextlib.suppress(StatementTimeout):  # another thread proves it, for all
            await locked(self._proving, until - clock.now(), self._proof, claim, until)

    async def _proof(self, claim: Claim, until: float) -> None:
        if self._proven:
            return
        parameters = connections[self.session_database].get_connection_params()
        try:
            opened = await connect(self.alias, parameters, exclusion.limit(until))
            second = PostgresSession(opened, False)
            try:
                sql = b"SELECT pg_try_advisory_xact_lock(%s)" % claim.key.number_bytes
                if (await second.query(sql, exclusion.limit(until))) != [["f"]]:
                    await exclusion.refuse(self.alias, second, exclusion.limit(until))
            finally:
                second.close()
            self._proven = True
        except (BackendUnavailable, ServerError, SessionDead, StatementTimeout) as error:
            self._prove_from = clock.now() + PROVE_AGAIN
            logger.warning("%s It is asked again in %g s.", exclusion.unproven(self.alias, error), PROVE_AGAIN)

    def still_held(self, connection: BaseDatabaseWrapper, keys: Iterable[LockKey]) -> set[LockKey]:
        """Those of ``keys`` that the transaction of ``connection`` holds."""
        with connection.cursor() as cursor:
            cursor.execute(MINE)
            numbers = {row[0] for row in cursor.fetchall()}
        return {key for key in keys if key.number in numbers}
