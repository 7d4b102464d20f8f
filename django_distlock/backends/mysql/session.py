"""One dedicated MySQL or MariaDB session: how it is opened, its statements, the locks on it, and everything in which
the two servers differ.

mysqlclient has no asyncio, but it can send a statement and read the reply apart. In between a thread polls the socket,
and a task has its event loop watch it: tasks need no threads.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from typing import TYPE_CHECKING, Any

import MySQLdb
from MySQLdb import _mysql

from django_distlock.backends.sessions.session import (
    GRACE,
    STATEMENT_LIMIT,
    ServerError,
    Session,
    SessionDead,
    StatementTimeout,
)
from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.sockets import Replies, keep_alive, readable
from django_distlock.exceptions import DeadlockDetected, UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.keys import LockKey

# the C client's own call, without MySQLdb's conversion of its argument
_query = _mysql.connection.query

# server shutdown, connection killed (MariaDB), disconnected for inactivity (MySQL); 2000-2999 are the client's own
ENDS = frozenset({1053, 1927, 4031})
DEADLOCKS = frozenset({1213, 3058})  # MariaDB, MySQL
# KILL QUERY, lock wait timeout, and the limits on a statement's time of MariaDB and of MySQL
INTERRUPTIONS = frozenset({1317, 1205, 1969, 3024})
# GET_LOCK(name, -1) waits for ever on MySQL and returns NULL at once on MariaDB: a wait has a finite length, and is
# repeated; seconds.
LONGEST_WAIT = 3600
# The server frees the locks of a session that was silent for its wait_timeout; ours is at least this, seconds.
LEAST_WAIT_TIMEOUT = 600


def _at_once(statement: bytes) -> Callable[[MySQLSession, LockKey, bool], bool]:
    """A method that asks the server by one blocking call of the client whether ``statement`` has worked for a key. The
    watchdog ends it if it hangs."""

    def ask(session: MySQLSession, key: LockKey, shared: bool) -> bool:
        session.started = session.replied_at = clock.now()
        conn = session.conn
        try:
            _query(conn, statement % key.text_bytes)
            done = conn.store_result().fetch_row()[0][0]
            if done is None:  # an error, which is neither yes nor no
                raise ServerError(0, "The server returned NULL.")
            return bool(done == 1)
        except MySQLdb.Error as error:
            raise session._sorted(error) from error
        finally:
            session.started = None

    return ask


class MySQLSession(Session):
    """``conn`` is a connection of mysqlclient. The methods that end in ``_fast`` block this thread."""

    def __init__(self, conn: Any, waits: bool) -> None:
        super().__init__(waits)
        self.conn = conn
        self.mariadb = "mariadb" in conn.get_server_info().lower()
        self._replies = Replies()
        self._undo: bytes | None = None
        # kept, because mysqlclient does not return them while another thread runs a statement
        self._fd = int(conn.fileno())
        self._server_id = int(conn.thread_id())
        # a program started without close_fds would keep the session and its locks alive after our death
        os.set_inheritable(self._fd, False)
        keep_alive(self._fd)

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def server_id(self) -> int:
        return self._server_id

    def disconnect(self) -> None:
        self._fd = -1
        self._replies.close()
        with contextlib.suppress(MySQLdb.Error):
            self.conn.close()

    def abandon(self) -> None:
        super().abandon()
        self._replies.abandon()

    # statements

    async def execute(self, sql: bytes, until: float, undo: bytes | None = None) -> Any:
        """The first column of the first row. ``undo`` takes back a grant whose reply comes after the caller gave up
        waiting. SessionDead, ServerError, StatementTimeout."""
        rows = await self.query(sql, until, undo)
        return rows[0][0] if rows else None

    async def query(self, sql: bytes, until: float, undo: bytes | None = None) -> Any:
        """All rows."""
        if self.orphaned_at is not None:
            await self.settle(until)
        self._send(sql)
        try:
            while not await self._replies.poll(self._fd, self.look_at(until)):
                self.look(until)
        except BaseException:  # the caller gives up waiting
            self._orphan(undo)
            raise
        return self._receive()

    def _send(self, sql: bytes) -> None:
        try:
            self.conn.send_query(sql)
        except MySQLdb.Error as error:
            raise self._sorted(error) from error

    def _receive(self) -> Any:
        self.started = clock.now()  # the watchdog ends it if the reply breaks off in the middle
        try:
            self.conn.read_query_result()
            result = self.conn.store_result()
            self.replied_at = clock.now()
            return () if result is None else result.fetch_row(0)
        except MySQLdb.Error as error:
            raise self._sorted(error) from error
        finally:
            self.started = None

    def _sorted(self, error: Any) -> SessionDead | ServerError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        message = str(error.args[-1]) if error.args else type(error).__name__
        if code in ENDS or 2000 <= code < 3000 or isinstance(error, MySQLdb.InterfaceError):
            if 2000 <= code < 3000:
                self._fd = -1  # the client has closed it, and the number may belong to another file by now
            self.kill("the server ended the session")
            return SessionDead(message)
        return ServerError(code, message)

    # orphaned statements

    def _orphan(self, undo: bytes | None) -> None:
        self._undo = undo
        self.orphaned_at = clock.now()

    def _clean_up(self) -> None:
        """The reply of an orphaned statement has come. A grant in it is taken back, by another orphan."""
        undo, self._undo = self._undo, None
        self.orphaned_at = None
        try:
            rows = self._receive()
        except ServerError:
            rows = ()
        if undo is not None and rows and rows[0][0] == 1:
            self._send(undo)
            self._orphan(None)

    async def settle(self, until: float) -> None:
        while self.orphaned_at is not None:
            if not await self._replies.poll(self._fd, until):
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

    async def lock(self, key: LockKey, shared: bool, until: float) -> bool:
        name = key.text_bytes
        nulls = 0
        while nulls < 3:
            try:
                got = await self.execute(b"SELECT GET_LOCK('%s', 0)" % name, until, b"SELECT RELEASE_LOCK('%s')" % name)
                nulls += got is None
            except ServerError as error:
                if error.code not in INTERRUPTIONS or clock.now() >= until:
                    raise
                got = None
            if got is not None:
                return bool(got == 1)
            await self.unlock(key, shared)  # NULL is an error, and only 1 means acquired
        raise ServerError(0, "GET_LOCK returned NULL three times.")

    lock_fast = _at_once(b"SELECT GET_LOCK('%s', 0)")

    async def unlock(self, key: LockKey, shared: bool) -> bool:
        return await self._free(key.text_bytes, clock.now() + STATEMENT_LIMIT)

    unlock_fast = _at_once(b"SELECT RELEASE_LOCK('%s')")

    async def _free(self, name: bytes, until: float) -> bool:
        """Release the lock. A KILL QUERY that is meant for a wait may hit this statement, before or after its
        effect."""
        interrupted = False
        while True:
            try:
                freed = await self.execute(b"SELECT RELEASE_LOCK('%s')" % name, until)
                return bool(freed == 1) or interrupted
            except ServerError as error:
                if error.code not in INTERRUPTIONS or clock.now() >= until:
                    raise
                interrupted = True

    async def wait(self, key: LockKey, shared: bool, until: float) -> bool:
        name = key.text_bytes
        got = None
        until = min(until, clock.now() + LONGEST_WAIT)
        try:
            got = await self.execute(self._waiting(name, until), until + GRACE, b"SELECT RELEASE_LOCK('%s')" % name)
        except ServerError as error:
            if error.code in DEADLOCKS:
                raise DeadlockDetected from error
            if error.code not in INTERRUPTIONS:
                raise
        if got is None:
            await self._free(name, max(until, clock.now()) + GRACE)
        return bool(got == 1)

    def wait_fast(self, key: LockKey, shared: bool, until: float) -> bool:
        conn = self.conn
        until = min(until, clock.now() + LONGEST_WAIT)
        try:
            conn.send_query(self._waiting(key.text_bytes, until))
            self.orphaned_at = clock.now()  # until the reply is here, an exception leaves the statement behind
            while not readable(self._fd, self.look_at(until + GRACE) - clock.now()):
                self.look(until + GRACE)
            self.started = self.replied_at = clock.now()  # the watchdog ends it if the reply breaks off in the middle
            self.orphaned_at = None
            conn.read_query_result()
            got = conn.store_result().fetch_row()[0][0]
        except MySQLdb.Error as error:
            failure = self._sorted(error)
            if isinstance(failure, SessionDead):
                raise failure from error
            got = None
        finally:
            self.started = None
        if got is None:
            run(self.unlock(key, shared))
        return bool(got == 1)

    def _waiting(self, name: bytes, until: float) -> bytes:
        """The statement that waits. MySQL rounds to whole seconds, but counts the time of a statement in milliseconds:
        that limit ends the wait there. If it has no effect, the session is dropped at the deadline."""
        seconds = max(0.0, until - clock.now())
        if self.mariadb:
            return b"SELECT GET_LOCK('%s', %.4f)" % (name, seconds)
        limit = math.ceil(seconds * 1000)
        return b"SELECT /*+ MAX_EXECUTION_TIME(%d) */ GET_LOCK('%s', %d)" % (limit, name, math.ceil(seconds))

    async def ping(self, until: float) -> None:
        await self.execute(b"SELECT 1", until)

    async def cancel(self, other: Session, until: float) -> None:
        await self.execute(b"KILL QUERY %d" % other.server_id, until)

    async def clear(self, until: float) -> None:
        await self.execute(b"SELECT RELEASE_ALL_LOCKS()", until)


@functools.cache
def _connecting(alias: str) -> Background:
    return Background("distlock-connect")


async def open_session(alias: str, parameters: dict[str, Any], waits: bool, until: float) -> MySQLSession:
    """Connect by the monotonic time ``until``. SessionDead with the server's message, StatementTimeout,
    UnsupportedOperation for servers on which GET_LOCK does not work."""
    ours = {key: value for key, value in parameters.items() if key not in ("read_timeout", "write_timeout")}
    limit = math.ceil(min(max(0.0, until - clock.now()), LONGEST_WAIT)) + 1
    ours = {"connect_timeout": limit, **ours, "autocommit": True}
    try:
        # the client's connect has no deadline below a second, and no asyncio
        conn = await _connecting(alias).call(until, lambda: MySQLdb.connect(**ours), dispose=_close)
    except CallTimeout as error:
        raise StatementTimeout from error
    except NotStarted as error:
        raise SessionDead(str(error)) from error
    except (MySQLdb.Error, TypeError) as error:
        raise SessionDead(str(error.args[-1])) from error
    session = MySQLSession(conn, waits)
    try:
        await prepare(session, alias, until)
    except BaseException:
        session.close()
        raise
    return session


def _close(conn: Any) -> None:
    conn.close()


async def prepare(session: MySQLSession, alias: str, until: float) -> None:
    """Refuse servers on which GET_LOCK would silently lock nothing, and set our timeouts."""
    version = session.conn.get_server_info()
    # MySQL's own client library shows MariaDB before 11 as 5.5.5-10.x
    numbers = tuple(int(part) for part in re.findall(r"\d+", version.removeprefix("5.5.5-"))[:3])
    if numbers < ((10, 0, 2) if session.mariadb else (5, 7, 5)):
        raise UnsupportedOperation(
            f"The server of alias {alias!r} is {version}, where a second GET_LOCK frees the first. Named locks "
            "need MySQL 5.7.5 or MariaDB 10.0.2; use leasetable.LeaseTableBackend there."
        )
    limit = b"max_statement_time" if session.mariadb else b"max_execution_time"
    await session.query(
        # of an unsigned and a signed number MySQL makes a decimal, which it does not accept here
        b"SET SESSION %s = 0, wait_timeout = CAST(GREATEST(@@session.wait_timeout, %d) AS SIGNED)"
        % (limit, LEAST_WAIT_TIMEOUT),
        until,
    )
    if (await session.execute(b"SELECT CONNECTION_ID()", until)) != session.server_id:
        raise UnsupportedOperation(
            f"The lock sessions of alias {alias!r} go through a proxy that hands a server session to several "
            "clients. Set OPTIONS['session_database'] to a database alias that connects directly."
        )
    # not @@wsrep_on, which Oracle's MySQL does not know, and Percona XtraDB Cluster does
    wsrep = await session.query(b"SHOW VARIABLES LIKE 'wsrep_on'", until)
    if wsrep and wsrep[0][1] in ("ON", b"ON"):
        raise UnsupportedOperation(
            f"The server of alias {alias!r} is a Galera node (wsrep_on), which does not share GET_LOCK with its "
            "cluster. Use leasetable.LeaseTableBackend there."
        )
