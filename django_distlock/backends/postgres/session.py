"""One dedicated PostgreSQL session: its statements, by libpq's own calls, and the locks on it.

Since the session is ours, psycopg's cursor layer is left out: ``pgconn.exec_prepared`` costs 0.72 of it and releases
the GIL while it waits. One socket serves threads and tasks alike, because the session's mutex lets one statement in at
a time.
"""

from __future__ import annotations

import math
import secrets
from typing import TYPE_CHECKING, Any

from psycopg import OperationalError, pq

from django_distlock.backends.sessions.session import (
    GRACE,
    STATEMENT_LIMIT,
    ServerError,
    Session,
    SessionDead,
    StatementTimeout,
)
from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.sockets import poll, readable, ready
from django_distlock.exceptions import DeadlockDetected, UnsupportedOperation

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

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
    b"wait_x": b"SELECT pg_advisory_lock($1)",
    b"wait_s": b"SELECT pg_advisory_lock_shared($1)",
    b"free_x": b"SELECT pg_advisory_unlock($1)",
    b"free_s": b"SELECT pg_advisory_unlock_shared($1)",
    b"free_all": b"SELECT pg_advisory_unlock_all()",
    b"ping": b"SELECT true",
    b"cancel": b"SELECT pg_cancel_backend($1)",
}
LOCK_NOT_AVAILABLE, QUERY_CANCELED, DEADLOCK_DETECTED = "55P03", "57014", "40P01"
_TUPLES_OK, _COMMAND_OK = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK
# lock_timeout and poll() end at 2^31 ms, less than 25 days; seconds.
LONGEST_WAIT = 20 * 86400
# The notification that tells a pooler in session mode from other poolers comes within milliseconds, or never; seconds.
CHANNEL = b"distlock_probe"
COMES_WITHIN = 1.0


def lock_timeout(until: float) -> int:
    """The setting for a wait until the monotonic time ``until``: milliseconds, 0 for no end. A longer wait than the
    setting allows is made in pieces."""
    if until == math.inf:
        return 0
    return max(1, math.ceil(min(until - clock.now(), LONGEST_WAIT) * 1000))


class PostgresSession(Session):
    """``conn`` is a connection of libpq. The methods that end in ``_fast`` block this thread."""

    def __init__(self, conn: Any, waits: bool) -> None:
        super().__init__(waits)
        self.conn = conn
        self._server_id = int(conn.backend_pid)
        self.pooled = False
        self._timeout = 0  # lock_timeout of the session in milliseconds
        self._prepared: set[bytes] = set()
        self._preparing = False
        self._undo: tuple[bytes, bytes] | None = None
        self._received: Any = None  # of a reply that is not complete

    @property
    def fd(self) -> int:
        try:
            return int(self.conn.socket)
        except OperationalError:  # libpq has closed it, and the number may belong to another file by now
            return -1

    @property
    def server_id(self) -> int:
        return self._server_id

    @server_id.setter
    def server_id(self, pid: int) -> None:
        """``pid`` is what pg_backend_pid() returned. Another number in the greeting is a pooler's."""
        self.pooled = pid != self._server_id
        self._server_id = pid

    def disconnect(self) -> None:
        self.conn.finish()

    # statements

    async def execute(
        self, statement: bytes, value: bytes, until: float, undo: tuple[bytes, bytes] | None = None
    ) -> bytes:
        """Run one of STATEMENTS; the only column of its only row.

        ``undo`` is the statement that takes back a grant whose reply comes after the caller gave up waiting. Raises
        SessionDead, ServerError, StatementTimeout.
        """
        if self.orphaned_at is not None:
            await self.settle(until)
        try:
            if statement in self._prepared:
                self.conn.send_query_prepared(statement, (value,) if value else None)
            else:
                self.conn.send_query_params(STATEMENTS[statement], (value,) if value else None)
        except OperationalError as error:
            raise self._died(error) from error
        return self._read(await self._reply(until, undo))

    def _execute_fast(self, statement: bytes, value: bytes) -> bytes:
        """:meth:`execute` by one blocking call of libpq; the watchdog ends it if it hangs."""
        conn = self.conn
        self.started = self.replied_at = clock.now()
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

    async def query(self, sql: bytes, until: float) -> list[list[str | None]]:
        """Run any statement without parameters, also after settings; all rows, as text. Bytes that are no UTF-8 are
        replaced: a role may have got its name in a database with another encoding."""
        if self.orphaned_at is not None:
            await self.settle(until)
        try:
            self.conn.send_query(sql)
        except OperationalError as error:
            raise self._died(error) from error
        result = await self._reply(until, None)
        self._read(result)
        return [
            [
                None if value is None else value.decode("utf-8", "replace")
                for value in (result.get_value(row, column) for column in range(result.nfields))
            ]
            for row in range(result.ntuples)
        ]

    async def _reply(self, until: float, undo: tuple[bytes, bytes] | None) -> Any:
        try:
            while not self._complete():
                if not await ready(self.fd, False, self.look_at(until)):
                    self.look(until)
            return self._result()
        except SessionDead:
            raise
        except BaseException:  # the caller gives up waiting
            self._orphan(undo)
            raise

    def _complete(self) -> bool:
        """Has the whole reply come? Also its end, which follows an error in a separate packet: get_result() would wait
        for that without letting any other thread run."""
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
            raise self._died(error) from error

    def _result(self) -> Any:
        """The first result of a complete reply, apart from those of settings."""
        result, self._received = self._received, None
        return result

    def _read(self, result: Any) -> bytes:
        status = result.status if result is not None else pq.ExecStatus.FATAL_ERROR
        if status == _TUPLES_OK:
            self.replied_at = clock.now()
            return result.get_value(0, 0) or b"" if result.ntuples else b""
        if status == _COMMAND_OK:
            return b""
        message = self.conn.get_error_message() if result is None else result.get_error_message()
        code = result.error_field(pq.DiagnosticField.SQLSTATE) if result is not None else None
        if code is None or code[:3] in (b"57P", b"08P", b"25P") or self.conn.status == pq.ConnStatus.BAD:
            raise self._died(SessionDead(message))
        raise ServerError(code.decode(), message)

    def _died(self, error: Exception) -> SessionDead:
        self.kill("the server ended the session")
        return error if isinstance(error, SessionDead) else SessionDead(str(error))

    # orphaned statements

    def _orphan(self, undo: tuple[bytes, bytes] | None) -> None:
        self._undo = undo
        self.orphaned_at = clock.now()

    def _clean_up(self) -> None:
        """The reply of an orphaned statement is complete. A grant in it is taken back, by another orphan."""
        undo, self._undo = self._undo, None
        self.orphaned_at = None
        try:
            granted = self._read(self._result()) != b"f"
        except ServerError:
            granted = False
        if granted and undo is not None:
            self.conn.send_query_params(STATEMENTS[undo[0]], (undo[1],))
            self._orphan(None)

    async def settle(self, until: float) -> None:
        while self.orphaned_at is not None:
            if self._complete():
                self._clean_up()
            elif not await ready(self.fd, False, until):
                raise StatementTimeout

    def collect(self) -> None:
        while self.orphaned_at is not None and self._complete():
            self._clean_up()

    def beat(self) -> None:
        self.conn.send_query(STATEMENTS[b"ping"])
        self._orphan(None)

    def unexpected(self) -> None:
        # a notice, a changed parameter, or the end, which libpq reports only after the server's last words
        while readable(self.fd, 0):
            self._complete()

    # locks

    def _lock(self, key: LockKey, shared: bool) -> tuple[bytes, bytes, tuple[bytes, bytes]]:
        """The statement, its value, and what takes it back."""
        value = key.number_bytes
        if not shared:
            return b"try_x", value, (b"free_x", value)
        return b"join_s" if key.digest in self.held else b"try_s", value, (b"free_s", value)

    async def lock(self, key: LockKey, shared: bool, until: float) -> bool:
        statement, value, undo = self._lock(key, shared)
        return (await self.execute(statement, value, until, undo)) == b"t"

    def lock_fast(self, key: LockKey, shared: bool) -> bool:
        statement = self._lock(key, shared)[0] if shared else b"try_x"
        return self._execute_fast(statement, key.number_bytes) == b"t"

    async def unlock(self, key: LockKey, shared: bool) -> bool:
        name = b"free_s" if shared else b"free_x"
        return (await self.execute(name, key.number_bytes, clock.now() + STATEMENT_LIMIT)) == b"t"

    def unlock_fast(self, key: LockKey, shared: bool) -> bool:
        return self._execute_fast(b"free_s" if shared else b"free_x", key.number_bytes) == b"t"

    async def wait(self, key: LockKey, shared: bool, until: float) -> bool:
        value = key.number_bytes
        name, undo = (b"wait_s", (b"free_s", value)) if shared else (b"wait_x", (b"free_x", value))
        if not self._timeout_fits(until):
            wanted = lock_timeout(until)
            await self.query(b"SET lock_timeout = %d" % wanted, until + GRACE)
            self._timeout = wanted
        await self._prepare_wait(name, until)
        try:
            await self.execute(name, value, until + GRACE, undo)
        except ServerError as error:
            # lock_timeout can fire after the grant (826 of 30,298 in a race with it): release it in any case
            await self.clear(max(until, clock.now()) + GRACE)
            if error.code == DEADLOCK_DETECTED:
                raise DeadlockDetected from error
            if error.code not in (LOCK_NOT_AVAILABLE, QUERY_CANCELED):
                raise
            return False
        return True

    def wait_fast(self, key: LockKey, shared: bool, until: float) -> bool:
        if not self._timeout_fits(until):
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
                if not poll(conn.socket, False, self.look_at(until + GRACE)):
                    self.look(until + GRACE)
            self.orphaned_at = None
            self._read(self._result())
        except OperationalError as error:
            raise self._died(error) from error
        except ServerError:  # lock_timeout, which can fire after the grant
            run(self.clear(max(until, clock.now()) + GRACE))
            return False
        return True

    def _timeout_fits(self, until: float) -> bool:
        """Does lock_timeout fit this wait? Setting it costs a statement, and most waits are like the last one."""
        wanted = lock_timeout(until)
        return wanted == self._timeout or 0 < 0.8 * wanted < self._timeout <= wanted + 5

    async def _prepare_wait(self, name: bytes, until: float) -> None:
        if name in self._prepared:
            return
        if self._preparing:  # an interrupted caller did not see the reply, so it may be prepared or not
            self._prepared.clear()
            await self.query(b"DEALLOCATE ALL", until + GRACE)
        self._preparing = True
        await self.query(b"PREPARE %s (bigint) AS %s" % (name, STATEMENTS[name]), until + GRACE)
        self._preparing = False
        self._prepared.add(name)

    async def ping(self, until: float) -> None:
        await self.execute(b"ping", b"", until)

    async def cancel(self, other: Session, until: float) -> None:
        await self.execute(b"cancel", b"%d" % other.server_id, until)

    async def clear(self, until: float) -> None:
        await self.execute(b"free_all", b"", until)

    # poolers

    async def ensure_bound(self, alias: str, second: Any, until: float) -> None:
        """Raise UnsupportedOperation if a pooler gives this connection changing server sessions.

        Neither the process id in the greeting nor ``pg_backend_pid()`` can tell: the first is the pooler's in every
        mode, and in transaction mode an idle pool may give the same server session again and again. A notification
        can: it reaches a silent client only if the server session that listens is bound to that client
        (https://www.pgbouncer.org/features.html: LISTEN works in session mode, and never in transaction mode).
        """
        if self.pooled and (self.server_id == second.server_id or not await self._hears(second, until)):
            raise UnsupportedOperation(
                f"The lock sessions of alias {alias!r} go through a pooler that gives each transaction another server "
                "session (pgbouncer in transaction mode), where session locks leak and exclude nobody. Set "
                "OPTIONS['session_database'] to a database alias that connects directly or through a pool in session "
                "mode, or take the lock inside atomic(), where it belongs to the transaction."
            )

    async def _hears(self, second: PostgresSession, until: float) -> bool:
        """Does this session, while it asks for nothing, get the notification that ``second`` sends?"""
        payload = secrets.token_hex(16).encode()
        await self.query(b"LISTEN " + CHANNEL, until)
        await second.query(b"SELECT pg_notify('%s', '%s')" % (CHANNEL, payload), until)
        until = min(until, clock.now() + COMES_WITHIN)
        heard = False
        while not heard and await ready(self.fd, False, until):
            heard = self._was_notified(payload)
        await self.query(b"UNLISTEN " + CHANNEL, until + COMES_WITHIN)
        return heard

    def _was_notified(self, payload: bytes) -> bool:
        """Read what has come; other processes send on the same channel."""
        try:
            self.conn.consume_input()
        except OperationalError as error:
            raise self._died(error) from error
        while (notification := self.conn.notifies()) is not None:
            if notification.extra == payload:
                return True
        return False
