"""One dedicated PostgreSQL session: how it is opened, its statements by libpq's own calls, and the locks on it.

Since the session is ours, psycopg's cursor layer is left out: ``pgconn.exec_prepared`` costs 0.72 of it and releases
the GIL while it waits. One socket serves threads and tasks alike, because the turnstile lets one statement in at a
time.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
from typing import TYPE_CHECKING, Any

from psycopg import OperationalError, pq
from psycopg.conninfo import make_conninfo

from django_distlock.backends.sessions.session import (
    GRACE,
    STATEMENT_LIMIT,
    TICK,
    ServerError,
    Session,
    SessionDead,
    StatementTimeout,
)
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step, arun, run
from django_distlock.concurrency.sockets import READY, readable
from django_distlock.exceptions import DeadlockDetected, UnsupportedOperation

from . import pooler
from .connect import with_addresses

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

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
            return run(self._statement(statement, value, until, undo))
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
        return await arun(self._statement(statement, value, until, undo))

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
        return run(self._query(sql, until))

    async def aquery(self, sql: bytes, until: float) -> list[list[str | None]]:
        """:meth:`query` for a task."""
        return await arun(self._query(sql, until))

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
                if not (yield Step(READY.poll, READY.apoll, (self.fd, False, until))):
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
            elif not (yield Step(READY.poll, READY.apoll, (self.fd, False, until))):
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


# Feature not supported, syntax error or undefined object: a server that only speaks the protocol of PostgreSQL.
REFUSALS = frozenset({"0A", "42"})
LOCK_NOT_AVAILABLE, QUERY_CANCELED, DEADLOCK_DETECTED = "55P03", "57014", "40P01"
# The session is ours: a timeout that an administrator set for applications would end it, or a wait.
SETTINGS = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # The server's end of the connection: a client whose host has vanished holds its locks for 5 s and not for 2 h. What
    # libpq is told in conninfo() watches the client's end only.
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
}
# Compiling the statement that lists locks takes longer than running it ever does.
SETTINGS_12 = {"tcp_user_timeout": "5000", "jit": "off"}
SETTINGS_14 = {"idle_session_timeout": "0"}
# lock_timeout and poll() end at 2^31 ms, less than 25 days; seconds.
LONGEST_WAIT = 20 * 86400
# Milliseconds between looks of the server at the socket of a waiter, so that a dead one leaves the queue.
CHECK_INTERVAL = "1000"


def lock_timeout(until: float) -> int:
    """The setting for a wait until the monotonic time ``until``: milliseconds, 0 for no end. What is longer than the
    setting can say is waited for in pieces."""
    if until == math.inf:
        return 0
    return max(1, math.ceil(min(until - monotonic(), LONGEST_WAIT) * 1000))


def application_name() -> str:
    """Whose session it is, as far as PostgreSQL's 63 characters go."""
    pid = str(os.getpid())
    host = re.sub(r"[^!-~]", "?", socket.gethostname())[: 63 - len("distlock :") - len(pid)]
    return f"distlock {host}:{pid}"


def conninfo(parameters: dict[str, Any]) -> str:
    """libpq's connection string for the parameters that Django's backend would connect with."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    given = {key: value for key, value in parameters.items() if key in known and value is not None}
    ours = {
        "application_name": application_name(),
        "keepalives": 1,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": 5000,
    }
    return make_conninfo("", **{**ours, **given})


def open_session(alias: str, parameters: dict[str, Any], waits: bool, until: float) -> Flow[PostgresSession]:
    """Connect by the monotonic time ``until``. SessionDead with the server's message, StatementTimeout,
    UnsupportedOperation for a server that is no PostgreSQL."""
    session = PostgresSession((yield from connect(alias, parameters, until)), waits)
    try:
        yield from _prepare(session, alias, until)
    except BaseException:
        session.close()
        raise
    return session


def connect(alias: str, parameters: dict[str, Any], until: float) -> Flow[Any]:
    """A bare connection of libpq."""
    parameters = yield from with_addresses(alias, parameters, until)
    conn = pq.PGconn.connect_start(conninfo(parameters).encode())
    try:
        while True:
            status = conn.connect_poll()
            if status == pq.PollingStatus.OK:
                return conn
            if status == pq.PollingStatus.FAILED:
                raise SessionDead(conn.get_error_message())
            writing = status == pq.PollingStatus.WRITING
            if not (yield Step(READY.poll, READY.apoll, (conn.socket, writing, until))):
                raise StatementTimeout
    except BaseException:
        conn.finish()
        raise


def _prepare(session: PostgresSession, alias: str, until: float) -> Flow[None]:
    version = session.conn.server_version
    wanted = SETTINGS | (SETTINGS_12 if version >= 120000 else {}) | (SETTINGS_14 if version >= 140000 else {})
    if session.conn.parameter_status(b"server_encoding") == b"SQL_ASCII":
        # such a server does not know what its bytes mean, and refuses those of others in UTF-8
        wanted = wanted | {"client_encoding": "SQL_ASCII"}
    columns = ["pg_backend_pid()", *(f"set_config('{name}', '{value}', false)" for name, value in wanted.items())]
    try:
        facts = yield Step(session.query, session.aquery, (f"SELECT {', '.join(columns)}".encode(), until))
    except ServerError as error:
        if str(error.code)[:2] not in REFUSALS:
            raise
        rows = yield Step(session.query, session.aquery, (b"SELECT version()", until))
        raise UnsupportedOperation(
            f"The server of alias {alias!r} ({rows[0][0]}) refuses what a lock session of PostgreSQL needs: "
            f"{str(error).strip()} Take another backend there, such as leasetable.LeaseTableBackend or "
            "redis.RedisBackend."
        ) from error
    session.told(int(facts[0][0]))
    if session.waits and version >= 140000:
        # not on every platform; there a dead waiter leaves the queue when its turn comes
        with contextlib.suppress(ServerError):
            yield Step(
                session.query,
                session.aquery,
                (f"SET client_connection_check_interval = {CHECK_INTERVAL}".encode(), until),
            )


class PostgresSession(PostgresLine):
    """The locks: flows, and what can be done at once in this thread."""

    def __init__(self, conn: Any, waits: bool) -> None:
        super().__init__(conn, waits)
        self._timeout = 0  # lock_timeout of the session in milliseconds

    ensure_bound = pooler.ensure_bound

    def _lock(self, key: LockKey, shared: bool) -> tuple[bytes, bytes, tuple[bytes, bytes]]:
        """The statement, its value, and what takes it back."""
        value = key.number_bytes
        if not shared:
            return b"try_x", value, (b"free_x", value)
        return b"join_s" if key.digest in self.held else b"try_s", value, (b"free_s", value)

    def lock(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        statement, value, undo = self._lock(key, shared)
        got = yield Step(self.execute, self.aexecute, (statement, value, until, undo))
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
        yield from self._prepare_wait(name, until)
        try:
            yield Step(self.execute, self.aexecute, (name, value, until + GRACE, undo))
        except ServerError as error:
            # lock_timeout can fire after the grant (826 of 30,298 in a race with it), so: whatever came first
            yield from self.clear(max(until, monotonic()) + GRACE)
            if error.code == DEADLOCK_DETECTED:
                raise DeadlockDetected from error
            if error.code not in (LOCK_NOT_AVAILABLE, QUERY_CANCELED):
                raise
            return False
        return True

    def _prepare_wait(self, name: bytes, until: float) -> Flow[None]:
        if name in self._prepared:
            return
        if self._preparing:  # somebody did not wait for the reply: nobody knows whether it is prepared
            self._prepared.clear()
            yield Step(self.query, self.aquery, (b"DEALLOCATE ALL", until + GRACE))
        self._preparing = True
        yield Step(self.query, self.aquery, (b"PREPARE %s (bigint) AS %s" % (name, STATEMENTS[name]), until + GRACE))
        self._preparing = False
        self._prepared.add(name)

    def wait_now(self, key: LockKey, shared: bool, until: float) -> bool:
        if not self._near_enough(until):
            return False
        conn = self.conn
        statement = b"wait_s" if shared else b"wait_x"
        try:
            if statement in self._prepared:
                conn.send_query_prepared(statement, (key.number_bytes,))
            else:
                conn.send_query_params(STATEMENTS[statement], (key.number_bytes,))
            self._orphan(None)  # until the reply is here, an exception leaves it behind
            while not self._complete():
                if not READY.poll(conn.socket, False, until + GRACE):
                    self.kill("a wait was cut off")
                    raise StatementTimeout
            self.orphaned_at = None
            self._read(self._results())
        except OperationalError as error:
            raise self.died(error) from error
        except ServerError:  # lock_timeout, which can fire after the grant
            run(self.clear(max(until, monotonic()) + GRACE))
            return False
        return True

    def _near_enough(self, until: float) -> bool:
        """Does lock_timeout fit this wait? Setting it costs a statement, and the next wait is mostly like the last."""
        wanted = lock_timeout(until)
        return wanted == self._timeout or 0 < 0.8 * wanted < self._timeout <= wanted + 5

    def _set_lock_timeout(self, until: float) -> Flow[None]:
        if not self._near_enough(until):
            wanted = lock_timeout(until)
            yield Step(self.query, self.aquery, (b"SET lock_timeout = %d" % wanted, until + GRACE))
            self._timeout = wanted

    def unlock(self, key: LockKey, shared: bool) -> Flow[bool]:
        name = b"free_s" if shared else b"free_x"
        freed = yield Step(self.execute, self.aexecute, (name, key.number_bytes, _far()))
        return bool(freed == b"t")

    def ping(self, until: float) -> Flow[None]:
        yield Step(self.execute, self.aexecute, (b"ping", b"", until))

    def cancel(self, other: Session, until: float) -> Flow[None]:
        yield Step(self.execute, self.aexecute, (b"cancel", b"%d" % other.server_id, until))

    def clear(self, until: float) -> Flow[None]:
        yield Step(self.execute, self.aexecute, (b"free_all", b"", until))


def _far() -> float:
    """A deadline that leaves the rest to the watchdog; tasks have no watchdog and wait for that long themselves."""
    return monotonic() + STATEMENT_LIMIT + 3 * TICK
