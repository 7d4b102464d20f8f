"""Locks in the caller's own transaction: taken on the caller's connection, they die with the transaction they protect.

They need no other session and are safe behind a transaction pooler. Their statements are sent by libpq's own calls, and
BEGIN goes in the same packet: they are no queries of the application, whose log does not have them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError
from psycopg import Error, OperationalError, pq
from psycopg.errors import error_from_result

from django_distlock.backends.sessions.session import STATEMENT_LIMIT, unavailable
from django_distlock.concurrency import clock, sockets
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.exceptions import BackendUnavailable, DeadlockDetected, UnsupportedOperation
from django_distlock.records import Claim, Grant, grant_of

from .introspection import MINE
from .session import (
    DEADLOCK_DETECTED,
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    lock_timeout,
    refuse_pretender,
    results,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.backends.sessions.backend import BusyKeys
    from django_distlock.keys import LockKey

# Both return the isolation level of the transaction as well.
TRY = b"SELECT current_setting('transaction_isolation'), pg_try_advisory_xact_lock%s(%s)"
# The caller's lock_timeout is the text before a text of no length, for which ours is set and the lock waited for. So
# the server reads it before it sets ours, and sets it again when it has the lock. As one statement this costs the
# server half of what four cost. An error would abort the caller's transaction: hence the savepoint.
WAIT = b"""SAVEPOINT distlock_wait;
SELECT current_setting('transaction_isolation'), set_config('lock_timeout', current_setting('lock_timeout')
|| left(set_config('lock_timeout', '%d', true) || pg_advisory_xact_lock%s(%s)::text, 0), true);
RELEASE SAVEPOINT distlock_wait"""
# What undoes a wait without success also frees a lock that was granted just before the timeout.
TO_SAVEPOINT = b"ROLLBACK TO SAVEPOINT distlock_wait; RELEASE SAVEPOINT distlock_wait"
VERSION = b"SELECT version(), NULL"

_ACTIVE, _IDLE = pq.TransactionStatus.ACTIVE, pq.TransactionStatus.IDLE
_FAILED = pq.TransactionStatus.INERROR
_ROWS, _DONE = pq.ExecStatus.TUPLES_OK, (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


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
    """Locks in the transactions of callers. ``busy`` are keys to wait for without trying first."""

    def __init__(self, alias: str, busy: BusyKeys) -> None:
        self.alias = alias
        self._busy = busy
        # Has a server answered that it is PostgreSQL? The child of a fork need not ask again.
        self._known = False

    def acquire(self, connection: Any, claim: Claim, wait: float) -> Grant | None:
        """Take the lock on the caller's connection."""
        asked = clock.now()
        shared, number = b"_shared" if claim.shared else b"", claim.key.number_bytes
        try:
            self._make_ready(connection)
            isolation = None
            if wait <= 0 or not (self._busy and self._busy.lately(claim.key.digest, asked)):
                until = max(claim.answer_by, clock.now() + STATEMENT_LIMIT)
                level, granted = self._ask(connection, TRY % (shared, number), until)
                if granted == b"t":
                    isolation = level
                else:
                    self._busy.add(claim.key.digest, asked)
            # a server that took its time to say "busy" is not silent: what is left of the timeout decides
            if isolation is None and clock.now() < asked + wait:
                statement = WAIT % (lock_timeout(asked + wait), shared, number)
                isolation = self._wait(connection, statement, asked + wait + SILENCE)
        except DatabaseError as error:
            raise unavailable(self.alias, error, "transaction-scoped lock") from error
        if isolation is None:
            return None
        return grant_of((claim, asked, None, None, TransactionSession(connection, isolation)))

    def _make_ready(self, connection: Any) -> None:
        """Connect if need be; refuse a server that is known not to exclude (R22b)."""
        if connection.connection is None or connection.health_check_enabled:
            connection.close_if_health_check_failed()
            connection.ensure_connection()
        connection.validate_no_broken_transaction()
        pgconn = connection.connection.pgconn
        if pgconn.pipeline_status or pgconn.transaction_status == _ACTIVE:
            # there psycopg keeps its mutex: this thread would wait for itself
            raise UnsupportedOperation(
                "A lock in a transaction cannot be taken inside a pipeline, copy() or stream() of psycopg."
            )
        if not self._known:
            version, _ = self._ask(connection, VERSION, clock.now() + STATEMENT_LIMIT)
            refuse_pretender(self.alias, version)
            self._known = True

    def _ask(self, connection: Any, statement: bytes, until: float) -> tuple[str, bytes | None]:
        """The row that ``statement`` returns, with BEGIN in the same packet if the transaction has not begun.

        An error aborts the transaction, an interrupt cancels the statement, as with a cursor of psycopg. If the server
        is silent until ``until``, the connection is ended (R5).
        """
        raw = connection.connection
        pgconn = raw.pgconn
        with connection.wrap_database_errors, raw.lock:
            if not connection.autocommit and pgconn.transaction_status == _IDLE:
                statement = b"%s;%s" % (raw._get_tx_start_command(), statement)
            try:
                pgconn.send_query(statement)
                found = self._results(connection, until)
            except BaseException:
                if pgconn.transaction_status == _ACTIVE:
                    with contextlib.suppress(Error, BackendUnavailable):
                        raw.cancel_safe(timeout=SILENCE)
                        self._results(connection, min(until, clock.now() + SILENCE))
                raise
            if not found or found[-1].status not in _DONE:
                raise error_from_result(found[-1], raw.info.encoding) if found else OperationalError("no reply")
        row = next((result for result in found if result.status == _ROWS), None)
        return ("", None) if row is None else (row.get_value(0, 0).decode(), row.get_value(0, 1))

    def _results(self, connection: Any, until: float) -> list[Any]:
        pgconn = connection.connection.pgconn
        found = results(pgconn, pgconn.socket, until)
        if found is None:
            sockets.shut(pgconn.socket)
            connection.connection.close()
            raise BackendUnavailable(
                f"The server of alias {self.alias!r} did not answer in time: the connection of this thread to "
                f"database {connection.alias!r} was ended, and its transaction rolled back."
            )
        while (notify := pgconn.notifies()) is not None:
            if pgconn.notify_handler:
                pgconn.notify_handler(notify)
        return found

    def _wait(self, connection: Any, statement: bytes, until: float) -> str | None:
        """Wait in the server's queue, within one round trip. The isolation level; None if the lock stays busy."""
        try:
            return self._ask(connection, statement, until)[0]
        except BaseException as error:  # of a signal too
            if connection.connection.pgconn.transaction_status == _FAILED:
                self._ask(connection, TO_SAVEPOINT, clock.now() + SILENCE)
            code = getattr(error.__cause__, "sqlstate", None)
            if code == DEADLOCK_DETECTED:
                raise DeadlockDetected from error
            if code not in (LOCK_NOT_AVAILABLE, QUERY_CANCELED):
                raise
            return None

    def still_held(self, connection: BaseDatabaseWrapper, keys: Iterable[LockKey]) -> set[LockKey]:
        """Those of ``keys`` that the transaction of ``connection`` holds."""
        with connection.cursor() as cursor:
            cursor.execute(MINE)
            numbers = {row[0] for row in cursor.fetchall()}
        return {key for key in keys if key.number in numbers}
