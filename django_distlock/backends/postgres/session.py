"""One dedicated PostgreSQL session: how it is opened, and the locks on it."""

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
from django_distlock.concurrency.flow import Call, Flow, drive
from django_distlock.concurrency.sockets import READY
from django_distlock.exceptions import DeadlockDetected, UnsupportedOperation

from . import pooler
from .connect import with_addresses
from .line import STATEMENTS, PostgresLine

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

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
            if not (yield Call(READY, "poll", (conn.socket, writing, until))):
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
        facts = yield Call(session, "query", (f"SELECT {', '.join(columns)}".encode(), until))
    except ServerError as error:
        if str(error.code)[:2] not in REFUSALS:
            raise
        rows = yield Call(session, "query", (b"SELECT version()", until))
        raise UnsupportedOperation(
            f"The server of alias {alias!r} ({rows[0][0]}) refuses what a lock session of PostgreSQL needs: "
            f"{str(error).strip()} Take another backend there, such as leasetable.LeaseTableBackend or "
            "redis.RedisBackend."
        ) from error
    session.told(int(facts[0][0]))
    if session.waits and version >= 140000:
        # not on every platform; there a dead waiter leaves the queue when its turn comes
        with contextlib.suppress(ServerError):
            yield Call(session, "query", (f"SET client_connection_check_interval = {CHECK_INTERVAL}".encode(), until))


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
        yield from self._prepare_wait(name, until)
        try:
            yield Call(self, "execute", (name, value, until + GRACE, undo))
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
            yield Call(self, "query", (b"DEALLOCATE ALL", until + GRACE))
        self._preparing = True
        yield Call(self, "query", (b"PREPARE %s (bigint) AS %s" % (name, STATEMENTS[name]), until + GRACE))
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
            drive(self.clear(max(until, monotonic()) + GRACE))
            return False
        return True

    def _near_enough(self, until: float) -> bool:
        """Does lock_timeout fit this wait? Setting it costs a statement, and the next wait is mostly like the last."""
        wanted = lock_timeout(until)
        return wanted == self._timeout or 0 < 0.8 * wanted < self._timeout <= wanted + 5

    def _set_lock_timeout(self, until: float) -> Flow[None]:
        if not self._near_enough(until):
            wanted = lock_timeout(until)
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
    return monotonic() + STATEMENT_LIMIT + 3 * TICK
