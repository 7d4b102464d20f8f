"""One lock session of MySQL or MariaDB: how it is opened, its statements by the C client's own calls, the locks on it,
and everything in which the two servers differ."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import MySQLdb
from MySQLdb import _mysql

from django_distlock.backends.sessions.session import STATEMENT_LIMIT, ServerError, Session
from django_distlock.backends.sessions.watched import SessionDead
from django_distlock.backends.side_connection import SideConnection
from django_distlock.concurrency import clock
from django_distlock.concurrency.sockets import keep_alive
from django_distlock.exceptions import UnsupportedOperation

if TYPE_CHECKING:
    from django_distlock.backends.sessions.reply import Reply
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim

# the C client's own call, without MySQLdb's conversion of its argument
_query = _mysql.connection.query

# server shutdown, connection killed (MariaDB), disconnected for inactivity (MySQL); 2000-2999 are the client's own
ENDS = frozenset({1053, 1927, 4031})
DEADLOCKS = frozenset({1213, 3058})  # MariaDB, MySQL
# KILL QUERY, lock wait timeout, and the limits on a statement's time of MariaDB and of MySQL
INTERRUPTIONS = frozenset({1317, 1205, 1969, 3024})
# GET_LOCK(name, -1) waits for ever on MySQL and returns NULL at once on MariaDB: a wait has a finite length, and is
# repeated; seconds.
LONGEST_WAIT = 3600.0
# The server frees the locks of a session that was silent for its wait_timeout; ours is at least this, seconds.
LEAST_WAIT_TIMEOUT = 600
# They accept GET_LOCK and grant it to every session, or keep it on one of several servers.
PRETENDERS = ("tidb", "vitess")
FREE = b"SELECT RELEASE_LOCK('"


def open_session(alias: str, database: str, waits: bool) -> MySQLSession:
    """Connect. Django's errors, SessionDead, ServerError; UnsupportedOperation for servers on which GET_LOCK would lock
    nothing, and for proxies."""
    connection = SideConnection(database, autocommit=True)
    for option in ("read_timeout", "write_timeout"):  # a wait takes longer
        connection.options.pop(option, None)
    connection.open_driver()
    session = MySQLSession(connection, waits)
    with session.opening():
        prepare(session, alias)
    return session


def prepare(session: MySQLSession, alias: str) -> None:
    """Refuse servers on which GET_LOCK would silently lock nothing, and set our timeouts."""
    number, version = session.rows(b"SELECT CONNECTION_ID(), VERSION()")[0]
    version = version.decode() if isinstance(version, bytes) else version
    if number != session.server_id:
        raise UnsupportedOperation(
            f"The lock sessions of alias {alias!r} go through a proxy that hands a server session to several "
            "clients. Set OPTIONS['session_database'] to a database alias that connects directly."
        )
    # not @@wsrep_on, which Oracle's MySQL does not know, and Percona XtraDB Cluster does
    wsrep = session.rows(b"SHOW VARIABLES LIKE 'wsrep_on'")
    galera = bool(wsrep) and wsrep[0][1] in ("ON", b"ON")
    if galera or any(name in version.lower() for name in PRETENDERS):
        raise UnsupportedOperation(
            f"The server of alias {alias!r} ({version}{', a Galera node' if galera else ''}) does not exclude others "
            "with GET_LOCK: it keeps named locks on one of several servers, or not at all. Use "
            "leasetable.LeaseTableBackend there."
        )
    limit = b"max_statement_time" if session.mariadb else b"max_execution_time"
    session.rows(
        # of an unsigned and a signed number MySQL makes a decimal, which it does not accept here
        b"SET SESSION %s = 0, wait_timeout = CAST(GREATEST(@@session.wait_timeout, %d) AS SIGNED)"
        % (limit, LEAST_WAIT_TIMEOUT)
    )


class MySQLSession(Session):
    """A statement is its text. The first column of its first row is 1, 0, or NULL after an error."""

    wait_is_over = INTERRUPTIONS
    deadlocks = DEADLOCKS
    longest_wait = LONGEST_WAIT

    def __init__(self, connection: SideConnection, waits: bool) -> None:
        super().__init__(connection, waits)
        self.conn: Any = connection.wrapper.connection
        self.mariadb = "mariadb" in self.conn.get_server_info().lower()
        # kept, because mysqlclient does not return them while another thread runs a statement
        self._fd = int(self.conn.fileno())
        self.server_id = int(self.conn.thread_id())
        # a program started without close_fds would keep the session and its locks alive after our death
        os.set_inheritable(self._fd, False)
        keep_alive(self._fd)

    # statements

    def ask(self, statement: bytes, reply: Reply | None = None) -> bool | None:
        until, again = clock.now() + STATEMENT_LIMIT, False
        while True:
            try:
                answer = super().ask(statement, reply)
            except ServerError as error:
                if clock.now() >= until or error.code not in INTERRUPTIONS or not statement.startswith(FREE):
                    raise
                # KILL QUERY may have come before or after the effect; it is not to cost the session's other locks
                again, reply = True, None
            else:
                return True if again else answer

    def _ask(self, statement: bytes) -> bool | None:
        try:
            _query(self.conn, statement)
            return self._first(self.conn.store_result())
        except MySQLdb.Error as error:
            raise self._sorted(error) from error

    def _first(self, result: Any) -> bool | None:
        value = result.fetch_row()[0][0]
        return None if value is None else bool(value == 1)

    def _send(self, statement: bytes) -> None:
        try:
            self.conn.send_query(statement)
        except MySQLdb.Error as error:
            raise self._sorted(error) from error

    def _receive(self) -> bool | None:
        try:
            self.conn.read_query_result()
            return self._first(self.conn.store_result())
        except MySQLdb.Error as error:
            raise self._sorted(error) from error

    def rows(self, sql: bytes) -> Any:
        try:
            _query(self.conn, sql)
            result = self.conn.store_result()
            return () if result is None else result.fetch_row(0)
        except MySQLdb.Error as error:
            raise self._sorted(error) from error

    def _sorted(self, error: Any) -> SessionDead | ServerError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        message = str(error.args[-1]) if error.args else type(error).__name__
        if code in ENDS or 2000 <= code < 3000 or isinstance(error, MySQLdb.InterfaceError):
            if 2000 <= code < 3000:
                self._fd = -1  # the client has closed it, and the number may belong to another file by now
            self.kill("the server ended the session")
            return SessionDead(message)
        return ServerError(code, message)

    def _unexpected(self) -> None:
        self.kill("the server ended the session")  # the server says nothing unasked but goodbye

    def _driver_fd(self) -> int:
        return self._fd

    # locks

    def try_lock(self, claim: Claim) -> bytes:
        return b"SELECT GET_LOCK('%s', 0)" % claim.key.text_bytes

    def wait_lock(self, key: LockKey, shared: bool, until: float) -> bytes:
        """MySQL rounds to whole seconds, but counts the time of a statement in milliseconds: that limit ends the wait
        there."""
        seconds = max(0.0, until - clock.now())
        if self.mariadb:
            return b"SELECT GET_LOCK('%s', %.4f)" % (key.text_bytes, seconds)
        limit = math.ceil(seconds * 1000)
        return b"SELECT /*+ MAX_EXECUTION_TIME(%d) */ GET_LOCK('%s', %d)" % (limit, key.text_bytes, math.ceil(seconds))

    def free_lock(self, key: LockKey, shared: bool) -> bytes:
        return b"%s%s')" % (FREE, key.text_bytes)

    def ping(self) -> bytes:
        return b"SELECT 1"
