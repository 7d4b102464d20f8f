"""Runs the statement that locks rows, with its limit of time, on each engine."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.models import prefetch_related_objects

from django_distlock.data.base import held
from django_distlock.data.errors import lock_errors
from django_distlock.data.tables import sqlite
from django_distlock.data.timeouts import milliseconds, mysql_limits, run, wait_limit
from django_distlock.exceptions import LockNotAcquired, UnsupportedOperation
from django_distlock.manager.open_transactions import in_transaction

from .select_for_update import M, RowLockOptions, locking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from django.db.models import Model, QuerySet


# From TABLES and ENGINES: a view has no engine, and a temporary table belongs to one session.
WITHOUT_ROLLBACK = (
    "SELECT t.TABLE_NAME, t.ENGINE FROM information_schema.TABLES t"
    " JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE"
    " WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME IN ({}) AND COALESCE(e.TRANSACTIONS, 'NO') <> 'YES'"
)

# The place of the hints of a statement: one comment, which may exist.
HEAD = re.compile(r"((?:\s|/\*.*?\*/)*SELECT\b)(\s*/\*\+)?", re.IGNORECASE | re.DOTALL)

# (server, database, tables) that were found to have row locks.
_good: set[tuple[object, ...]] = set()


def describe(queryset: QuerySet[Any]) -> str:
    return f"A row of {queryset.model._meta.label}"


def locked_rows(
    queryset: QuerySet[M], options: RowLockOptions, *, inside: bool = False
) -> AbstractContextManager[list[M]]:
    """Lock the rows in the open transaction, without a savepoint, or in a new one, which ``inside`` refuses.

    An exception of the block rolls back: a new transaction at once, an enclosing ``atomic()`` when it ends.
    """
    queryset = locking(queryset, options)
    connection: Any = connections[queryset.db]  # the database that is written
    if connection.vendor not in ("postgresql", "mysql", "sqlite"):
        raise UnsupportedOperation(f"row_lock does not know how long {connection.vendor} waits for a row.")
    if inside and not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            f"lock_row() on {queryset.model._meta.label} needs a transaction to hold the lock: call it inside "
            "atomic(), or use `with row_lock(...)`, which opens one."
        )

    def lock(stack: ExitStack) -> list[M]:
        if connection.vendor != "sqlite" or in_transaction(connection):
            stack.enter_context(transaction.atomic(using=connection.alias, savepoint=False))
        return _fetch(stack, connection, queryset, options)

    return held(connection, lock)


def _fetch(stack: ExitStack, connection: Any, queryset: QuerySet[M], options: RowLockOptions) -> list[M]:
    """Fetch the rows by one statement, to which the limit applies: rows that are prefetched are not locked.

    Each row once, although a join may find it twice: of two instances the second save() would undo the first.
    """
    if connection.vendor == "mysql":
        _refuse_without_rows(connection, queryset.model)
    if connection.vendor == "sqlite" and not _lock_sqlite(stack, connection, queryset, options):
        return []
    lookups = queryset._prefetch_related_lookups  # type: ignore[attr-defined]
    with lock_errors(connection, describe(queryset), options.timeout), _limit(connection, options):
        rows = list({row.pk: row for row in queryset.prefetch_related(None)}.values())
    if lookups:
        prefetch_related_objects(rows, *lookups)
    return rows


def _lock_sqlite(stack: ExitStack, connection: Any, queryset: QuerySet[Any], options: RowLockOptions) -> bool:
    """Take SQLite's write lock. If it is busy and ``skip_locked``, False, in a transaction without it."""
    inside, broken = in_transaction(connection), connection.needs_rollback
    table = connection.ops.quote_name(queryset.model._meta.db_table)
    try:
        sqlite.lock_database(stack, connection, table, describe(queryset), options.timeout)
    except LockNotAcquired:
        if not options.skip_locked:
            raise
        if inside:
            connection.needs_rollback = broken  # SQLite refused the statement and kept the transaction
        else:
            sqlite.begin(stack, connection, "DEFERRED")
        return False
    return True


def _limit(connection: Any, options: RowLockOptions) -> AbstractContextManager[None]:
    """NOWAIT and SKIP LOCKED apply to rows only: the wait for a locked table needs a limit as well."""
    if connection.vendor == "sqlite":
        return nullcontext()
    if connection.vendor == "mysql" and not connection.mysql_is_mariadb:
        return _hinted(connection, options.timeout)
    return wait_limit(connection, options.timeout, whole=options.waits)


@contextmanager
def _hinted(connection: Any, timeout: float | None) -> Iterator[None]:
    """Limit the wait of the SELECT inside by hints, so that no setting has to be restored.

    There is no hint for innodb_lock_wait_timeout, at least a second: for a longer wait for rows it has to be set.
    max_execution_time limits the whole statement, in milliseconds, and 0 is no limit: NOWAIT ends a wait of 0, and a
    wait for a table ends after a second, the shortest that there is.
    https://dev.mysql.com/doc/refman/8.4/en/optimizer-hints.html
    """
    hints = (
        f"SET_VAR(lock_wait_timeout = {mysql_limits(connection, timeout)['lock_wait_timeout']}) "
        f"SET_VAR(max_execution_time = {milliseconds(timeout) if timeout else 0})"
    )

    def hint(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        hinted = HEAD.sub(lambda head: f"{head[1]} /*+ {hints}{'' if head[2] else ' */'}", sql, count=1)
        return execute(hinted, *rest)

    longer = timeout is None or timeout > 1
    with wait_limit(connection, timeout) if longer else nullcontext(), connection.execute_wrapper(hint):
        yield


def _refuse_without_rows(connection: Any, model: type[Model]) -> None:
    """UnsupportedOperation if the engine of the model's tables has no transactions, as MyISAM: there ``SELECT ... FOR
    UPDATE`` locks nothing, without an error. Asked once per process and model if the answer is good.
    """
    tables = sorted({model._meta.db_table, *(parent._meta.db_table for parent in model._meta.all_parents)})
    settings = connection.settings_dict
    key = (settings["HOST"], settings["PORT"], settings["NAME"], *tables)
    if key in _good:
        return
    found = run(connection, WITHOUT_ROLLBACK.format(", ".join(["%s"] * len(tables))), tables)
    if found:
        table, engine = found[0]
        raise UnsupportedOperation(
            f"The table {table} is kept by {engine}, which has no locks on rows. Use "
            f"{model._meta.object_name}.objects.advisory_row_lock(pk) or a table_lock, or change its engine to InnoDB."
        )
    _good.add(key)
