"""SQLite has one lock, on the whole database: https://sqlite.org/lang_transaction.html"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django.db import transaction

from django_distlock.data.errors import ensure_open, lock_errors
from django_distlock.data.timeouts import wait_limit
from django_distlock.exceptions import UnsupportedOperation
from django_distlock.manager.open_transactions import in_transaction

from .modes import READING, WRITING, TableLockMode
from .targets import described

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .targets import Table


@contextmanager
def locked(connection: Any, tables: Sequence[Table], timeout: float | None) -> Iterator[None]:
    """Take the write lock of the database: to the end of the caller's transaction, else the block is a transaction.

    LockNotAcquired at once in a transaction that has read, if another connection has written since its first query.
    """
    if odd := [table for table in tables if table.mode not in READING | WRITING]:
        raise UnsupportedOperation(f"SQLite has no lock like {odd[0].mode}: its one lock excludes every other writer.")
    exclusive = any(table.mode is TableLockMode.ACCESS_EXCLUSIVE for table in tables)
    connection.ensure_connection()
    with ExitStack() as stack:
        if in_transaction(connection):
            if exclusive:
                raise UnsupportedOperation("SQLite keeps readers out by BEGIN EXCLUSIVE only: use it outside atomic().")
            take_write_lock(connection, tables[0].name, described(tables), timeout)
        else:
            block = transaction.atomic(using=connection.alias)
            begin(connection, block, stack, "EXCLUSIVE" if exclusive else "IMMEDIATE", described(tables), timeout)
        raw = connection.connection
        yield
        ensure_open(connection, raw)


def begin(
    connection: Any, block: transaction.Atomic, stack: ExitStack, mode: str, what: str, timeout: float | None
) -> None:
    """Enter ``block`` with a BEGIN of ``mode``, which takes the lock."""
    before, connection.transaction_mode = connection.transaction_mode, mode
    try:
        with lock_errors(connection, what, timeout), wait_limit(connection, timeout):
            stack.enter_context(block)
    finally:
        connection.transaction_mode = before


def take_write_lock(connection: Any, table: str, what: str, timeout: float | None) -> None:
    """Take the lock inside a transaction, by a statement that writes but changes nothing."""
    with lock_errors(connection, what, timeout), wait_limit(connection, timeout), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE 0")  # noqa: S608 - quoted
