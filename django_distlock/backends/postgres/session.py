"""One lock session of PostgreSQL: how it is opened, its statements by libpq's own calls, and the locks on it.

Django and psycopg open the connection. Since it is ours, psycopg's cursors are left out: ``pgconn.exec_prepared`` costs
0.72 of them and releases the GIL while it waits.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import socket
from typing import TYPE_CHECKING, Any

from psycopg import Error, OperationalError, pq

from django_distlock.backends.sessions.session import ServerError, Session
from django_distlock.backends.sessions.watched import SessionDead
from django_distlock.backends.side_connection import SideConnection
from django_distlock.concurrency import clock, sockets
from django_distlock.exceptions import UnsupportedOperation

if TYPE_CHECKING:
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim

# lock_timeout and poll() end at 2^31 ms, less than 25 days; seconds.
LONGEST_WAIT = 20 * 86400.0
LOCK_NOT_AVAILABLE, QUERY_CANCELED, DEADLOCK_DETECTED = "55P03", "57014", "40P01"
PREPARED_BEFORE = "42P05"
# A wait that sets lock_timeout as well, as the text to its left: so the server does that first. After an error it has
# the value from before.
SET_AND_WAIT = b"SELECT (set_config('lock_timeout', $2, false) || pg_advisory_lock%s($1)::text) IS NOT NULL"
STATEMENTS = {
    b"try_x": b"SELECT pg_try_advisory_lock($1)",
    b"try_s": b"SELECT pg_try_advisory_lock_shared($1)",
    # a second reader on one session would overtake a writer that waits: look for one first
    b"join_s": (
        b"SELECT CASE WHEN EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objsubid = 1"
        b" AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        b" AND classid = (($1::bigint >> 32) & 4294967295)::oid AND objid = ($1::bigint & 4294967295)::oid)"
        b" THEN false ELSE pg_try_advisory_lock_shared($1) END"
    ),
    b"wait_x": b"SELECT pg_advisory_lock($1) IS NOT NULL",
    b"wait_s": b"SELECT pg_advisory_lock_shared($1) IS NOT NULL",
    b"set_wait_x": SET_AND_WAIT % b"",
    b"set_wait_s": SET_AND_WAIT % b"_shared",
    b"free_x": b"SELECT pg_advisory_unlock($1)",
    b"free_s": b"SELECT pg_advisory_unlock_shared($1)",
    b"ping": b"SELECT true",
}
# Timeouts that an administrator set for applications would end a lock session, or a wait on it. The keepalives are the
# server's: a client whose host has vanished holds its locks for 5 s, not for 2 h. Compiling the statement that lists
# locks takes longer than running it ever does (jit). And a message that comes in the middle of a wait, such as that of
# log_lock_waits, would be taken for its reply.
SETTINGS = {
    "client_min_messages": "error",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "5000",
    "jit": "off",
}
# A waiter whose client has gone leaves the queue within a second. Not on every platform; elsewhere it does when its
# turn comes.
CHECK_CLIENT = b"SET client_connection_check_interval = 1000"
# For the client's end of the connection; the second and third number are seconds.
OPTIONS = {
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}
# They speak PostgreSQL's protocol and grant one lock to every session that asks, or do not know advisory locks.
PRETENDERS = re.compile("CockroachDB|-YB-|Yugabyte|Materialize|CrateDB|QuestDB|Redshift", re.IGNORECASE)
# "Feature not supported", "syntax error or undefined object": a server that only speaks PostgreSQL's protocol.
REFUSALS = frozenset({"0A", "42"})
# The notification that tells a pooler in session mode from other poolers comes within milliseconds, or never; seconds.
COMES_WITHIN = 0.5

_ROWS, _DONE = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK


def application_name() -> str:
    """Host and process id, cut to PostgreSQL's 63 characters."""
    pid = str(os.getpid())
    host = re.sub(r"[^!-~]", "?", socket.gethostname())[: 63 - len("distlock :") - len(pid)]
    return f"distlock {host}:{pid}"


def lock_timeout(until: float) -> int:
    """The setting for a wait until the monotonic time ``until``: milliseconds. A longer wait than the setting allows is
    made in pieces."""
    return max(1, math.ceil(min(until - clock.now(), LONGEST_WAIT) * 1000))


def refuse_pretender(alias: str, version: str) -> None:
    """UnsupportedOperation for a server whose advisory locks exclude nobody (R22b)."""
    if PRETENDERS.search(version):
        raise not_postgres(alias, version, "its advisory locks exclude nobody")


def not_postgres(alias: str, version: str, why: str) -> UnsupportedOperation:
    return UnsupportedOperation(
        f"The server of alias {alias!r} ({version}) is not PostgreSQL: {why}. Take another backend there, such as "
        "leasetable.LeaseTableBackend or redis.RedisBackend."
    )


def open_session(alias: str, database: str, waits: bool) -> PostgresSession:
    """Connect. Django's errors, SessionDead, ServerError; UnsupportedOperation for a pooler in transaction mode, and
    for a server that only looks like PostgreSQL."""
    session = _connect(database, waits)
    with session.opening():
        settings = _settings(session)
        _identify(session, alias, settings)
        if session.pooled:
            if not _hears(session, database):
                raise UnsupportedOperation(
                    f"The lock sessions of alias {alias!r} go through a pooler that gives each transaction another "
                    "server session (pgbouncer in transaction mode), where session locks leak and exclude nobody. Set "
                    "OPTIONS['session_database'] to a database alias that connects directly or through a pool in "
                    "session mode, or take the lock inside atomic(), where it belongs to the transaction."
                )
            session.rows(f"SELECT {settings}".encode())
        if session.waits:
            _prepare_to_wait(session)
    return session


def _connect(database: str, waits: bool) -> PostgresSession:
    connection = SideConnection(database, application_name=application_name(), **OPTIONS)
    connection.open_driver()
    return PostgresSession(connection, waits)


def _settings(session: PostgresSession) -> str:
    """The calls that set SETTINGS."""
    wanted = dict(SETTINGS)
    if session.conn.server_version >= 170000:
        wanted["transaction_timeout"] = "0"  # a wait is a transaction, too
    if session.conn.parameter_status(b"server_encoding") == b"SQL_ASCII":
        # such a server does not know the meaning of its bytes, and refuses foreign ones in UTF-8
        wanted["client_encoding"] = "SQL_ASCII"
    return ", ".join(f"set_config('{name}', '{value}', false)" for name, value in wanted.items())


def _identify(session: PostgresSession, alias: str, settings: str) -> None:
    """Ask what server this is, and set ``settings`` in the same statement. Not behind a pooler: the server session may
    be another client's in a moment, which would go on without its own timeouts."""
    mine = f"CASE WHEN pg_backend_pid() = {session.server_id} THEN concat({settings}) END"
    try:
        facts = session.rows(f"SELECT pg_backend_pid(), version(), {mine}".encode())
    except ServerError as error:
        if str(error.code)[:2] not in REFUSALS:
            raise
        version = session.rows(b"SELECT version()")[0][0]
        raise not_postgres(alias, version, f"it refuses what a lock session needs: {str(error).strip()}") from error
    session.note_process_id(int(facts[0][0]))
    refuse_pretender(alias, facts[0][1])


def _prepare_to_wait(session: PostgresSession) -> None:
    with contextlib.suppress(ServerError):
        session.rows(CHECK_CLIENT)
    session.prepare(b"wait_x")
    session.prepare(b"wait_s")


def _hears(session: PostgresSession, database: str) -> bool:
    """Does this session, while it asks for nothing, get the notification that another one sends?

    Neither the process id in the greeting nor ``pg_backend_pid()`` can tell the mode of a pooler: the first is the
    pooler's in every mode, and in transaction mode an idle pool may give the same server session again and again. A
    notification can: it reaches a silent client only if the server session that listens is bound to that client
    (https://www.pgbouncer.org/features.html: LISTEN works in session mode, and never in transaction mode).
    """
    channel = f"distlock_{secrets.token_hex(8)}".encode()
    other = _connect(database, False)
    try:
        session.rows(b"LISTEN " + channel)
        other.rows(b"NOTIFY " + channel)
        with session.connection.wrapper.wrap_database_errors:
            heard = any(session.raw.notifies(timeout=COMES_WITHIN, stop_after=1))
        session.rows(b"UNLISTEN " + channel)
    finally:
        other.close()
    return heard


def results(pgconn: Any, descriptor: int, until: float) -> list[Any] | None:
    """The results of the statement that was sent; None if the reply is not complete by the monotonic time ``until``.

    libpq's get_result() waits without letting any other thread run. So it is called only when it need not wait, also
    for the end of the reply, which follows an error in a packet of its own.
    """
    found: list[Any] = []
    while True:
        while pgconn.is_busy():
            if not sockets.readable(descriptor, until - clock.now()):
                return None
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return found
        found.append(result)


class PostgresSession(Session):
    """A statement is the name of one of STATEMENTS, and its values."""

    wait_is_over = frozenset({LOCK_NOT_AVAILABLE, QUERY_CANCELED})
    deadlocks = frozenset({DEADLOCK_DETECTED})
    longest_wait = LONGEST_WAIT

    def __init__(self, connection: SideConnection, waits: bool) -> None:
        super().__init__(connection, waits)
        self.raw: Any = connection.wrapper.connection
        self.conn = self.raw.pgconn
        self.conn.nonblocking = 0
        self.server_id = int(self.conn.backend_pid)
        self.pooled = False
        self._prepared: set[bytes] = set()
        # lock_timeout in milliseconds, and what the wait that runs sets
        self._timeout = self._setting = 0

    def note_process_id(self, pid: int) -> None:
        """``pid`` is what pg_backend_pid() returned. Another number in the greeting is a pooler's."""
        self.pooled = pid != self.server_id
        self.server_id = pid

    # statements

    def _ask(self, statement: tuple[bytes, Any]) -> bool | None:
        name, values = statement
        try:
            if name not in self._prepared:
                self.prepare(name)
            result = self.conn.exec_prepared(name, values)
        except OperationalError as error:
            raise self._died(error) from error
        if result.status == _ROWS:
            return bool(result.get_value(0, 0) == b"t")
        raise self._failure(result)

    def prepare(self, name: bytes) -> None:
        """Prepare one of STATEMENTS. An interrupt may have come before it was noted."""
        try:
            self._checked(self.conn.prepare(name, STATEMENTS[name]))
        except ServerError as error:
            if error.code != PREPARED_BEFORE:
                raise
        self._prepared.add(name)

    def _sendable(self, statement: tuple[bytes, Any]) -> bool:
        return statement[0] in self._prepared

    def _send(self, statement: tuple[bytes, Any]) -> None:
        name, values = statement
        try:
            if name in self._prepared:
                self.conn.send_query_prepared(name, values)
            else:
                self.conn.send_query_params(STATEMENTS[name], values)
        except OperationalError as error:
            raise self._died(error) from error

    def _receive(self) -> bool | None:
        try:
            found = results(self.conn, self.connection.descriptor, self.due or clock.now())
        except OperationalError as error:
            raise self._died(error) from error
        if not found:
            raise self._died(SessionDead("the server's reply is not complete"))
        return bool(self._checked(found[0]).get_value(0, 0) == b"t")

    def rows(self, sql: bytes) -> Any:
        """All rows as text. Bytes that are no UTF-8 are replaced: a role may have got its name in a database with
        another encoding."""
        try:
            result = self._checked(self.conn.exec_(sql))
        except OperationalError as error:
            raise self._died(error) from error
        return [
            [
                None if value is None else value.decode("utf-8", "replace")
                for value in (result.get_value(row, column) for column in range(result.nfields))
            ]
            for row in range(result.ntuples)
        ]

    def _checked(self, result: Any) -> Any:
        if result.status not in (_ROWS, _DONE):
            raise self._failure(result)
        return result

    def _failure(self, result: Any) -> SessionDead | ServerError:
        message = result.get_error_message()
        code = result.error_field(pq.DiagnosticField.SQLSTATE)
        if code is None or code[:3] in (b"57P", b"08P", b"25P") or self.conn.status == pq.ConnStatus.BAD:
            return self._died(SessionDead(message))
        return ServerError(code.decode(), message)

    def _died(self, error: Exception) -> SessionDead:
        self.kill("the server ended the session")
        return error if isinstance(error, SessionDead) else SessionDead(str(error))

    def _unexpected(self) -> None:
        # a notice, a changed parameter, or the end, which libpq reports only after the server's last words
        try:
            while sockets.readable(self.connection.descriptor, 0):
                self.conn.consume_input()
                if not self.conn.is_busy() and (result := self.conn.get_result()) is not None:
                    self._checked(result)
        except OperationalError as error:
            raise self._died(error) from error

    def _driver_fd(self) -> int:
        try:
            return int(self.conn.socket)
        except Error:  # libpq has closed it
            return -1

    # locks

    def try_lock(self, claim: Claim) -> tuple[bytes, Any]:
        value = (claim.key.number_bytes,)
        if not claim.shared:
            return b"try_x", value
        return b"join_s" if self.shares(claim) else b"try_s", value

    def wait_lock(self, key: LockKey, shared: bool, until: float) -> tuple[bytes, Any]:
        """Setting lock_timeout costs the server something, and most waits are like the last one. A shorter one will not
        do: the waiter would lose its place in the queue before its time is over (R4)."""
        name, wanted = b"wait_s" if shared else b"wait_x", lock_timeout(until)
        if max(wanted - 5, 1) <= self._timeout <= wanted + 20:  # 0 is a wait without an end
            self._setting = self._timeout
            return name, (key.number_bytes,)
        self._setting = wanted
        return b"set_" + name, (key.number_bytes, b"%d" % wanted)

    def wait(self, *args: Any) -> bool | None:
        granted = super().wait(*args)
        if granted:
            self._timeout = self._setting
        return granted

    def free_lock(self, key: LockKey, shared: bool) -> tuple[bytes, Any]:
        return b"free_s" if shared else b"free_x", (key.number_bytes,)

    def ping(self) -> tuple[bytes, Any]:
        return b"ping", None
