"""One dedicated MySQL or MariaDB session: how it is opened, its statements, the locks on it, and everything in which
the two servers differ.

mysqlclient has no asyncio, but it can send a statement and read the reply apart. In between a thread polls the socket,
and a task has its event loop watch it: tasks need no threads.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import MySQLdb
from MySQLdb import _mysql

from django_distlock.backends.sessions.session import (
    GRACE,
    STATEMENT_LIMIT,
    TICK,
    ServerError,
    Session,
    SessionDead,
    StatementTimeout,
)
from django_distlock.concurrency.background import Stragglers
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step, arun, run
from django_distlock.concurrency.parking import Parker
from django_distlock.concurrency.sockets import READY, readable
from django_distlock.exceptions import DeadlockDetected, UnsupportedOperation

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

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
        return _first(await arun(self._query(sql, until, undo)))

    def wait_for(self, sql: bytes, until: float, undo: bytes) -> Any:
        """:meth:`execute` for a statement that the watchdog must leave alone."""
        return _first(run(self._query(sql, until, undo)))

    async def await_for(self, sql: bytes, until: float, undo: bytes) -> Any:
        """:meth:`wait_for` for a task."""
        return _first(await arun(self._query(sql, until, undo)))

    def query(self, sql: bytes, until: float, undo: bytes | None = None) -> Any:
        """All rows."""
        if self.orphaned_at is not None or until - monotonic() <= STATEMENT_LIMIT + 2 * TICK:
            return run(self._query(sql, until, undo))
        return self._query_now(sql)

    async def aquery(self, sql: bytes, until: float, undo: bytes | None = None) -> Any:
        """:meth:`query` for a task."""
        return await arun(self._query(sql, until, undo))

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
            if not (yield Step(READY.poll, READY.apoll, (self.fd, False, until))):
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
            if not (yield Step(READY.poll, READY.apoll, (self.fd, False, until))):
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


DEADLOCKS = frozenset({1213, 3058})  # MariaDB, MySQL
# KILL QUERY, lock wait timeout, and the limits on a statement's time of MariaDB and of MySQL
INTERRUPTIONS = frozenset({1317, 1205, 1969, 3024})
# MySQL waits for ever if told -1, MariaDB returns NULL at once: for both it is a wait of finite length, repeated.
LONGEST_WAIT = 3600
# The server frees the locks of a session that was silent for its wait_timeout; ours is at least this, seconds.
LEAST_WAIT_TIMEOUT = 600

_stragglers: defaultdict[str, Stragglers] = defaultdict(Stragglers)


def open_session(alias: str, parameters: dict[str, Any], waits: bool, until: float) -> Flow[MySQLSession]:
    """Connect by the monotonic time ``until``. SessionDead with the server's message, StatementTimeout,
    UnsupportedOperation for servers on which GET_LOCK does not work."""
    ours = {key: value for key, value in parameters.items() if key not in ("read_timeout", "write_timeout")}
    conn = yield from _connect(alias, {**ours, "autocommit": True}, until)
    session = MySQLSession(conn, waits)
    try:
        yield from session.prepare(alias, until)
    except BaseException:
        session.close()
        raise
    return session


class _Attempt:
    """The client's connect has no deadline below a second and no asyncio: it runs in a thread of its own, which is left
    to itself when nobody waits any more."""

    def __init__(self, parameters: dict[str, Any], left: float) -> None:
        self.parker = Parker()
        self.outcome: Any = None
        self._guard = threading.Lock()
        self._abandoned = False
        limit = math.ceil(min(left, LONGEST_WAIT)) + 1
        arguments = ({"connect_timeout": limit, **parameters},)
        self.thread = threading.Thread(target=self._run, args=arguments, name="distlock-connect", daemon=True)
        self.thread.start()

    def _run(self, parameters: dict[str, Any]) -> None:
        try:
            outcome = MySQLdb.connect(**parameters)
        except Exception as error:
            outcome = error
        with self._guard:
            self.outcome = outcome
            if self._abandoned:
                self._close()
        self.parker.wake()

    def abandon(self) -> None:
        """Close the connection, if there is one or when it comes."""
        with self._guard:
            self._abandoned = True
            self._close()

    def _close(self) -> None:
        if self.outcome is not None and not isinstance(self.outcome, Exception):
            self.outcome.close()


def _connect(alias: str, parameters: dict[str, Any], until: float) -> Flow[Any]:
    left = max(0.0, until - monotonic())
    if (reason := _stragglers[alias].refuse()) is not None:
        raise SessionDead(reason)
    attempt = _Attempt(parameters, left)
    try:
        if not (yield Step(attempt.parker.park, attempt.parker.apark, (left,))):
            raise StatementTimeout
    except BaseException:
        attempt.abandon()
        _stragglers[alias].add(attempt.thread)
        raise
    if isinstance(attempt.outcome, Exception):
        raise SessionDead(str(attempt.outcome.args[-1])) from attempt.outcome
    return attempt.outcome


class MySQLSession(MySQLLine):
    """The locks: flows, and what can be done at once in this thread."""

    def prepare(self, alias: str, until: float) -> Flow[None]:
        """Refuse what would silently lock nothing, and take our own timeouts."""
        version = self.conn.get_server_info()
        # MySQL's own client library shows MariaDB before 11 as 5.5.5-10.x
        numbers = tuple(int(part) for part in re.findall(r"\d+", version.removeprefix("5.5.5-"))[:3])
        if numbers < ((10, 0, 2) if self.mariadb else (5, 7, 5)):
            raise UnsupportedOperation(
                f"The server of alias {alias!r} is {version}, where a second GET_LOCK frees the first. Named locks "
                "need MySQL 5.7.5 or MariaDB 10.0.2; use leasetable.LeaseTableBackend there."
            )
        limit = b"max_statement_time" if self.mariadb else b"max_execution_time"
        yield Step(
            self.query,
            self.aquery,
            (
                # of an unsigned and a signed number MySQL makes a decimal, which it does not take
                b"SET SESSION %s = 0, wait_timeout = CAST(GREATEST(@@session.wait_timeout, %d) AS SIGNED)"
                % (limit, LEAST_WAIT_TIMEOUT),
                until,
            ),
        )
        connection = yield Step(self.execute, self.aexecute, (b"SELECT CONNECTION_ID()", until))
        if connection != self.server_id:
            raise UnsupportedOperation(
                f"The lock sessions of alias {alias!r} go through a proxy that hands a server session to several "
                "clients. Set OPTIONS['session_database'] to a database alias that connects directly."
            )
        # not @@wsrep_on, which Oracle's MySQL does not know, and Percona XtraDB Cluster does
        wsrep = yield Step(self.query, self.aquery, (b"SHOW VARIABLES LIKE 'wsrep_on'", until))
        if wsrep and wsrep[0][1] in ("ON", b"ON"):
            raise UnsupportedOperation(
                f"The server of alias {alias!r} is a Galera node (wsrep_on), which does not share GET_LOCK with its "
                "cluster. Use leasetable.LeaseTableBackend there."
            )

    def lock(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        name = key.text_bytes
        nulls = 0
        while nulls < 3:
            try:
                got = yield Step(
                    self.execute,
                    self.aexecute,
                    (b"SELECT GET_LOCK('%s', 0)" % name, until, b"SELECT RELEASE_LOCK('%s')" % name),
                )
                nulls += got is None
            except ServerError as error:
                if error.code not in INTERRUPTIONS or monotonic() >= until:
                    raise
                got = None
            if got is not None:
                return bool(got == 1)
            yield from self.unlock(key, shared)  # NULL is an error, and only 1 means acquired
        raise ServerError(0, "GET_LOCK returned NULL three times.")

    def lock_now(self, key: LockKey, shared: bool) -> bool:
        return bool(self._query_now(b"SELECT GET_LOCK('%s', 0)" % key.text_bytes)[0][0] == 1)

    def unlock_now(self, key: LockKey, shared: bool) -> bool:
        return bool(self._query_now(b"SELECT RELEASE_LOCK('%s')" % key.text_bytes)[0][0] == 1)

    def wait(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        name = key.text_bytes
        got = None
        try:
            got = yield Step(
                self.wait_for,
                self.await_for,
                (self._waiting(name, until), until + GRACE, b"SELECT RELEASE_LOCK('%s')" % name),
            )
        except ServerError as error:
            if error.code in DEADLOCKS:
                raise DeadlockDetected from error
            if error.code not in INTERRUPTIONS:
                raise
        if got is None:
            yield from self._free(name, max(until, monotonic()) + GRACE)
        return bool(got == 1)

    def wait_now(self, key: LockKey, shared: bool, until: float) -> bool:
        try:
            self._send(self._waiting(key.text_bytes, until))
            self._orphan(None)  # until the reply is here, an exception leaves it behind
            if not READY.poll(self.fd, False, until + GRACE):
                self.kill("a wait was cut off")
                raise StatementTimeout
            self.orphaned_at = None
            got = self._receive()[0][0]
        except ServerError:
            got = None
        if got is None:
            run(self.unlock(key, shared))
        return bool(got == 1)

    def _waiting(self, name: bytes, until: float) -> bytes:
        """MySQL rounds to whole seconds, and counts the time of a statement in milliseconds: there that limit ends the
        wait. Where it does not, the session is dropped at the deadline."""
        seconds = max(0.0, min(until - monotonic(), LONGEST_WAIT))
        if self.mariadb:
            return b"SELECT GET_LOCK('%s', %.4f)" % (name, seconds)
        limit = math.ceil(seconds * 1000)
        return b"SELECT /*+ MAX_EXECUTION_TIME(%d) */ GET_LOCK('%s', %d)" % (limit, name, math.ceil(seconds))

    def unlock(self, key: LockKey, shared: bool) -> Flow[bool]:
        return (yield from self._free(key.text_bytes, monotonic() + STATEMENT_LIMIT + 3 * TICK))

    def _free(self, name: bytes, until: float) -> Flow[bool]:
        """Give the name back. Who ends a wait by KILL QUERY may hit this as well, before or after its effect."""
        interrupted = False
        while True:
            try:
                freed = yield Step(self.execute, self.aexecute, (b"SELECT RELEASE_LOCK('%s')" % name, until))
                return bool(freed == 1) or interrupted
            except ServerError as error:
                if error.code not in INTERRUPTIONS or monotonic() >= until:
                    raise
                interrupted = True

    def ping(self, until: float) -> Flow[None]:
        yield Step(self.execute, self.aexecute, (b"SELECT 1", until))

    def cancel(self, other: Session, until: float) -> Flow[None]:
        yield Step(self.execute, self.aexecute, (b"KILL QUERY %d" % other.server_id, until))

    def clear(self, until: float) -> Flow[None]:
        yield Step(self.execute, self.aexecute, (b"SELECT RELEASE_ALL_LOCKS()", until))
