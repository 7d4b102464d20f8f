"""EnforceFence and RelaxFence, and the trigger that refuses to lower a fence.

https://www.postgresql.org/docs/current/sql-createtrigger.html
https://dev.mysql.com/doc/refman/8.4/en/create-trigger.html
https://sqlite.org/lang_createtrigger.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import NotSupportedError, models, router
from django.db.backends.utils import names_digest, strip_quotes, truncate_name
from django.db.migrations.operations.base import Operation, OperationCategory

from django_distlock.data.timeouts import run

from .tokens import FENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor as Editor
    from django.db.migrations.state import ProjectState as State

PREFIX = "distlock_fence_"
MYSQL_LONGEST_MESSAGE = 128  # characters of MESSAGE_TEXT
# ER_CHECK_CONSTRAINT_VIOLATED, for Django an IntegrityError, as the triggers of the other two raise.
MYSQL_ERROR = 3819

PG_FUNCTION = """CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $distlock$
BEGIN
  RAISE EXCEPTION 'stale fencing token: the {field} of % must not fall', TG_TABLE_NAME
    USING ERRCODE = 'integrity_constraint_violation', SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME,
          CONSTRAINT = TG_NAME;
END $distlock$"""
PG_TRIGGER = (
    "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({lower}) EXECUTE FUNCTION {function}()"
)
MYSQL_TRIGGER = (
    "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW "
    "IF {lower} THEN SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = {error}, MESSAGE_TEXT = {message}; END IF"
)
SQLITE_TRIGGER = (
    "CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW WHEN {lower} "
    "BEGIN SELECT RAISE(ABORT, {message}); END"
)
_CREATE = {"postgresql": (PG_FUNCTION, PG_TRIGGER), "mysql": (MYSQL_TRIGGER,), "sqlite": (SQLITE_TRIGGER,)}
# The triggers of this package on a table, with definitions: a trigger keeps its name if table or column are renamed.
FIND = {
    "postgresql": (
        "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname LIKE %s"
    ),
    "mysql": (
        "SELECT TRIGGER_NAME, ACTION_STATEMENT FROM information_schema.TRIGGERS "
        "WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = %s AND TRIGGER_NAME LIKE %s"
    ),
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s AND name LIKE %s",
}
# A renamed table keeps the function with its old name, and a new table of that name uses the same one.
PG_ELSEWHERE = (
    "SELECT proname FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid "
    "WHERE tgrelid IS DISTINCT FROM to_regclass(%s) AND proname LIKE %s"
)
VENDORS = tuple(FIND)
# The first column that a definition names: NEW."fence", new.fence, NEW.`fence`
COLUMN = re.compile(r"""\bnew\.("(?:[^"]|"")+"|`(?:[^`]|``)+`|\w+)""", re.IGNORECASE)


class EnforceFence(Operation):
    """Make the database refuse every UPDATE that lowers the fence of a row.

    A trigger on PostgreSQL, MySQL, MariaDB and SQLite; NotSupportedError elsewhere. It raises an IntegrityError whose
    message names the fence. An UPDATE that leaves the fence as it is passes: a trigger cannot see whether a statement
    has named a column. ``field`` is an integer field of the model's own table. MySQL with a binary log wants SUPER or
    ``log_bin_trust_function_creators``: https://dev.mysql.com/doc/refman/8.4/en/stored-programs-logging.html
    """

    reversible = True
    category = OperationCategory.ADDITION

    def __init__(self, model_name: str, field: str = FENCE) -> None:
        for argument, value in (("model_name", model_name), ("field", field)):
            if not isinstance(value, str):
                raise TypeError(f"{argument} must be a str, not {type(value).__name__}.")
            if not value.isidentifier():
                raise ValueError(f"{argument} must be the name of a model or field without its app, not {value!r}.")
        self.model_name = model_name
        self.field = field

    def state_forwards(self, app_label: str, state: State) -> None:
        """Leave the state alone: it has no triggers."""

    def database_forwards(self, app_label: str, schema_editor: Editor, from_state: State, to_state: State) -> None:
        self._execute(FenceTrigger.create, app_label, schema_editor, to_state)

    def database_backwards(self, app_label: str, schema_editor: Editor, from_state: State, to_state: State) -> None:
        self._execute(FenceTrigger.drop, app_label, schema_editor, to_state)

    def _execute(
        self, statements: Callable[[FenceTrigger, Editor], list[str]], app_label: str, editor: Editor, state: State
    ) -> None:
        model = state.apps.get_model(app_label, self.model_name)
        connection = editor.connection
        if not router.allow_migrate_model(connection.alias, model):
            return
        if connection.vendor not in VENDORS:
            raise NotSupportedError(f"{type(self).__name__} has no trigger for {connection.vendor}.")
        for statement in statements(trigger_of(model, self.field), editor):
            editor.execute(statement, params=None)

    def describe(self) -> str:
        return f"Refuse to lower {self.field} of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"enforce_{self.model_name.lower()}_{self.field.lower()}"

    def references_model(self, name: str, app_label: str) -> bool:
        return name.lower() == self.model_name.lower()

    def references_field(self, model_name: str, name: str, app_label: str) -> bool:
        return self.references_model(model_name, app_label) and name.lower() == self.field.lower()


class RelaxFence(EnforceFence):
    """Undo :class:`EnforceFence`, before the field or its parent class is removed. Its reverse creates the trigger."""

    category = OperationCategory.REMOVAL

    def database_forwards(self, *args: Any) -> None:
        super().database_backwards(*args)

    def database_backwards(self, *args: Any) -> None:
        super().database_forwards(*args)

    def describe(self) -> str:
        return f"No longer refuse to lower {self.field} of {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"relax_{self.model_name.lower()}_{self.field.lower()}"


def trigger_of(model: type[models.Model], name: str) -> FenceTrigger:
    """The trigger of this field; ValueError if it cannot have one."""
    field = model._meta.get_field(name)
    if not isinstance(field, models.IntegerField):
        raise ValueError(f"EnforceFence: {name} of {model.__name__} is no integer field.")
    if field.model._meta.concrete_model is not model._meta.concrete_model:
        raise ValueError(f"EnforceFence: {name} is a field of {field.model.__name__}; name that model.")
    return FenceTrigger(model._meta.db_table, str(field.column))


@dataclass(frozen=True)
class FenceTrigger:
    """The trigger of one column."""

    table: str
    column: str

    @property
    def name(self) -> str:
        """The name of a new trigger."""
        return PREFIX + names_digest(strip_quotes(self.table), self.column, length=12)

    def create(self, editor: Editor) -> list[str]:
        quote = editor.quote_name
        column = quote(self.column)
        parts = {
            "trigger": quote(self.name),
            "function": quote(self.name),
            "table": quote(self.table),
            "lower": f"NEW.{column} < OLD.{column} OR (NEW.{column} IS NULL AND OLD.{column} IS NOT NULL)",
            "field": self.column.replace("%", "%%").replace("'", "''"),
            "message": self._message(),
            "error": MYSQL_ERROR,
        }
        statements = _CREATE[editor.connection.vendor]
        return [*self.drop(editor), *(statement.format(**parts) for statement in statements)]

    def drop(self, editor: Editor) -> list[str]:
        """Statements that drop it under any name, and triggers whose column is gone."""
        quote, names = editor.quote_name, dict.fromkeys([self.name, *self._mine(editor.connection)])
        if editor.connection.vendor != "postgresql":
            return [f"DROP TRIGGER IF EXISTS {quote(name)}" for name in names]
        elsewhere = {name for (name,) in run(editor.connection, PG_ELSEWHERE, [quote(self.table), PREFIX + "%"])}
        return [
            *(f"DROP TRIGGER IF EXISTS {quote(name)} ON {quote(self.table)}" for name in names),
            *(f"DROP FUNCTION IF EXISTS {quote(name)}()" for name in names if name not in elsewhere),
        ]

    def works(self, connection: BaseDatabaseWrapper) -> bool:
        """Is there a trigger on this column?"""
        return self.column in self._found(connection).values()

    def _mine(self, connection: BaseDatabaseWrapper) -> list[str]:
        found = self._found(connection)
        gone: set[str] = set()
        if connection.vendor == "mysql" and found:  # keeps the old name of a renamed column, and then no UPDATE works
            with connection.cursor() as cursor:
                columns = connection.introspection.get_table_description(cursor, strip_quotes(self.table))
            gone = {*found.values()} - {column.name for column in columns}
        return [name for name, column in found.items() if column in {self.column, *gone}]

    def _found(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """The triggers of this table by name, each with its column."""
        quoted = connection.vendor == "postgresql"
        table = connection.ops.quote_name(self.table) if quoted else strip_quotes(self.table)
        found = run(connection, FIND[connection.vendor], [table, PREFIX + "%"])
        return {name: column_of(definition) for name, definition in found}

    def _message(self) -> str:
        text = f"stale fencing token: the {self.column} of {strip_quotes(self.table)} must not fall"
        return "'" + truncate_name(text, MYSQL_LONGEST_MESSAGE).replace("'", "''") + "'"


def column_of(definition: str) -> str:
    found = COLUMN.search(definition)
    if found is None:
        return ""
    quote = found[1][0]
    return found[1][1:-1].replace(quote * 2, quote) if quote in '"`' else found[1]
