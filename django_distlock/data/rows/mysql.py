"""Row locks of MySQL and MariaDB: limits on the wait, and tables without row locks."""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django_distlock.data.timeouts import milliseconds, mysql_limits, wait_limit
from django_distlock.exceptions import UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import Model

    from .select_for_update import RowLockOptions

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
def limited(connection: Any, options: RowLockOptions) -> Iterator[None]:
    """Limit the wait of the SELECT inside by limits in the statement, so that no setting has to be restored.

    MySQL has no hint for innodb_lock_wait_timeout, at least a second: for a longer wait for rows it has to be set.
    """
    in_statement, longer = hinted, options.timeout is None or options.timeout > 1
    if connection.mysql_is_mariadb:
        in_statement, longer = set_statement, False

    def execute_limited(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        return execute(in_statement(connection, options, sql), *rest)

    with (
        wait_limit(connection, options.timeout) if longer else nullcontext(),
        connection.execute_wrapper(execute_limited),
    ):
        yield


def set_statement(connection: Any, options: RowLockOptions, sql: str) -> str:
    """A statement of MariaDB with the limits on its waits.

    https://mariadb.com/docs/server/reference/sql-statements/administrative-sql-statements/set-commands/set-statement
    """
    limits = mysql_limits(connection, options.timeout)
    if options.skip_locked:
        # with a limit of 0 a skipped row ends the statement with error 1180 (MariaDB 10.11)
        del limits["innodb_lock_wait_timeout"]
    return f"SET STATEMENT {', '.join(f'{name} = {value}' for name, value in limits.items())} FOR {sql}"


def hinted(connection: Any, options: RowLockOptions, sql: str) -> str:
    """A SELECT of MySQL with the limits on its waits: https://dev.mysql.com/doc/refman/8.4/en/optimizer-hints.html

    max_execution_time limits the whole statement, in milliseconds, and 0 is no limit: NOWAIT ends a wait of 0, and a
    wait for a table ends after a second, the shortest that there is.
    """
    limits = {
        "lock_wait_timeout": mysql_limits(connection, options.timeout)["lock_wait_timeout"],
        "max_execution_time": milliseconds(options.timeout) if options.timeout else 0,
    }
    hints = " ".join(f"SET_VAR({name} = {value})" for name, value in limits.items())
    return HEAD.sub(lambda head: f"{head[1]} /*+ {hints}{'' if head[2] else ' */'}", sql, count=1)


def refuse_without_rows(connection: Any, model: type[Model]) -> None:
    """UnsupportedOperation if the engine of the model's tables has no transactions, as MyISAM: there ``SELECT ... FOR
    UPDATE`` locks nothing, without an error. Asked once per process and model if the answer is good.
    """
    tables = sorted({model._meta.db_table, *(parent._meta.db_table for parent in model._meta.all_parents)})
    settings = connection.settings_dict
    key = (settings["HOST"], settings["PORT"], settings["NAME"], *tables)
    if key in _good:
        return
    with connection.cursor() as cursor:
        cursor.execute(WITHOUT_ROLLBACK.format(", ".join(["%s"] * len(tables))), tables)
        found = cursor.fetchall()
    if found:
        table, engine = found[0]
        raise UnsupportedOperation(
            f"The table {table} is kept by {engine}, which has no locks on rows. Use "
            f"{model._meta.object_name}.objects.advisory_row_lock(pk) or a table_lock, or change its engine to InnoDB."
        )
    _good.add(key)
