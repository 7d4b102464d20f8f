"""Statements on one dedicated PostgreSQL session, by libpq's own calls.

Since the session is ours, psycopg's cursor layer is left out: ``pgconn.exec_prepared`` costs 0.72 of it and releases
the GIL while it waits. One socket serves threads and tasks alike, because the turnstile lets one statement in at a
time.
"""

from __future__ import annotations

from typing import Any

from psycopg import OperationalError, pq

from django_distlock.backends.sessions.session import (
    STATEMENT_LIMIT,
    TICK,
    ServerError,
    Session,
    SessionDead,
    StatementTimeout,
)
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Call, Flow, adrive, drive
from django_distlock.concurrency.sockets import READY, readable

STATEMENTS = {
    b"try_x": b"SELECT pg_try_advisory_lock($1)",
    b"try_s": b"SELECT pg_try_advisory_lock_shared($1)",
    # one more reader on a session that reads already would overtake a writer who waits: ask for that first
    b"join_s": (
        b"SELECT CASE WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objsubid = 1"
        b" AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        b" AND classid = (($1::bigint >> 32) & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid)"
        b" THEN false ELSE pg_try_advisory_lock_shared($1) END"
    ),
    b"wait_x": b"SELECT pg_advisory_lock($1)",
    b"wait_s": b"SELECT pg_advisory_lock_shared($1)",
    b"free_x": b"SELECT pg_advisory_unlock($1)",
    b"free_s": b"SELECT pg_advisory_unlock_shared($1)",
    b"free_all": b"SELECT pg_advisory_unlock_all()",
    b"ping": b"SELECT true",
    b"cancel": b"SELECT pg_cancel_backend($1)",
}
_TUPLES_OK, _COMMAND_OK = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK
_WAITS = frozenset({b"wait_x", b"wait_s"})


class PostgresLine(Session):
    """``execute`` and ``query`` are targets of Call; the rest are flows."""

    def __init__(self, conn: Any, waits: bool) -> None:
        super().__init__(waits)
        self.conn = conn
        self._server_id = int(conn.backend_pid)
        self.pooled = False
        self._prepared: set[bytes] = set()
        self._preparing = False
        self._undo: tuple[bytes, bytes] | None = None
        self._received: Any = None  # of a reply that is not complete

    @property
    def fd(self) -> int:
        try:
            return int(self.conn.socket)
        except OperationalError:  # libpq has closed it, and its number may be somebody else's by now
            return -1

    @property
    def server_id(self) -> int:
        return self._server_id

    def told(self, pid: int) -> None:
        """``pid`` is what the server calls this session. Another number in the greeting is that of a pooler."""
        self.pooled = pid != self._server_id
        self._server_id = pid

    def disconnect(self) -> None:
        self.conn.finish()

    def execute(self, statement: bytes, value: bytes, until: float, undo: tuple[bytes, bytes] | None = None) -> bytes:
        """Run one of STATEMENTS and return the only column of its only row.

        ``undo`` is the statement that takes back a grant whose reply nobody waits for any more. Raises SessionDead,
        ServerError, StatementTimeout.
        """
        if self.orphaned_at is not None or statement in _WAITS or until - monotonic() <= STATEMENT_LIMIT + 2 * TICK:
            return drive(self._statement(statement, value, until, undo))
        return self._execute_now(statement, value)

    def _execute_now(self, statement: bytes, value: bytes) -> bytes:
        """In this thread, by one blocking call of libpq; the watchdog ends it if it hangs."""
        conn = self.conn
        self.started = self.replied_at = monotonic()
        try:
            if statement not in self._prepared:
                self._read(conn.prepare(statement, STATEMENTS[statement]))
                self._prepared.add(statement)
            result = conn.exec_prepared(statement, (value,) if value else None)
            if result.status == _TUPLES_OK:
                return result.get_value(0, 0) or b""
            return self._read(result)
        except OperationalError as error:
            raise self.died(error) from error
        finally:
            self.started = None

    async def aexecute(
        self, statement: bytes, value: bytes, until: float, undo: tuple[bytes, bytes] | None = None
    ) -> bytes:
        """:meth:`execute` for a task."""
        return await adrive(self._statement(statement, value, until, undo))

    def _statement(self, statement: bytes, value: bytes, until: float, undo: tuple[bytes, bytes] | None) -> Flow[bytes]:
        yield from self.settle(until)
        try:
            if statement in self._prepared:
                self.conn.send_query_prepared(statement, (value,) if value else None)
            else:
                self.conn.send_query_params(STATEMENTS[statement], (value,) if value else None)
        except OperationalError as error:
            raise self.died(error) from error
        return self._read((yield from self._reply(until, undo)))

    def query(self, sql: bytes, until: float) -> list[list[str | None]]:
        """Run any statement without parameters, after settings if need be; all rows, as text. What is no UTF-8 is
        marked as such: a role may have got its name in a database with another encoding."""
        return drive(self._query(sql, until))

    async def aquery(self, sql: bytes, until: float) -> list[list[str | None]]:
        """:meth:`query` for a task."""
        return await adrive(self._query(sql, until))

    def _query(self, sql: bytes, until: float) -> Flow[list[list[str | None]]]:
        yield from self.settle(until)
        try:
            self.conn.send_query(sql)
        except OperationalError as error:
            raise self.died(error) from error
        result = yield from self._reply(until, None)
        self._read(result)
        return [
            [
                None if value is None else value.decode("utf-8", "replace")
                for value in (result.get_value(row, column) for column in range(result.nfields))
            ]
            for row in range(result.ntuples)
        ]

    def _reply(self, until: float, undo: tuple[bytes, bytes] | None) -> Flow[Any]:
        try:
            while not self._complete():
                if not (yield Call(READY, "poll", (self.fd, False, until))):
                    raise StatementTimeout
            return self._results()
        except SessionDead:
            raise
        except BaseException:  # nobody waits for the reply any more
            self._orphan(undo)
            raise

    def _complete(self) -> bool:
        """Has all of the reply come? Also the end of it, which follows an error in a packet of its own: get_result()
        would wait for that without letting any other thread run."""
        try:
            self.conn.consume_input()
            while not self.conn.is_busy():
                result = self.conn.get_result()
                if result is None:
                    return True
                if self._received is None or self._received.status == _COMMAND_OK:
                    self._received = result
            return False
        except OperationalError as error:
            raise self.died(error) from error

    def _results(self) -> Any:
        """The first result of a reply that is complete, apart from those of settings."""
        result, self._received = self._received, None
        return result

    def _read(self, result: Any) -> bytes:
        status = result.status if result is not None else pq.ExecStatus.FATAL_ERROR
        if status == pq.ExecStatus.TUPLES_OK:
            self.replied_at = monotonic()
            return result.get_value(0, 0) or b"" if result.ntuples else b""
        if status == pq.ExecStatus.COMMAND_OK:
            return b""
        message = self.conn.get_error_message() if result is None else result.get_error_message()
        code = result.error_field(pq.DiagnosticField.SQLSTATE) if result is not None else None
        if code is None or code[:3] in (b"57P", b"08P", b"25P") or self.conn.status == pq.ConnStatus.BAD:
            raise self.died(SessionDead(message))
        raise ServerError(code.decode(), message)

    def died(self, error: Exception) -> SessionDead:
        self.kill("the server ended the session")
        return error if isinstance(error, SessionDead) else SessionDead(str(error))

    # replies that nobody waits for

    def _orphan(self, undo: tuple[bytes, bytes] | None) -> None:
        self._undo = undo
        self.orphaned_at = monotonic()

    def _clean_up(self) -> None:
        """The orphaned reply is complete. A grant in it is taken back, by a statement that is an orphan as well."""
        undo, self._undo = self._undo, None
        self.orphaned_at = None
        try:
            granted = self._read(self._results()) != b"f"
        except ServerError:
            granted = False
        if granted and undo is not None:
            self.conn.send_query_params(STATEMENTS[undo[0]], (undo[1],))
            self._orphan(None)

    def settle(self, until: float) -> Flow[None]:
        while self.orphaned_at is not None:
            if self._complete():
                self._clean_up()
            elif not (yield Call(READY, "poll", (self.fd, False, until))):
                raise StatementTimeout

    def collect(self) -> None:
        while self.orphaned_at is not None and self._complete():
            self._clean_up()

    def beat(self) -> None:
        self.conn.send_query(STATEMENTS[b"ping"])
        self._orphan(None)

    def unexpected(self) -> None:
        # a notice, a changed parameter, or the end, of which libpq tells only after the server's last words
        while readable(self.fd, 0):
            self._complete()
