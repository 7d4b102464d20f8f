"""One dedicated PostgreSQL session, on libpq's own calls.

Since the session is ours, psycopg's cursor layer is left out: ``pgconn.exec_prepared`` costs 0.72 of it and releases
the GIL while it waits. One socket serves threads and tasks alike, because the turnstile lets one statement in at a
time.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

from psycopg import OperationalError, pq
from psycopg.conninfo import make_conninfo

from django_distlock.exceptions import DeadlockDetected, UnsupportedOperation
from django_distlock.waiting import Call, Flow, adrive, drive

from .session import GRACE, STATEMENT_LIMIT, TICK, ServerError, Session, SessionDead, StatementTimeout
from .sockets import READY, readable

if TYPE_CHECKING:
    from django_distlock.names import LockKey

LOCK_NOT_AVAILABLE, QUERY_CANCELED, DEADLOCK_DETECTED = "55P03", "57014", "40P01"

STATEMENTS = {
    b"try_x": b"SELECT pg_try_advisory_lock($1)",
    b"try_s": b"SELECT pg_try_advisory_lock_shared($1)",
    # one more reader on a session that reads already would overtake a writer who waits: ask for that first
    b"join_s": (
        b"SELECT CASE WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objsubid = 1"
        b" AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        b" AND classid = (($1 >> 32) & 4294967295)::oid AND objid = ($1 & 4294967295)::oid)"
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
_TUPLES_OK = pq.ExecStatus.TUPLES_OK
_WAITS = frozenset({b"wait_x", b"wait_s"})
# The session is ours: a timeout that an administrator set for applications would end it, or a wait.
SETTINGS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
# Milliseconds between looks of the server at the socket of a waiter, so that a dead one leaves the queue.
CHECK_INTERVAL = "1000"


def conninfo(parameters: dict[str, Any]) -> str:
    """libpq's connection string for the parameters that Django's backend would connect with."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    given = {key: value for key, value in parameters.items() if key in known and value is not None}
    ours = {
        "application_name": "distlock",
        "keepalives": 1,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": 5000,
    }
    return make_conninfo("", **{**ours, **given})


def open_session(alias: str, parameters: dict[str, Any], waits: bool, until: float) -> Flow[PostgresSession]:
    """Connect by the monotonic time ``until``. SessionDead with the server's message, StatementTimeout,
    UnsupportedOperation behind a pooler that hands a session to several clients."""
    conn = pq.PGconn.connect_start(conninfo(parameters).encode())
    try:
        while True:
            status = conn.connect_poll()
            if status == pq.PollingStatus.OK:
                break
            if status == pq.PollingStatus.FAILED:
                raise SessionDead(conn.get_error_message())
            writing = status == pq.PollingStatus.WRITING
            if not (yield Call(READY, "poll", (conn.socket, writing, until))):
                raise StatementTimeout
        session = PostgresSession(conn, waits)
        yield from _prepare(session, alias, until)
    except BaseException:
        conn.finish()
        raise
    return session


def _prepare(session: PostgresSession, alias: str, until: float) -> Flow[None]:
    names = [*SETTINGS]
    if session.conn.server_version >= 140000:
        names.append("idle_session_timeout")
    columns = ["pg_backend_pid()", *(f"set_config('{name}', '0', false)" for name in names)]
    pid = yield Call(session, "query", (f"SELECT {', '.join(columns)}".encode(), until))
    if int(pid[0][0]) != session.conn.backend_pid:
        raise UnsupportedOperation(
            f"The lock sessions of alias {alias!r} go through a pooler that gives each transaction another server "
            "session (pgbouncer in transaction mode), where session locks leak and exclude nobody. Set "
            "OPTIONS['session_database'] to a database alias that connects directly, or take the lock inside "
            "atomic(), where it belongs to the transaction."
        )
    if session.waits and session.conn.server_version >= 140000:
        # not on every platform; there a dead waiter leaves the queue when its turn comes
        with contextlib.suppress(ServerError):
            yield Call(session, "query", (f"SET client_connection_check_interval = {CHECK_INTERVAL}".encode(), until))


class PostgresSession(Session):
    """``execute`` and ``query`` are targets of Call; the rest are flows."""

    def __init__(self, conn: Any, waits: bool) -> None:
        super().__init__(waits)
        self.conn = conn
        self._prepared: set[bytes] = set()
        self._timeout = 0  # lock_timeout of the session in milliseconds
        self._undo: tuple[bytes, bytes] | None = None

    @property
    def fd(self) -> int:
        try:
            return int(self.conn.socket)
        except OperationalError:  # libpq has closed it, and its number may be somebody else's by now
            return -1

    @property
    def server_id(self) -> int:
        return int(self.conn.backend_pid)

    def disconnect(self) -> None:
        self.conn.finish()

    def execute(self, statement: bytes, value: bytes, until: float, undo: tuple[bytes, bytes] | None = None) -> bytes:
        """Run one of STATEMENTS and return the only column of its only row.

        ``undo`` is the statement that takes back a grant whose reply nobody waits for any more. Raises SessionDead,
        ServerError, StatementTimeout.
        """
        if (
            self.orphaned_at is not None
            or statement in _WAITS
            or until - time.monotonic() <= STATEMENT_LIMIT + 2 * TICK
        ):
            return drive(self._statement(statement, value, until, undo))
        return self._execute_now(statement, value)

    def _execute_now(self, statement: bytes, value: bytes) -> bytes:
        """In this thread, by one blocking call of libpq; the watchdog ends it if it hangs."""
        conn = self.conn
        self.started = self.replied_at = time.monotonic()
        try:
            if statement not in self._prepared:
                self._read(conn.prepare(statement, STATEMENTS[statement]))
                self._prepared.add(statement)
            result = conn.exec_prepared(statement, (value,) if value else None)
            if result.status == _TUPLES_OK:
                return result.get_value(0, 0) or b""
            return self._read(result)
        except OperationalError as error:
            raise self._died(error) from error
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
            raise self._died(error) from error
        return self._read((yield from self._reply(until, undo)))

    def query(self, sql: bytes, until: float) -> list[list[str | None]]:
        """Run any statement without parameters; all rows, as text."""
        return drive(self._query(sql, until))

    async def aquery(self, sql: bytes, until: float) -> list[list[str | None]]:
        """:meth:`query` for a task."""
        return await adrive(self._query(sql, until))

    def _query(self, sql: bytes, until: float) -> Flow[list[list[str | None]]]:
        yield from self.settle(until)
        try:
            self.conn.send_query(sql)
        except OperationalError as error:
            raise self._died(error) from error
        result = yield from self._reply(until, None)
        self._read(result)
        return [
            [
                None if value is None else value.decode()
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
        try:
            self.conn.consume_input()
            return not self.conn.is_busy()
        except OperationalError as error:
            raise self._died(error) from error

    def _results(self) -> Any:
        first = result = self.conn.get_result()
        while result is not None:
            result = self.conn.get_result()
        return first

    def _read(self, result: Any) -> bytes:
        status = result.status if result is not None else pq.ExecStatus.FATAL_ERROR
        if status == pq.ExecStatus.TUPLES_OK:
            self.replied_at = time.monotonic()
            return result.get_value(0, 0) or b"" if result.ntuples else b""
        if status == pq.ExecStatus.COMMAND_OK:
            return b""
        message = self.conn.get_error_message() if result is None else result.get_error_message()
        code = result.error_field(pq.DiagnosticField.SQLSTATE) if result is not None else None
        if code is None or code[:3] in (b"57P", b"08P", b"25P") or self.conn.status == pq.ConnStatus.BAD:
            raise self._died(SessionDead(message))
        raise ServerError(code.decode(), message)

    def _died(self, error: Exception) -> SessionDead:
        self.kill("the server ended the session")
        return error if isinstance(error, SessionDead) else SessionDead(str(error))

    # replies that nobody waits for

    def _orphan(self, undo: tuple[bytes, bytes] | None) -> None:
        self._undo = undo
        self.orphaned_at = time.monotonic()

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

    # locks

    def _lock(self, key: LockKey, shared: bool) -> tuple[bytes, bytes, tuple[bytes, bytes]]:
        """The statement, its value, and what takes it back."""
        value = key.number_bytes
        if not shared:
            return b"try_x", value, (b"free_x", value)
        return b"join_s" if key.digest in self.held else b"try_s", value, (b"free_s", value)

    def lock(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        statement, value, undo = self._lock(key, shared)
        got = yield Call(self, "execute", (statement, value, until, undo))
        return bool(got == b"t")

    def lock_now(self, key: LockKey, shared: bool) -> bool:
        statement, value, _ = self._lock(key, shared)
        return self._execute_now(statement, value) == b"t"

    def unlock_now(self, key: LockKey, shared: bool) -> bool:
        return self._execute_now(b"free_s" if shared else b"free_x", key.number_bytes) == b"t"

    def wait(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        value = key.number_bytes
        name, undo = (b"wait_s", (b"free_s", value)) if shared else (b"wait_x", (b"free_x", value))
        yield from self._set_lock_timeout(until)
        try:
            yield Call(self, "execute", (name, value, until + GRACE, undo))
        except ServerError as error:
            # lock_timeout can fire after the grant (826 of 30,298 in a race with it), so: whatever came first
            yield from self.clear(max(until, time.monotonic()) + GRACE)
            if error.code == DEADLOCK_DETECTED:
                raise DeadlockDetected from error
            if error.code not in (LOCK_NOT_AVAILABLE, QUERY_CANCELED):
                raise
            return False
        return True

    def _set_lock_timeout(self, until: float) -> Flow[None]:
        """Keep the session's lock_timeout if it is near enough: it costs a statement, and the next wait is alike."""
        wanted = 0 if until == math.inf else max(1, math.ceil((until - time.monotonic()) * 1000))
        if wanted == self._timeout or 0 < 0.8 * wanted < self._timeout <= wanted + 5:
            return
        yield Call(self, "query", (b"SET lock_timeout = %d" % wanted, until + GRACE))
        self._timeout = wanted

    def unlock(self, key: LockKey, shared: bool) -> Flow[bool]:
        name = b"free_s" if shared else b"free_x"
        freed = yield Call(self, "execute", (name, key.number_bytes, _far()))
        return bool(freed == b"t")

    def ping(self, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"ping", b"", until))

    def cancel(self, other: Session, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"cancel", b"%d" % other.server_id, until))

    def clear(self, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"free_all", b"", until))


def _far() -> float:
    """A deadline that leaves the rest to the watchdog; tasks have no watchdog and wait for that long themselves."""
    return time.monotonic() + STATEMENT_LIMIT + 3 * TICK
