"""The statement that locks rows, on each engine, with the time it may wait."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.models import prefetch_related_objects

from django_distlock.exceptions import LockNotAcquired

from .errors import lock_errors
from .row_mysql import refuse_without_rows, set_statement
from .row_sqlite import write_lock
from .rowquery import M, Wish, locking
from .waits import wait_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import QuerySet


def describe(queryset: QuerySet[Any]) -> str:
    return f"A row of {queryset.model._meta.label}"


@contextmanager
def locked_rows(queryset: QuerySet[M], wish: Wish) -> Iterator[list[M]]:
    """The rows, locked in a transaction that is opened here or, without a savepoint, the one that is open.

    Whatever the block raises rolls back: outside of it at once, inside an enclosing ``atomic()`` when that one ends.
    """
    queryset = locking(queryset, wish)
    connection = connections[queryset.db]
    if connection.vendor == "mysql":
        refuse_without_rows(connection, queryset.model)
    if connection.vendor == "sqlite":
        with _locked_database(queryset, wish) as rows:
            yield rows
        return
    with transaction.atomic(using=queryset.db, savepoint=False):
        yield fetch(queryset, wish)


@contextmanager
def _locked_database(queryset: QuerySet[M], wish: Wish) -> Iterator[list[M]]:
    """SQLite has one lock, which is all rows of the database: while another has it, all of them are skipped."""
    connection = connections[queryset.db]
    broken = connection.needs_rollback
    with ExitStack() as stack:
        try:
            stack.enter_context(write_lock(connection, queryset.model, wish.timeout))
        except LockNotAcquired:
            if not wish.skip_locked:
                raise
            connection.needs_rollback = broken
            yield []
            return
        yield fetch(queryset, wish)


def lock_inside(queryset: QuerySet[M], wish: Wish) -> list[M]:
    """The rows, locked in the transaction that is open and held to its end."""
    queryset = locking(queryset, wish)
    connection = connections[queryset.db]
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            f"lock_row() on {queryset.model._meta.label} needs a transaction to hold the lock: call it inside "
            "atomic(), or use `with row_lock(...)`, which opens one."
        )
    if connection.vendor == "mysql":
        refuse_without_rows(connection, queryset.model)
    if connection.vendor == "sqlite":
        with write_lock(connection, queryset.model, wish.timeout):
            pass  # held to the end of the transaction
    return fetch(queryset, wish)


def fetch(queryset: QuerySet[M], wish: Wish) -> list[M]:
    """One statement, and no more than that under the limit: what is prefetched is not locked."""
    connection = connections[queryset.db]
    lookups = queryset._prefetch_related_lookups  # type: ignore[attr-defined]
    with lock_errors(connection, describe(queryset), wish.timeout), _limit(connection, wish):
        rows = list(queryset.prefetch_related(None))
    if lookups:
        prefetch_related_objects(rows, *lookups)
    return rows


def _limit(connection: Any, wish: Wish) -> AbstractContextManager[None]:
    """NOWAIT and SKIP LOCKED are about rows: a table locked by somebody else has to be given up by a limit as well."""
    if connection.vendor == "sqlite":
        return nullcontext()
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:
        return connection.execute_wrapper(_prefixed(set_statement(connection, wish.timeout)))  # type: ignore[no-any-return]
    return wait_limit(connection, wish.timeout, whole=wish.waits)


def _prefixed(prefix: str) -> Callable[..., Any]:
    def execute_prefixed(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        return execute(prefix + sql, params, many, context)

    return execute_prefixed
