"""One dedicated MySQL or MariaDB session, on the C client's own calls, and everything in which the two servers differ.

The driver has no asyncio of its own: tasks come here through the backend's private threads.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import MySQLdb
from MySQLdb import _mysql

from django_distlock.exceptions import DeadlockDetected, UnsupportedOperation
from django_distlock.waiting import Call, Flow, drive

from .session import GRACE, STATEMENT_LIMIT, TICK, ServerError, Session, SessionDead, StatementTimeout
from .sockets import READY, readable

if TYPE_CHECKING:
    from django_distlock.names import LockKey

# the C client's own call, without MySQLdb's conversion of its argument
_query = _mysql.connection.query

DEADLOCKS = frozenset({1213, 3058})  # MariaDB, MySQL
# KILL QUERY, lock wait timeout, and the limits on a statement's time of MariaDB and of MySQL
INTERRUPTIONS = frozenset({1317, 1205, 1969, 3024})
# server shutdown, connection killed (MariaDB), disconnected for inactivity (MySQL); 2000-2999 are the client's own
ENDS = frozenset({1053, 1927, 4031})
# MySQL waits for ever if told -1, MariaDB returns NULL at once: for both it is a wait of finite length, repeated.
LONGEST_WAIT = 3600
# The server frees the locks of a session that was silent for its wait_timeout; ours is at least this, seconds.
LEAST_WAIT_TIMEOUT = 600


def open_session(alias: str, parameters: dict[str, Any], waits: bool, until: float) -> Flow[MySQLSession]:
    """Connect by the monotonic time ``until``. SessionDead with the server's message, StatementTimeout,
    UnsupportedOperation for servers on which GET_LOCK does not work."""
    ours = {key: value for key, value in parameters.items() if key not in ("read_timeout", "write_timeout")}
    conn = _connect({**ours, "autocommit": True}, until)
    session = MySQLSession(conn, waits)
    try:
        yield from session.prepare(alias, until)
    except BaseException:
        session.close()
        raise
    return session


def _connect(parameters: dict[str, Any], until: float) -> Any:
    """The client's connect has no deadline below a second: it runs in a thread that is left to itself at ours."""
    outcome: list[Any] = []
    guard = threading.Lock()
    left = max(0.0, until - time.monotonic())
    limit = 3600 if left == math.inf else math.ceil(left) + 1

    def connect() -> None:
        result: Any
        try:
            result = MySQLdb.connect(**{"connect_timeout": limit, **parameters})
        except Exception as error:
            result = error
        with guard:
            if outcome:  # nobody waits any more
                if not isinstance(result, Exception):
                    result.close()
            else:
                outcome.append(result)

    thread = threading.Thread(target=connect, name="distlock-connect", daemon=True)
    thread.start()
    try:
        thread.join(min(left, threading.TIMEOUT_MAX))
    finally:
        with guard:
            if not outcome:
                outcome.append(StatementTimeout())
    if isinstance(outcome[0], StatementTimeout):
        raise outcome[0]
    if isinstance(outcome[0], Exception):
        raise SessionDead(str(outcome[0].args[-1])) from outcome[0]
    return outcome[0]


class MySQLSession(Session):
    """``execute`` is the target of Call; the rest are flows."""

    def __init__(self, conn: Any, waits: bool) -> None:
        super().__init__(waits)
        self.conn = conn
        self.mariadb = "mariadb" in conn.get_server_info().lower()
        self._undo: bytes | None = None

    @property
    def fd(self) -> int:
        return int(self.conn.fileno())

    @property
    def server_id(self) -> int:
        return int(self.conn.thread_id())

    def disconnect(self) -> None:
        with contextlib.suppress(MySQLdb.Error):
            self.conn.close()

    def prepare(self, alias: str, until: float) -> Flow[None]:
        """Refuse what would silently lock nothing, and take our own timeouts."""
        version = self.conn.get_server_info()
        numbers = tuple(int(part) for part in version.split("-")[-2 if version.startswith("5.5.5-") else 0].split("."))
        if numbers < ((10, 0, 2) if self.mariadb else (5, 7, 5)):
            raise UnsupportedOperation(
                f"The server of alias {alias!r} is {version}, where a second GET_LOCK frees the first. Named locks "
                "need MySQL 5.7.5 or MariaDB 10.0.2; use leasetable.LeaseTableBackend there."
            )
        limit = b"max_statement_time" if self.mariadb else b"max_execution_time"
        yield Call(
            self,
            "query",
            (
                b"SET SESSION %s = 0, wait_timeout = GREATEST(@@session.wait_timeout, %d)"
                % (limit, LEAST_WAIT_TIMEOUT),
                until,
            ),
        )
        facts = yield Call(
            self, "query", (b"SELECT CONNECTION_ID(), %s" % (b"@@wsrep_on" if self.mariadb else b"0"), until)
        )
        if facts[0][0] != self.server_id:
            raise UnsupportedOperation(
                f"The lock sessions of alias {alias!r} go through a proxy that hands a server session to several "
                "clients. Set OPTIONS['session_database'] to a database alias that connects directly."
            )
        if facts[0][1]:
            raise UnsupportedOperation(
                f"The server of alias {alias!r} is a Galera node (wsrep_on), which does not share GET_LOCK with its "
                "cluster. Use leasetable.LeaseTableBackend there."
            )

    # statements

    def execute(self, sql: bytes, until: float, undo: bytes | None = None, *, waits: bool = False) -> Any:
        """The first column of the first row. ``undo`` takes back a grant whose reply nobody waits for any more.
        SessionDead, ServerError, StatementTimeout."""
        rows = self.query(sql, until, undo, waits=waits)
        return rows[0][0] if rows else None

    def query(self, sql: bytes, until: float, undo: bytes | None = None, *, waits: bool = False) -> Any:
        """All rows."""
        if waits or self.orphaned_at is not None or until - time.monotonic() <= STATEMENT_LIMIT + 2 * TICK:
            return drive(self._query(sql, until, undo))
        return self._query_now(sql)

    def _query_now(self, sql: bytes) -> Any:
        """In this thread, by one blocking call of the client; the watchdog ends it if it hangs."""
        self.started = self.replied_at = time.monotonic()
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
        try:
            self.conn.read_query_result()
            return self._rows()
        except MySQLdb.Error as error:
            raise self._sorted(error) from error

    def _rows(self) -> Any:
        result = self.conn.store_result()
        self.replied_at = time.monotonic()
        return () if result is None else result.fetch_row(0)

    def _sorted(self, error: Any) -> SessionDead | ServerError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        message = str(error.args[-1]) if error.args else type(error).__name__
        if code in ENDS or 2000 <= code < 3000 or isinstance(error, MySQLdb.InterfaceError):
            self.kill("the server ended the session")
            return SessionDead(message)
        return ServerError(code, message)

    # replies that nobody waits for

    def _orphan(self, undo: bytes | None) -> None:
        self._undo = undo
        self.orphaned_at = time.monotonic()

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

    # locks

    def lock(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        name = key.text_bytes
        for _ in range(3):
            try:
                got = yield Call(
                    self, "execute", (b"SELECT GET_LOCK('%s', 0)" % name, until, b"SELECT RELEASE_LOCK('%s')" % name)
                )
            except ServerError as error:
                if error.code not in INTERRUPTIONS:
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
        seconds = min(until - time.monotonic(), LONGEST_WAIT)
        # MySQL rounds to whole seconds: there it waits longer than asked, and the session is dropped at the deadline
        told = b"%.4f" % max(0.0, seconds) if self.mariadb else b"%d" % math.ceil(max(0.0, seconds))
        sql = b"SELECT GET_LOCK('%s', %s)" % (name, told)
        got = None
        try:
            got = yield Call(self, "wait_for", (sql, until + GRACE, b"SELECT RELEASE_LOCK('%s')" % name))
        except ServerError as error:
            if error.code in DEADLOCKS:
                raise DeadlockDetected from error
            if error.code not in INTERRUPTIONS:
                raise
        if got is None:
            yield Call(self, "execute", (b"SELECT RELEASE_LOCK('%s')" % name, max(until, time.monotonic()) + GRACE))
        return bool(got == 1)

    def wait_for(self, sql: bytes, until: float, undo: bytes) -> Any:
        """:meth:`execute` for a statement that the watchdog must leave alone."""
        return self.execute(sql, until, undo, waits=True)

    def unlock(self, key: LockKey, shared: bool) -> Flow[bool]:
        until = time.monotonic() + STATEMENT_LIMIT + 3 * TICK
        freed = yield Call(self, "execute", (b"SELECT RELEASE_LOCK('%s')" % key.text_bytes, until))
        return bool(freed == 1)

    def ping(self, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"SELECT 1", until))

    def cancel(self, other: Session, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"KILL QUERY %d" % other.server_id, until))

    def clear(self, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"SELECT RELEASE_ALL_LOCKS()", until))
