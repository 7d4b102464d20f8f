"""Rows on MySQL and MariaDB: how long a statement waits for them, and tables that have no locks on rows."""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django_distlock.data.timeouts import milliseconds, mysql_limits, wait_limit
from django_distlock.exceptions import UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import Model

    from .query import RowLockOptions

# What TABLES and ENGINES say; a view has no engine, and a temporary table belongs to one session.
WITHOUT_ROLLBACK = (
    "SELECT t.TABLE_NAME, t.ENGINE FROM information_schema.TABLES t"
    " JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE"
    " WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME IN ({}) AND COALESCE(e.TRANSACTIONS, 'NO') <> 'YES'"
)

# Where a statement has its hints: one comment, which may be there already.
HEAD = re.compile(r"((?:\s|/\*.*?\*/)*SELECT\b)(\s*/\*\+)?", re.IGNORECASE | re.DOTALL)

# (server, database, tables) that were looked up once and found good.
_good: set[tuple[object, ...]] = set()


@contextmanager
def limited(connection: Any, wish: RowLockOptions) -> Iterator[None]:
    """The SELECT inside waits as long as it may, by limits that stand in the statement: nothing is left to put back.

    MySQL has no hint for innodb_lock_wait_timeout, which is a second or more: a longer wait for rows needs it set.
    """
    in_statement, longer = hinted, wish.timeout is None or wish.timeout > 1
    if connection.mysql_is_mariadb:
        in_statement, longer = set_statement, False

    def execute_limited(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        return execute(in_statement(connection, wish, sql), *rest)

    with wait_limit(connection, wish.timeout) if longer else nullcontext(), connection.execute_wrapper(execute_limited):
        yield


def set_statement(connection: Any, wish: RowLockOptions, sql: str) -> str:
    """A statement of MariaDB with the limits on its waits.

    https://mariadb.com/docs/server/reference/sql-statements/administrative-sql-statements/set-commands/set-statement
    """
    limits = mysql_limits(connection, wish.timeout)
    if wish.skip_locked:
        # with a limit of 0 a row that is skipped ends the statement with error 1180 (MariaDB 10.11)
        del limits["innodb_lock_wait_timeout"]
    return f"SET STATEMENT {', '.join(f'{name} = {value}' for name, value in limits.items())} FOR {sql}"


def hinted(connection: Any, wish: RowLockOptions, sql: str) -> str:
    """A SELECT of MySQL with the limits on its waits: https://dev.mysql.com/doc/refman/8.4/en/optimizer-hints.html

    max_execution_time is on the whole statement, in milliseconds, and 0 is no limit: a wait of 0 is ended by NOWAIT,
    and one for a table after a second, the least there is.
    """
    limits = {
        "lock_wait_timeout": mysql_limits(connection, wish.timeout)["lock_wait_timeout"],
        "max_execution_time": milliseconds(wish.timeout) if wish.timeout else 0,
    }
    hints = " ".join(f"SET_VAR({name} = {value})" for name, value in limits.items())
    return HEAD.sub(lambda head: f"{head[1]} /*+ {hints}{'' if head[2] else ' */'}", sql, count=1)


def refuse_without_rows(connection: Any, model: type[Model]) -> None:
    """UnsupportedOperation if the model is kept by an engine without transactions, such as MyISAM: there
    ``SELECT ... FOR UPDATE`` locks nothing and says nothing. One look-up per process and model; a good answer is kept.
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
