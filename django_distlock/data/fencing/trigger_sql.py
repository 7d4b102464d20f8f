"""The trigger that refuses to lower a fence, for each engine.

https://www.postgresql.org/docs/current/sql-createtrigger.html
https://dev.mysql.com/doc/refman/8.4/en/create-trigger.html
https://sqlite.org/lang_createtrigger.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.backends.utils import names_digest, strip_quotes, truncate_name

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor

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
MYSQL_HAS_COLUMN = (
    "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s AND COLUMN_NAME = %s"
)
# A renamed table keeps the function with its old name, and a new table of that name uses the same one.
PG_ELSEWHERE = (
    "SELECT proname FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid "
    "WHERE tgrelid IS DISTINCT FROM to_regclass(%s) AND proname LIKE %s"
)
VENDORS = tuple(FIND)
# The first column that a definition names: NEW."fence", new.fence, NEW.`fence`
COLUMN = re.compile(r"""\bnew\.("(?:[^"]|"")+"|`(?:[^`]|``)+`|\w+)""", re.IGNORECASE)


@dataclass(frozen=True)
class FenceTrigger:
    """The trigger of one column."""

    table: str
    column: str

    @property
    def name(self) -> str:
        """The name of a new trigger."""
        return PREFIX + names_digest(strip_quotes(self.table), self.column, length=12)

    def create(self, editor: BaseDatabaseSchemaEditor) -> list[str]:
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

    def drop(self, editor: BaseDatabaseSchemaEditor) -> list[str]:
        """Statements that drop it under any name, and triggers whose column is gone."""
        quote, names = editor.quote_name, dict.fromkeys([self.name, *self._mine(editor.connection)])
        if editor.connection.vendor != "postgresql":
            return [f"DROP TRIGGER IF EXISTS {quote(name)}" for name in names]
        with editor.connection.cursor() as cursor:
            cursor.execute(PG_ELSEWHERE, [quote(self.table), PREFIX + "%"])
            elsewhere = {name for (name,) in cursor.fetchall()}
        return [
            *(f"DROP TRIGGER IF EXISTS {quote(name)} ON {quote(self.table)}" for name in names),
            *(f"DROP FUNCTION IF EXISTS {quote(name)}()" for name in names if name not in elsewhere),
        ]

    def works(self, connection: BaseDatabaseWrapper) -> bool:
        """Is there a trigger on this column?"""
        return self.column in self._found(connection).values()

    def _mine(self, connection: BaseDatabaseWrapper) -> list[str]:
        return [
            name
            for name, column in self._found(connection).items()
            if column == self.column or self._is_gone(connection, column)
        ]

    def _is_gone(self, connection: BaseDatabaseWrapper, column: str) -> bool:
        """Is the column of a trigger gone? MySQL keeps the old name of a renamed column, and then no UPDATE works."""
        if connection.vendor != "mysql":
            return False
        with connection.cursor() as cursor:
            cursor.execute(MYSQL_HAS_COLUMN, [strip_quotes(self.table), column])
            return cursor.fetchone() is None

    def _found(self, connection: BaseDatabaseWrapper) -> dict[str, str]:
        """The triggers of this table by name, each with its column."""
        quoted = connection.vendor == "postgresql"
        table = connection.ops.quote_name(self.table) if quoted else strip_quotes(self.table)
        with connection.cursor() as cursor:
            cursor.execute(FIND[connection.vendor], [table, PREFIX + "%"])
            return {name: column_of(definition) for name, definition in cursor.fetchall()}

    def _message(self) -> str:
        text = f"stale fencing token: the {self.column} of {strip_quotes(self.table)} must not fall"
        return "'" + truncate_name(text, MYSQL_LONGEST_MESSAGE).replace("'", "''") + "'"


def column_of(definition: str) -> str:
    found = COLUMN.search(definition)
    if found is None:
        return ""
    quote = found[1][0]
    return found[1][1:-1].replace(quote * 2, quote) if quote in '"`' else found[1]


_CREATE = {"postgresql": (PG_FUNCTION, PG_TRIGGER), "mysql": (MYSQL_TRIGGER,), "sqlite": (SQLITE_TRIGGER,)}
