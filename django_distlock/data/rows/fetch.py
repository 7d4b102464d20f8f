"""The statement that locks rows, on each engine, with the time it may wait."""

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
from .query import M, RowLockOptions, locking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import QuerySet


def describe(queryset: QuerySet[Any]) -> str:
    return f"A row of {queryset.model._meta.label}"


@contextmanager
def locked_rows(queryset: QuerySet[M], wish: RowLockOptions) -> Iterator[list[M]]:
    """The rows, locked in a transaction that is opened here or, without a savepoint, the one that is open.

    Whatever the block raises rolls back: outside of it at once, inside an enclosing ``atomic()`` when that one ends.
    """
    queryset, connection = _on_its_database(queryset, wish)
    connection.ensure_connection()
    with ExitStack() as stack:
        if connection.vendor == "sqlite" and not connection.in_atomic_block:
            locked = _begun(stack, connection, queryset, wish)
        else:
            stack.enter_context(transaction.atomic(using=queryset.db, savepoint=False))
            locked = _prepared(connection, queryset, wish)
        raw = connection.connection
        yield fetch(queryset, wish) if locked else []
        ensure_open(connection, raw)


def _on_its_database(queryset: QuerySet[M], wish: RowLockOptions) -> tuple[QuerySet[M], Any]:
    """The queryset that locks, and the connection that it uses: of the database that is written."""
    queryset = locking(queryset, wish)
    connection = connections[queryset.db]
    if connection.vendor not in ("postgresql", "mysql", "sqlite"):
        raise UnsupportedOperation(f"row_lock does not know how long {connection.vendor} waits for a row.")
    return queryset, connection


def _begun(stack: ExitStack, connection: Any, queryset: QuerySet[Any], wish: RowLockOptions) -> bool:
    """Open a transaction with SQLite's one lock; without it if all rows are to be skipped while another has it."""
    what = describe(queryset)

    def enter(mode: str) -> None:
        block = transaction.atomic(using=connection.alias)
        sqlite.begin(connection, block, stack, mode, what, wish.timeout)

    try:
        enter("IMMEDIATE")
    except LockNotAcquired:
        if not wish.skip_locked:
            raise
        enter("DEFERRED")
        return False
    return True


def _prepared(connection: Any, queryset: QuerySet[Any], wish: RowLockOptions) -> bool:
    """Inside a transaction: what an engine needs before its SELECT; False if all rows are to be skipped."""
    if connection.vendor == "mysql":
        mysql.refuse_without_rows(connection, queryset.model)
    if connection.vendor != "sqlite":
        return True
    broken = connection.needs_rollback
    try:
        table = connection.ops.quote_name(queryset.model._meta.db_table)
        sqlite.take_write_lock(connection, table, describe(queryset), wish.timeout)
    except LockNotAcquired:
        if not wish.skip_locked:
            raise
        connection.needs_rollback = broken  # SQLite has refused a statement and kept the transaction
        return False
    return True


def lock_inside(queryset: QuerySet[M], wish: RowLockOptions) -> list[M]:
    """The rows, locked in the transaction that is open and held to its end."""
    queryset, connection = _on_its_database(queryset, wish)
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            f"lock_row() on {queryset.model._meta.label} needs a transaction to hold the lock: call it inside "
            "atomic(), or use `with row_lock(...)`, which opens one."
        )
    return fetch(queryset, wish) if _prepared(connection, queryset, wish) else []


def fetch(queryset: QuerySet[M], wish: RowLockOptions) -> list[M]:
    """One statement, and no more than that under the limit: what is prefetched is not locked.

    Each row once: a join finds some twice, and of two instances of one row the second save() would undo the first.
    """
    connection = connections[queryset.db]
    lookups = queryset._prefetch_related_lookups  # type: ignore[attr-defined]
    with lock_errors(connection, describe(queryset), wish.timeout), _limit(connection, wish):
        rows = list({row.pk: row for row in queryset.prefetch_related(None)}.values())
    if lookups:
        prefetch_related_objects(rows, *lookups)
    return rows


def _limit(connection: Any, wish: RowLockOptions) -> AbstractContextManager[None]:
    """NOWAIT and SKIP LOCKED are about rows: a table locked by somebody else has to be given up by a limit as well."""
    if connection.vendor == "sqlite":
        return nullcontext()
    if connection.vendor == "mysql":
        return mysql.limited(connection, wish)
    return wait_limit(connection, wish.timeout, whole=wish.waits)
