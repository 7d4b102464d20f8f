"""The statement that locks rows: ``SELECT ... FOR UPDATE`` in the order of the primary key, with a limit of time."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from django.db import connections, transaction
from django.db.models import Model, prefetch_related_objects
from django.db.models.query import ModelIterable

from django_distlock.data.base import held
from django_distlock.data.errors import lock_errors
from django_distlock.data.tables import sqlite
from django_distlock.data.timeouts import milliseconds, mysql_limits, resolve, run, wait_limit
from django_distlock.exceptions import LockNotAcquired, UnsupportedOperation
from django_distlock.manager.open_transactions import in_transaction
from django_distlock.validation import UNSET, Timeout, flag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.models import QuerySet

M = TypeVar("M", bound=Model)

# From TABLES and ENGINES: a view has no engine, and a temporary table belongs to one session.
WITHOUT_ROLLBACK = (
    "SELECT t.TABLE_NAME, t.ENGINE FROM information_schema.TABLES t"
    " JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE"
    " WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME IN ({}) AND COALESCE(e.TRANSACTIONS, 'NO') <> 'YES'"
)
# (server, database, tables) that were found to have row locks.
_good: set[tuple[object, ...]] = set()

# The place of the hints of a statement: one comment, which may exist.
HEAD = re.compile(r"((?:\s|/\*.*?\*/)*SELECT\b)(\s*/\*\+)?", re.IGNORECASE | re.DOTALL)


class RowOptions(TypedDict, total=False):
    """The options of every lock on rows, for ``**options``: all may be left out."""

    timeout: Timeout
    nowait: bool
    of: Sequence[str]
    no_key: bool


@dataclass(frozen=True, kw_only=True)
class RowLockOptions:
    """How rows are locked. ValueError or TypeError that names the argument."""

    timeout: InitVar[Timeout] = UNSET
    nowait: InitVar[bool] = False
    skip_locked: bool = False
    of: Sequence[str] = ()
    no_key: bool = False
    #: To wait, 0 for not at all, None for ever.
    seconds: float | None = field(init=False)

    def __post_init__(self, timeout: Timeout, nowait: bool) -> None:
        object.__setattr__(self, "seconds", resolve(timeout, nowait=nowait, skip_locked=self.skip_locked))
        if nowait and self.skip_locked:
            raise ValueError("nowait and skip_locked exclude each other.")
        if not isinstance(self.of, (tuple, list)) or not all(isinstance(name, str) for name in self.of):
            raise TypeError(f'of must be a tuple of relation names such as ("self",), not {self.of!r}.')
        flag("no_key", self.no_key)


def refuse_queryset(queryset: QuerySet[Any], options: RowLockOptions) -> None:
    """ValueError for a queryset that gives no instances, or whose rows would be waited for in another order. What else
    cannot be locked the engine refuses."""
    query: Any = queryset.query
    if query.combinator:
        label = queryset.model._meta.label
        raise ValueError(f"row_lock cannot lock the rows of a {query.combinator}: lock {label} by pk__in=... instead.")
    if queryset._fields is not None or not issubclass(queryset._iterable_class, ModelIterable):  # type: ignore[attr-defined]
        raise ValueError("row_lock gives instances: leave out values(), values_list(), dates() and datetimes().")
    if query.is_sliced and options.seconds != 0 and not _by_primary_key(queryset):
        raise ValueError(
            "row_lock waits for the rows of a slice only if it is ordered by pk, else two callers could wait for each "
            "other: add skip_locked=True, nowait=True or order_by('pk')."
        )


def _by_primary_key(queryset: QuerySet[Any]) -> bool:
    query, pk = queryset.query, queryset.model._meta.pk
    own = query.order_by or (queryset.model._meta.ordering if query.default_ordering else ())
    names = {"pk", pk.name, pk.attname} if pk is not None else {"pk"}
    return query.standard_ordering and len(own) == 1 and own[0] in names and not query.extra_order_by


def locking(queryset: QuerySet[M], options: RowLockOptions) -> QuerySet[M]:
    """The queryset that locks. Where the engine lacks a weaker lock, the plain one is taken, which is stronger.

    A slice keeps its order: it does not wait for rows, or it is ordered by primary key.
    """
    refuse_queryset(queryset, options)
    locked = queryset.select_for_update()
    features = connections[locked.db].features
    if features.has_select_for_update:  # else Django ignores it
        locked = locked.select_for_update(
            nowait=options.seconds == 0 and not options.skip_locked,
            skip_locked=options.skip_locked,
            of=tuple(options.of) if features.has_select_for_update_of else (),
            no_key=options.no_key and features.has_select_for_no_key_update,
        )
    model: Any = queryset.model._meta.concrete_model
    if model._meta.all_parents:  # else the table of a parent without any field to load is not in the query
        locked = locked.defer(None)
    if not locked.query.is_sliced:
        locked = locked.order_by("pk")
        locked.query.standard_ordering = True  # an earlier reverse() would reverse this order
    return locked


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
    what = f"A row of {queryset.model._meta.label}"
    if connection.vendor == "mysql":
        _refuse_without_rows(connection, queryset.model)
    if connection.vendor == "sqlite" and not _lock_sqlite(stack, connection, queryset, what, options):
        return []
    lookups = queryset._prefetch_related_lookups  # type: ignore[attr-defined]
    with lock_errors(connection, what, options.seconds), _limit(connection, options):
        rows = list({row.pk: row for row in queryset.prefetch_related(None)}.values())
    if lookups:
        prefetch_related_objects(rows, *lookups)
    return rows


def _lock_sqlite(
    stack: ExitStack, connection: Any, queryset: QuerySet[Any], what: str, options: RowLockOptions
) -> bool:
    """Take SQLite's write lock. If it is busy and ``skip_locked``, False, in a transaction without it."""
    inside, broken = in_transaction(connection), connection.needs_rollback
    table = connection.ops.quote_name(queryset.model._meta.db_table)
    try:
        sqlite.lock_database(stack, connection, table, what, options.seconds)
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
        return connection.execute_wrapper(_hints(connection, options.seconds))  # type: ignore[no-any-return]
    return wait_limit(connection, options.seconds, whole=options.seconds != 0)


def _hints(connection: Any, timeout: float | None) -> Callable[..., Any]:
    """An execute wrapper that gives a SELECT of Oracle's MySQL its limits as hints, so that no setting has to be
    restored. There is none for innodb_lock_wait_timeout, which ends a longer wait for rows (50 s by default).

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

    return hint


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
