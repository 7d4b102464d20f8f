"""Detects a transaction that a ``BEGIN`` through a cursor opened on MySQL or MariaDB while a lock was held.

mysqlclient does not say whether a transaction is open, and asking the server at each release would cost a round trip.
So the statements of a thread are read while it holds a lock. Only after one that may have begun a transaction does the
release ask the server.
"""

from __future__ import annotations

import re
import weakref
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

# The first word of the statement after comments. /*! and /*M! begin a comment that servers execute: it may be anything.
_MAY_BEGIN = re.compile(
    r"(?>[\s;]|--[^\n]*|\#[^\n]*|/\*(?!M?!).*?\*/)*+(?:(?:BEGIN|START|XA)\b|SET\b.*autocommit|/\*M?!)",
    re.IGNORECASE | re.DOTALL,
)
_SAVEPOINT = "distlock_asks"
_XA_IDLE = 1399  # ER_XAER_RMFAIL: the transaction of an XA END
_OUT_OF_SYNC = 2014  # CR_COMMANDS_OUT_OF_SYNC: results are unread, and the server cannot be asked


class BeginListener:
    """An execute wrapper for one connection, while locks are held."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = weakref.ref(connection)  # a lease may outlive its thread, whose connections end with it
        self._holds: set[object] = set()

    @classmethod
    def of(cls, connection: BaseDatabaseWrapper) -> BeginListener:
        """The listener of the connection, or a new one."""
        present = (wrapper for wrapper in connection.execute_wrappers if isinstance(wrapper, cls))
        return next(present, None) or cls(connection)

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if _MAY_BEGIN.match(sql.decode(errors="replace") if isinstance(sql, bytes) else str(sql)):
            context["connection"]._distlock_may_be_inside = True
        return execute(sql, params, many, context)

    # start() and stop() are called under the mutex of the lock table.

    def start(self, hold: object) -> None:
        self._holds.add(hold)
        connection = self._connection()
        if connection is not None and self not in connection.execute_wrappers:
            connection.execute_wrappers.insert(0, self)  # execute_wrapper() removes the last one at its end

    def stop(self, hold: object) -> None:
        self._holds.discard(hold)
        connection = self._connection()
        if connection is not None and not self._holds and self in connection.execute_wrappers:
            connection.execute_wrappers.remove(self)


def server_inside(connection: BaseDatabaseWrapper) -> bool:
    """Is a transaction open on this connection? Asks the server only after a statement that may have begun one.

    Outside a transaction a savepoint ends with its statement. After ``SET autocommit = 0`` it never does.
    """
    attributes = connection.__dict__
    if "_distlock_may_be_inside" not in attributes or connection.connection is None:
        return False
    try:
        with closing(connection.create_cursor()) as cursor:  # without execute_wrappers: it is not the caller's query
            cursor.execute(connection.ops.savepoint_create_sql(_SAVEPOINT))
            cursor.execute(connection.ops.savepoint_commit_sql(_SAVEPOINT))
    except Exception as error:  # the savepoint does not exist, or the session ended with its transaction
        if error.args[:1] not in ((_XA_IDLE,), (_OUT_OF_SYNC,)):
            del attributes["_distlock_may_be_inside"]
            return False
    return True
