"""SQLite has one lock, on the whole database: https://sqlite.org/lang_transaction.html"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import transaction

from django_distlock.data.errors import lock_errors
from django_distlock.data.timeouts import run, wait_limit
from django_distlock.exceptions import UnsupportedOperation
from django_distlock.manager.open_transactions import in_transaction

from .modes import TableLockMode, described

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from .modes import Table


def lock(stack: ExitStack, connection: Any, tables: Sequence[Table], timeout: float | None) -> None:
    """Take the write lock of the database: to the end of the caller's transaction, else the block is a transaction.

    LockNotAcquired at once in a transaction that has read, if another connection has written since its first query.
    """
    exclusive = any(table.mode is TableLockMode.ACCESS_EXCLUSIVE for table in tables)
    if exclusive and in_transaction(connection):
        raise UnsupportedOperation("SQLite keeps readers out by BEGIN EXCLUSIVE only: use it outside atomic().")
    mode = "EXCLUSIVE" if exclusive else "IMMEDIATE"
    lock_database(stack, connection, tables[0].name, described(tables), timeout, mode)


def lock_database(
    stack: ExitStack, connection: Any, table: str, what: str, timeout: float | None, mode: str = "IMMEDIATE"
) -> None:
    """Take the lock by BEGIN; inside a transaction by a statement that writes but changes nothing."""
    with lock_errors(connection, what, timeout), wait_limit(connection, timeout):
        if in_transaction(connection):
            run(connection, f"DELETE FROM {table} WHERE 0")  # noqa: S608 - quoted
        else:
            begin(stack, connection, mode)


def begin(stack: ExitStack, connection: Any, mode: str) -> None:
    """Enter a transaction that begins in ``mode``."""
    before, connection.transaction_mode = connection.transaction_mode, mode
    try:
        stack.enter_context(transaction.atomic(using=connection.alias))
    finally:
        connection.transaction_mode = before
