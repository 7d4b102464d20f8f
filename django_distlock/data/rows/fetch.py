"""Runs the statement that locks rows, with its limit of time, on each engine."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.models import prefetch_related_objects

from django_distlock.data.errors import ensure_open, lock_errors
from django_distlock.data.tables import sqlite
from django_distlock.data.timeouts import wait_limit
from django_distlock.exceptions import LockNotAcquired, UnsupportedOperation

from . import mysql
from .select_for_update import M, RowLockOptions, locking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import QuerySet


def describe(queryset: QuerySet[Any]) -> str:
    return f"A row of {queryset.model._meta.label}"


@contextmanager
def locked_rows(queryset: QuerySet[M], options: RowLockOptions) -> Iterator[list[M]]:
    """Lock the rows in the open transaction, without a savepoint, or in a new one.

    An exception of the block rolls back: a new transaction at once, an enclosing ``atomic()`` when it ends.
    """
    queryset, connection = _on_its_database(queryset, options)
    connection.ensure_connection()
    with ExitStack() as stack:
        if connection.vendor == "sqlite" and not connection.in_atomic_block:
            locked = _begun(stack, connection, queryset, options)
        else:
            stack.enter_context(transaction.atomic(using=queryset.db, savepoint=False))
            locked = _prepared(connection, queryset, options)
        raw = connection.connection
        yield fetch(queryset, options) if locked else []
        ensure_open(connection, raw)


def _on_its_database(queryset: QuerySet[M], options: RowLockOptions) -> tuple[QuerySet[M], Any]:
    """The queryset that locks, and its connection: of the database that is written."""
    queryset = locking(queryset, options)
    connection = connections[queryset.db]
    if connection.vendor not in ("postgresql", "mysql", "sqlite"):
        raise UnsupportedOperation(f"row_lock does not know how long {connection.vendor} waits for a row.")
    return queryset, connection


def _begun(stack: ExitStack, connection: Any, queryset: QuerySet[Any], options: RowLockOptions) -> bool:
    """Begin a transaction with SQLite's write lock; without it, and False, if it is busy and ``skip_locked``."""
    what = describe(queryset)

    def enter(mode: str) -> None:
        block = transaction.atomic(using=connection.alias)
        sqlite.begin(connection, block, stack, mode, what, options.timeout)

    try:
        enter("IMMEDIATE")
    except LockNotAcquired:
        if not options.skip_locked:
            raise
        enter("DEFERRED")
        return False
    return True


def _prepared(connection: Any, queryset: QuerySet[Any], options: RowLockOptions) -> bool:
    """Do what the engine needs before the SELECT, inside a transaction. False if all rows are to be skipped."""
    if connection.vendor == "mysql":
        mysql.refuse_without_rows(connection, queryset.model)
    if connection.vendor != "sqlite":
        return True
    broken = connection.needs_rollback
    try:
        table = connection.ops.quote_name(queryset.model._meta.db_table)
        sqlite.take_write_lock(connection, table, describe(queryset), options.timeout)
    except LockNotAcquired:
        if not options.skip_locked:
            raise
        connection.needs_rollback = broken  # SQLite refused the statement and kept the transaction
        return False
    return True


def lock_inside(queryset: QuerySet[M], options: RowLockOptions) -> list[M]:
    """Lock the rows in the open transaction, to its end."""
    queryset, connection = _on_its_database(queryset, options)
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            f"lock_row() on {queryset.model._meta.label} needs a transaction to hold the lock: call it inside "
            "atomic(), or use `with row_lock(...)`, which opens one."
        )
    return fetch(queryset, options) if _prepared(connection, queryset, options) else []


def fetch(queryset: QuerySet[M], options: RowLockOptions) -> list[M]:
    """Fetch the rows by one statement, to which the limit applies: rows that are prefetched are not locked.

    Each row once, although a join may find it twice: of two instances the second save() would undo the first.
    """
    connection = connections[queryset.db]
    lookups = queryset._prefetch_related_lookups  # type: ignore[attr-defined]
    with lock_errors(connection, describe(queryset), options.timeout), _limit(connection, options):
        rows = list({row.pk: row for row in queryset.prefetch_related(None)}.values())
    if lookups:
        prefetch_related_objects(rows, *lookups)
    return rows


def _limit(connection: Any, options: RowLockOptions) -> AbstractContextManager[None]:
    """NOWAIT and SKIP LOCKED apply to rows only: the wait for a locked table needs a limit as well."""
    if connection.vendor == "sqlite":
        return nullcontext()
    if connection.vendor == "mysql":
        return mysql.limited(connection, options)
    return wait_limit(connection, options.timeout, whole=options.waits)
