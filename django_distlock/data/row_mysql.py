"""Rows on MySQL and MariaDB: how long a statement waits for them, and tables that have no locks on rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.exceptions import UnsupportedOperation

from .waits import mysql_limits

if TYPE_CHECKING:
    from django.db.models import Model

    from .rowquery import Wish

# What TABLES and ENGINES say; a view has no engine, and a temporary table belongs to one session.
WITHOUT_ROLLBACK = (
    "SELECT t.TABLE_NAME, t.ENGINE FROM information_schema.TABLES t"
    " JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE"
    " WHERE t.TABLE_SCHEMA = DATABASE() AND t.TABLE_NAME IN ({}) AND COALESCE(e.TRANSACTIONS, 'NO') <> 'YES'"
)

# (server, database, tables) that were looked up once and found good.
_good: set[tuple[object, ...]] = set()


def set_statement(connection: Any, wish: Wish) -> str:
    """What stands before a statement of MariaDB to bound its waits: nothing is left to put back.

    https://mariadb.com/docs/server/reference/sql-statements/administrative-sql-statements/set-commands/set-statement
    """
    limits = mysql_limits(connection, wish.timeout)
    if wish.skip_locked:
        # with a limit of 0 a row that is skipped ends the statement with error 1180 (MariaDB 10.11)
        del limits["innodb_lock_wait_timeout"]
    return f"SET STATEMENT {', '.join(f'{name} = {value}' for name, value in limits.items())} FOR "


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
