"""The trigger that refuses to lower a fence, for each engine.

https://www.postgresql.org/docs/current/sql-createtrigger.html
https://dev.mysql.com/doc/refman/8.4/en/create-trigger.html
https://sqlite.org/lang_createtrigger.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.backends.utils import names_digest, strip_quotes, truncate_name

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor

PREFIX = "distlock_fence_"
MYSQL_LONGEST_MESSAGE = 128  # characters of MESSAGE_TEXT
# ER_CHECK_CONSTRAINT_VIOLATED, which Django knows as an IntegrityError: what the two others raise too.
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
EXISTS = {
    "postgresql": "SELECT 1 FROM pg_trigger WHERE tgname = %s AND tgrelid = %s::regclass",
    "mysql": (
        "SELECT 1 FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME = %s "
        "AND EVENT_OBJECT_TABLE = %s"
    ),
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = %s AND tbl_name = %s",
}
VENDORS = tuple(EXISTS)


@dataclass(frozen=True)
class FenceTrigger:
    """The trigger of one column. Its name follows from those of the table and the column."""

    table: str
    column: str

    @property
    def name(self) -> str:
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
        return [statement.format(**parts) for statement in _CREATE[editor.connection.vendor]]

    def drop(self, editor: BaseDatabaseSchemaEditor) -> list[str]:
        quote = editor.quote_name
        trigger = quote(self.name)
        if editor.connection.vendor != "postgresql":
            return [f"DROP TRIGGER IF EXISTS {trigger}"]
        return [f"DROP TRIGGER IF EXISTS {trigger} ON {quote(self.table)}", f"DROP FUNCTION IF EXISTS {trigger}()"]

    def exists(self, connection: BaseDatabaseWrapper) -> bool:
        table = strip_quotes(self.table)
        if connection.vendor == "postgresql":
            table = connection.ops.quote_name(self.table)
        with connection.cursor() as cursor:
            cursor.execute(EXISTS[connection.vendor], [self.name, table])
            return cursor.fetchone() is not None

    def _message(self) -> str:
        text = f"stale fencing token: the {self.column} of {strip_quotes(self.table)} must not fall"
        return "'" + truncate_name(text, MYSQL_LONGEST_MESSAGE).replace("'", "''") + "'"


_CREATE = {"postgresql": (PG_FUNCTION, PG_TRIGGER), "mysql": (MYSQL_TRIGGER,), "sqlite": (SQLITE_TRIGGER,)}
