"""Row locks of MySQL and MariaDB: MySQL's limits on the wait, and tables without row locks."""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django_distlock.data.timeouts import milliseconds, mysql_limits, run, wait_limit
from django_distlock.exceptions import UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import Model

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


@contextmanager
def limited(connection: Any, timeout: float | None) -> Iterator[None]:
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

    def execute(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        hinted = HEAD.sub(lambda head: f"{head[1]} /*+ {hints}{'' if head[2] else ' */'}", sql, count=1)
        return execute(hinted, *rest)

    longer = timeout is None or timeout > 1
    with wait_limit(connection, timeout) if longer else nullcontext(), connection.execute_wrapper(execute):
        yield


def refuse_without_rows(connection: Any, model: type[Model]) -> None:
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
