"""Statements on the caller's own connection, which end by a deadline.

If nothing looks at the statements of the connection they are sent without a cursor, and BEGIN goes in the same packet.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, TypeAlias, cast

from django.db.backends import utils
from django.db.backends.postgresql import base
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.utils import CursorWrapper
from psycopg import Connection, Error, pq
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.waiting import WAIT_R, wait

from django_distlock.concurrency import clock, sockets

# The connection is ended when its socket stays silent for SILENT after the deadline and this thread notices it not more
# than LATE afterwards. A thread that comes later says that the process or the host is busy, and nothing about the
# server: it waits again, for up to PATIENCE. Seconds.
SILENT, LATE, PATIENCE = 0.02, 0.005, 0.5
# psycopg waits for the socket in pieces of a tenth of a second, between which signals are handled. The last piece
# before the deadline is waited for here; seconds.
INTERVAL, LAST_STRETCH = 0.1, 0.15

_ACTIVE = pq.TransactionStatus.ACTIVE
_IDLE = pq.TransactionStatus.IDLE
_ROWS = pq.ExecStatus.TUPLES_OK
_DONE = (_ROWS, pq.ExecStatus.COMMAND_OK)
# An isolation level, and "t" or true if the lock was granted.
Row: TypeAlias = tuple[str, str | bool]
# The classes of cursors that Django gives its connections, with and without server-side binding.
_CURSORS: tuple[Any, ...] = (base.Cursor, base.ServerBindingCursor)


def nobody_looks(connection: Any) -> bool:
    """Would nothing see a statement on this connection, and may it be sent now?

    Django's query log and its wrappers of statements would see one, and so would programs that trace statements: they
    replace a method of Django, the class of the cursors or that of the connection.
    """
    raw, kind = connection.connection, type(connection)
    if connection.execute_wrappers or type(raw) is not Connection or connection.needs_rollback:
        return False
    if connection.queries_logged:
        return False
    pgconn = raw.pgconn
    return not (
        pgconn.transaction_status == _ACTIVE  # an interrupt has left the statement before
        or pgconn.pipeline_status
        or raw.cursor_factory not in _CURSORS
        or getattr(connection.cursor, "__func__", None) is not kind.cursor
        or kind.create_cursor is not DatabaseWrapper.create_cursor
        or CursorWrapper.execute.__code__.co_filename != utils.__file__
    )


def begun(connection: Any) -> bool:
    """Has the transaction of the connection begun at the server? Its first statement begins it."""
    return bool(connection.autocommit or connection.connection.pgconn.transaction_status != _IDLE)


def directly(connection: Any, statement: bytes, bounded: Bounded) -> Row:
    """The row that ``statement`` returns, two texts. Sent without a cursor, and with BEGIN in the same packet if the
    transaction has not begun.

    The rest is as with a cursor: psycopg waits for the reply, an interrupt cancels the statement, and an error aborts
    the transaction.
    """
    raw = connection.connection
    pgconn = raw.pgconn
    try:
        with raw.lock:
            if not connection.autocommit and pgconn.transaction_status == _IDLE:  # not begun()
                statement = b"%s;%s" % (raw._get_tx_start_command(), statement)
            try:
                pgconn.send_query(statement)
                results = bounded.results(pgconn)
            except BaseException:  # an interrupt, after which psycopg's cursors cancel the statement too
                if pgconn.transaction_status == _ACTIVE:
                    bounded.until = min(bounded.until, clock.now() + PATIENCE)
                    with contextlib.suppress(Error):
                        raw.cancel_safe(timeout=PATIENCE)
                        bounded.results(pgconn)
                raise
            if results[-1].status not in _DONE:
                raise error_from_result(results[-1], raw.info.encoding)
    except Error:
        with connection.wrap_database_errors:
            raise
    for result in results:
        if result.status == _ROWS:
            return (result.get_value(0, 0) or b"").decode(), (result.get_value(0, 1) or b"").decode()
    return "", ""


def by_cursor(connection: Any, statement: bytes, bounded: Bounded) -> Row:
    """The same with a cursor, for those that look."""
    raw = connection.connection
    threshold, raw.prepare_threshold = raw.prepare_threshold, None  # several statements cannot be prepared as one
    try:
        with bounded, connection.cursor() as cursor:
            cursor.execute(statement.decode())
            while cursor.description is None and cursor.nextset():
                pass
            return ("", "") if cursor.description is None else cursor.fetchone()
    finally:
        if not raw.closed:
            raw.prepare_threshold = threshold


class Bounded:
    """A context in which statements on a connection of psycopg end by the monotonic time ``until`` (R5).

    psycopg runs each statement as a generator that says what it waits for at the socket, and gives it to the method
    ``wait`` of the connection. Here that method gets this object instead, which passes on :meth:`__next__` and
    :meth:`send`. If the server does not answer in time, the socket is shut, and psycopg raises its usual error.
    """

    __slots__ = ("_generator", "_outer", "_raw", "_wait", "ended", "until")

    def __init__(self, raw: Any, until: float) -> None:
        self._raw = raw
        self.until = until
        self.ended = False
        self._wait = raw.wait
        self._outer = raw.__dict__.get("wait")  # of a lock that is acquired around this one, in a wrapper

    def __enter__(self) -> None:
        self._raw.wait = self.wait

    def __exit__(self, *error: object) -> None:
        if self._outer is not None:
            self._raw.wait = self._outer
        else:
            self._raw.__dict__.pop("wait", None)

    def results(self, pgconn: Any) -> Any:
        """The results of the statement that was sent: what psycopg's own generator does, without its turns."""
        if pgconn.flush():  # the server does not read all of it at once
            self._generator = execute(pgconn)
            return wait(cast("Any", self), pgconn.socket, interval=INTERVAL)
        fd: int = pgconn.socket
        results: list[Any] = []
        while True:
            if pgconn.is_busy():
                if not sockets.poll(fd, False, self.until):
                    self._insist(fd, False)
                pgconn.consume_input()
                continue
            while (notify := pgconn.notifies()) is not None:
                if pgconn.notify_handler:
                    pgconn.notify_handler(notify)
            result = pgconn.get_result()
            if result is None:
                return results
            results.append(result)

    def wait(self, generator: Any, *args: Any, **options: Any) -> Any:
        self._generator = generator
        return self._wait(self, *args, **options)

    def __iter__(self) -> Bounded:
        return self

    def __next__(self) -> Any:
        wanted = next(self._generator)
        return wanted if clock.now() < self.until - LAST_STRETCH else self._answered(wanted)

    def send(self, ready: Any) -> Any:
        wanted = self._generator.send(ready)
        return wanted if clock.now() < self.until - LAST_STRETCH else self._answered(wanted)

    def _answered(self, wanted: Any) -> Any:
        """Wait until the socket is ready for what psycopg wants, or end the connection."""
        fd, write = self._raw.pgconn.socket, wanted != WAIT_R
        if not sockets.poll(fd, write, self.until):
            self._insist(fd, write)
        return wanted

    def _insist(self, fd: int, write: bool) -> None:
        """Wait a little longer, and end the connection if the server remains silent."""
        late = math.inf
        while late > LATE and clock.now() < self.until + PATIENCE:
            limit = clock.now() + SILENT
            if sockets.poll(fd, write, limit):
                return
            late = clock.now() - limit
        self.ended = True
        sockets.shut(fd)
