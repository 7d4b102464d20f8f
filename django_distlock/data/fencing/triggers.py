"""The trigger that refuses to lower a fence, of each model with ``enforce_fence = True``.

What is wanted and what is there are compared at the end of each ``migrate``. So it does not matter how a trigger was
lost: SQLite makes a new table for most changes and drops the old one with its triggers
(https://sqlite.org/lang_altertable.html#otheralter), MySQL and MariaDB leave the old name of a renamed column in it, a
dump may have none.

https://www.postgresql.org/docs/current/sql-createtrigger.html
https://dev.mysql.com/doc/refman/8.4/en/create-trigger.html
https://sqlite.org/lang_createtrigger.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import DatabaseError, connections, router, transaction
from django.db.backends.utils import names_digest, strip_quotes, truncate_name

from django_distlock.data.timeouts import run

from .tokens import own_fence

if TYPE_CHECKING:
    from django.db.models import Model

PREFIX = "distlock_fence_"
MYSQL_LONGEST_MESSAGE = 128  # characters of MESSAGE_TEXT
CREATE = {
    "postgresql": (
        "CREATE OR REPLACE FUNCTION {trigger}() RETURNS trigger LANGUAGE plpgsql AS $distlock$ BEGIN "
        "RAISE EXCEPTION USING MESSAGE = {message}, ERRCODE = 'integrity_constraint_violation'; END $distlock$",
        "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW WHEN (NEW.{column} < OLD.{column}) "
        "EXECUTE FUNCTION {trigger}()",
    ),
    # ER_CHECK_CONSTRAINT_VIOLATED is an IntegrityError for Django, as what the triggers of the other two raise
    "mysql": (
        "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW IF NEW.{column} < OLD.{column} THEN "
        "SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 3819, MESSAGE_TEXT = {message}; END IF",
    ),
    "sqlite": (
        "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW WHEN NEW.{column} < OLD.{column} "
        "BEGIN SELECT RAISE(ABORT, {message}); END",
    ),
}
DROP = {"postgresql": "DROP FUNCTION IF EXISTS {trigger}() CASCADE"}  # the trigger goes with its function
# The triggers by their prefix, each with its table: a trigger keeps its name if the table is renamed.
FIND = {
    "postgresql": (
        "SELECT tgname, name FROM unnest(%s::text[]) AS name JOIN pg_trigger ON tgrelid = to_regclass(name)"
        " WHERE tgname LIKE %s"
    ),
    "mysql": (
        "SELECT TRIGGER_NAME, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS"
        " WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE %s"
    ),
    "sqlite": "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger' AND name LIKE %s",
}

Trigger = tuple[str, str]  # its name, and its table as the engine names it


def reconcile(using: str, **kwargs: Any) -> None:
    """Create what is missing and drop what is left over. Receiver of ``post_migrate``, which ``flush`` sends too, but
    without a plan."""
    connection: Any = connections[using]
    if "plan" not in kwargs:
        return
    missing, left_over = difference(using)
    quote = connection.ops.quote_name
    with transaction.atomic(using):
        for name, _ in left_over:
            run(connection, DROP.get(connection.vendor, "DROP TRIGGER {trigger}").format(trigger=quote(name)))
        for (name, _), model in missing.items():
            text = f"stale fencing token: the fence of {strip_quotes(model._meta.db_table)} must not fall"
            parts = {
                "trigger": quote(name),
                "table": quote(model._meta.db_table),
                "column": quote(_column(model)),
                "message": "'" + truncate_name(text, MYSQL_LONGEST_MESSAGE).replace("'", "''") + "'",
            }
            for statement in CREATE[connection.vendor]:
                run(connection, statement.format(**parts))


def difference(using: str) -> tuple[dict[Trigger, type[Model]], set[Trigger]]:
    """The triggers that are missing, each with its model, and those on tables of this project that no model wants."""
    connection = connections[using]
    if connection.vendor not in FIND:
        return {}, set()
    models = [each for each in apps.get_models(include_auto_created=True) if router.allow_migrate_model(using, each)]
    tables = {_table(using, model) for model in models}
    wanted = {
        (_name(model), _table(using, model)): model
        for model in models
        if getattr(model, "enforce_fence", False) and own_fence(model) is not None and _is_there(using, model)
    }
    parameters = [[*tables], PREFIX + "%"] if connection.vendor == "postgresql" else [PREFIX + "%"]
    rows = run(connection, FIND[connection.vendor], parameters)
    found = {(name, _same_case(using, table)) for name, table in rows}
    missing = {trigger: model for trigger, model in wanted.items() if trigger not in found}
    return missing, {trigger for trigger in found - wanted.keys() if trigger[1] in tables}


def _name(model: type[Model]) -> str:
    return PREFIX + names_digest(strip_quotes(model._meta.db_table), _column(model), length=12)


def _column(model: type[Model]) -> str:
    field: Any = own_fence(model)
    return str(field.column)


def _table(using: str, model: type[Model]) -> str:
    """As FIND gives it: PostgreSQL takes the quoted name, which may have a schema."""
    name, connection = model._meta.db_table, connections[using]
    quoted = connection.vendor == "postgresql"
    return _same_case(using, connection.ops.quote_name(name) if quoted else strip_quotes(name))


def _same_case(using: str, table: str) -> str:
    return table.lower() if connections[using].features.ignores_table_name_case else table


def _is_there(using: str, model: type[Model]) -> bool:
    """Are the table and the column migrated already?"""
    quote = connections[using].ops.quote_name
    table, column = quote(model._meta.db_table), quote(_column(model))
    try:
        with transaction.atomic(using):
            run(connections[using], f"SELECT {table}.{column} FROM {table} WHERE 1 = 0")  # noqa: S608 - quoted
    except DatabaseError:
        return False
    return True
