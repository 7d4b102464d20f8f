"""Statements on one dedicated MySQL or MariaDB session, by the C client's own calls.

mysqlclient has no asyncio, but it can send a statement and read the reply apart. In between a thread polls the socket,
and a task has its event loop watch it: tasks need no threads.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import MySQLdb
from MySQLdb import _mysql

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

# the C client's own call, without MySQLdb's conversion of its argument
_query = _mysql.connection.query

# server shutdown, connection killed (MariaDB), disconnected for inactivity (MySQL); 2000-2999 are the client's own
ENDS = frozenset({1053, 1927, 4031})


class MySQLLine(Session):
    """``execute`` is the target of Call; the rest are flows."""

    def __init__(self, conn: Any, waits: bool) -> None:
        super().__init__(waits)
        self.conn = conn
        self.mariadb = "mariadb" in conn.get_server_info().lower()
        self._undo: bytes | None = None
        # kept, because mysqlclient refuses to tell while another thread is in the middle of a statement
        self._fd = int(conn.fileno())
        self._server_id = int(conn.thread_id())
        # a program started without close_fds would keep the session and its locks alive after our death
        os.set_inheritable(self._fd, False)

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def server_id(self) -> int:
        return self._server_id

    def disconnect(self) -> None:
        self._fd = -1
        with contextlib.suppress(MySQLdb.Error):
            self.conn.close()

    # statements

    def execute(self, sql: bytes, until: float, undo: bytes | None = None) -> Any:
        """The first column of the first row. ``undo`` takes back a grant whose reply nobody waits for any more.
        SessionDead, ServerError, StatementTimeout."""
        return _first(self.query(sql, until, undo))

    async def aexecute(self, sql: bytes, until: float, undo: bytes | None = None) -> Any:
        """:meth:`execute` for a task."""
        return _first(await adrive(self._query(sql, until, undo)))

    def wait_for(self, sql: bytes, until: float, undo: bytes) -> Any:
        """:meth:`execute` for a statement that the watchdog must leave alone."""
        return _first(drive(self._query(sql, until, undo)))

    async def await_for(self, sql: bytes, until: float, undo: bytes) -> Any:
        """:meth:`wait_for` for a task."""
        return _first(await adrive(self._query(sql, until, undo)))

    def query(self, sql: bytes, until: float, undo: bytes | None = None) -> Any:
        """All rows."""
        if self.orphaned_at is not None or until - monotonic() <= STATEMENT_LIMIT + 2 * TICK:
            return drive(self._query(sql, until, undo))
        return self._query_now(sql)

    async def aquery(self, sql: bytes, until: float, undo: bytes | None = None) -> Any:
        """:meth:`query` for a task."""
        return await adrive(self._query(sql, until, undo))

    def _query_now(self, sql: bytes) -> Any:
        """In this thread, by one blocking call of the client; the watchdog ends it if it hangs."""
        self.started = self.replied_at = monotonic()
        conn = self.conn
        try:
            _query(conn, sql)
            result = conn.store_result()
            return result.fetch_row(0) if result is not None else ()
        except MySQLdb.Error as error:
            raise self._sorted(error) from error
        finally:
            self.started = None

    def _query(self, sql: bytes, until: float, undo: bytes | None) -> Flow[Any]:
        yield from self.settle(until)
        self._send(sql)
        try:
            if not (yield Call(READY, "poll", (self.fd, False, until))):
                raise StatementTimeout
        except BaseException:  # nobody waits for the reply any more
            self._orphan(undo)
            raise
        return self._receive()

    def _send(self, sql: bytes) -> None:
        try:
            self.conn.send_query(sql)
        except MySQLdb.Error as error:
            raise self._sorted(error) from error

    def _receive(self) -> Any:
        self.started = monotonic()  # the watchdog ends it if the reply breaks off in the middle
        try:
            self.conn.read_query_result()
            return self._rows()
        except MySQLdb.Error as error:
            raise self._sorted(error) from error
        finally:
            self.started = None

    def _rows(self) -> Any:
        result = self.conn.store_result()
        self.replied_at = monotonic()
        return () if result is None else result.fetch_row(0)

    def _sorted(self, error: Any) -> SessionDead | ServerError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        message = str(error.args[-1]) if error.args else type(error).__name__
        if code in ENDS or 2000 <= code < 3000 or isinstance(error, MySQLdb.InterfaceError):
            if 2000 <= code < 3000:
                self._fd = -1  # the client has closed it, and its number may be somebody else's by now
            self.kill("the server ended the session")
            return SessionDead(message)
        return ServerError(code, message)

    # replies that nobody waits for

    def _orphan(self, undo: bytes | None) -> None:
        self._undo = undo
        self.orphaned_at = monotonic()

    def _clean_up(self) -> None:
        undo, self._undo = self._undo, None
        self.orphaned_at = None
        try:
            rows = self._receive()
        except ServerError:
            rows = ()
        if undo is not None and rows and rows[0][0] == 1:
            self._send(undo)
            self._orphan(None)

    def settle(self, until: float) -> Flow[None]:
        while self.orphaned_at is not None:
            if not (yield Call(READY, "poll", (self.fd, False, until))):
                raise StatementTimeout
            self._clean_up()

    def collect(self) -> None:
        while self.orphaned_at is not None and readable(self.fd, 0):
            self._clean_up()

    def beat(self) -> None:
        self._send(b"SELECT 1")
        self._orphan(None)

    def unexpected(self) -> None:
        self.kill("the server ended the session")  # the server says nothing unasked but goodbye


def _first(rows: Any) -> Any:
    return rows[0][0] if rows else None
