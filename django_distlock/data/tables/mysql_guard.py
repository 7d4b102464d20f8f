"""Watches the statements inside a table lock of MySQL and MariaDB: they must not end its transaction, nor use tables
that are not locked. https://dev.mysql.com/doc/refman/8.4/en/implicit-commit.html

The text of a statement does not show that it commits: comments, procedures, prepared statements and DDL may. The server
shows it: a savepoint ends with its transaction. UNLOCK TABLES, BEGIN and LOCK TABLES, which drop
the locks, commit first and so end it too (measured with MariaDB 10.11).
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import Error

from django_distlock.data.errors import code_of
from django_distlock.exceptions import LockLost, LockNotHeld, UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK, STATEMENT = "distlock_block", "distlock_statement"
NO_SAVEPOINT = 1305  # ER_SP_DOES_NOT_EXIST
OUT_OF_SYNC = 2014  # CR_COMMANDS_OUT_OF_SYNC: the caller has not read all results of the statement yet
# ER_TABLE_NOT_LOCKED, ER_TABLE_NOT_LOCKED_FOR_WRITE
UNNAMED, READ_ONLY = 1100, 1099
NOT_LOCKED = frozenset({UNNAMED, READ_ONLY})
QUOTED = re.compile(r"'(.*)' was ", re.DOTALL)

# What may precede the first word.
SKIPPED = r"[\s;(]|--(?=\s|$)[^\n]*+|\#[^\n]*+|/\*(?!M?!).*?\*/"
# /*! and /*M! begin a comment that the server executes, unless the number after it is a later version.
LEAD = rf"(?:{SKIPPED}|/\*M?!\d*)*+"
# Statements that are refused, because they would unlock the tables or commit.
ENDS = re.compile(
    LEAD
    + r"""(?:START\s+TRANSACTION | BEGIN(?!\s+NOT\b) | COMMIT | ROLLBACK(?!\s+(?:WORK\s+)?TO\b)
    | UNLOCK\s+TABLES? | LOCK\s+TABLES? | SET\s+(?:@@)?(?:SESSION[\s.]+|LOCAL[\s.]+)?AUTOCOMMIT
    | CREATE(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b) | ALTER | DROP(?!\s+(?:TEMPORARY|PREPARE)\b) | TRUNCATE | RENAME
    | (?:ANALYZE|CHECK|OPTIMIZE|REPAIR)\s+(?:\w+\s+)?TABLES? | FLUSH | RESET | GRANT | REVOKE)\b""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# A single statement that cannot commit, nor can the functions and triggers that it calls (error 1422): everything that
# the ORM sends. After any other the server is asked: /*!999999 SELECT */ COMMIT is a COMMIT.
HARMLESS = re.compile(
    rf"(?:{SKIPPED})*+"
    r"(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|SAVEPOINT|RELEASE|ROLLBACK|SHOW|EXPLAIN)\b[^;]*;?\s*",
    re.IGNORECASE | re.DOTALL,
)


class Guard:
    """Execute wrapper of the block: refuses statements that would end its transaction, and reports one that did."""

    def __init__(self, connection: Any) -> None:
        self.connection, self.raw = connection, connection.connection
        self.lost: str | None = None
        self._savepoint(BLOCK)

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        text = sql if isinstance(sql, str) else str(sql)
        if ENDS.match(text):
            raise UnsupportedOperation(
                f"{_shown(text)} inside table_lock would unlock the tables or end its transaction."
            )
        asked = not HARMLESS.fullmatch(text)
        if asked:
            self._savepoint(STATEMENT)
        try:
            result = execute(sql, params, many, context)
        except Error as error:
            if asked:
                with suppress(Error):
                    self._check(STATEMENT, _shown(text))  # CREATE TABLE commits, and may fail then
            if code_of(error) in NOT_LOCKED:
                raise not_locked(error, text) from error
            raise
        if asked:
            self._check(STATEMENT, _shown(text))
        return result

    def finish(self) -> None:
        """LockLost if anything has ended the transaction, also past Django's cursors."""
        if self.lost is not None:
            raise LockLost(self.lost)
        self._check(BLOCK, "Something")

    def finish_after(self, error: BaseException) -> None:
        """As :meth:`finish` after the block has failed: the message becomes a note of ``error``, which is raised."""
        if isinstance(error, LockLost) or self.connection.connection is not self.raw:
            return
        with suppress(Error):
            try:
                self.finish()
            except LockLost as lost:
                error.add_note(str(lost))

    def _check(self, savepoint: str, what: str) -> None:
        try:
            self._send(self.connection.ops.savepoint_commit_sql(savepoint))
        except Error as error:
            if code_of(error) == OUT_OF_SYNC:
                return  # finish() will notice it
            if code_of(error) != NO_SAVEPOINT:
                raise
            self.lost = (
                f"{what} inside table_lock has ended its transaction, and perhaps unlocked the tables: what the block "
                "had written until then is committed (after a rollback or a deadlock: gone), what it wrote later is "
                "rolled back. Do that before the block or after it."
            )
            self.connection.needs_rollback = True
            lost = self.connection.rollback_exc = LockLost(self.lost)
            raise lost from None

    def _savepoint(self, name: str) -> None:
        self._send(self.connection.ops.savepoint_create_sql(name))

    def _send(self, sql: str) -> None:
        """Send it past this guard, and past Django's refusal of statements before a rollback."""
        with self.connection.wrap_database_errors, closing(self.connection.create_cursor()) as cursor:
            cursor.execute(sql)


def _shown(text: str) -> str:
    return repr(text.strip()[:40])


def not_locked(error: Exception, sql: str) -> LockNotHeld:
    """The error for a table or an alias that is not locked. The server gives the name that the query uses, the query
    the table, and Django the model."""
    match = QUOTED.search(str(error.args[-1]))
    name = match[1] if match else "?"
    if error.args[0] == READ_ONLY:
        return LockNotHeld(
            f"The table {name!r} is locked for reading only, by table_lock or by the server for a foreign key: name "
            f"{model_named(name)} in write=[...]."
        )
    table = table_behind(name, sql)
    if table is None:
        return LockNotHeld(
            f"The table {name!r} is used inside table_lock and not locked: name {model_named(name)} in table_lock(...)."
        )
    return LockNotHeld(
        f"The alias {name!r} of the table {table!r} is used inside table_lock and not locked: add "
        f"aliases={{{model_named(table)}: [{name!r}]}}, and the model if it is not named yet."
    )


def table_behind(alias: str, sql: str) -> str | None:
    """The table whose alias in ``sql`` is ``alias``; None if it is the name of a table."""
    found = re.search(rf"`((?:[^`]|``)+)`\s+(?:AS\s+)?`?{re.escape(alias)}`?(?![\w`.])", sql, re.IGNORECASE)
    if found is None or found[1] == alias:
        return None
    return found[1]


def model_named(table: str) -> str:
    """The model of a table, as code refers to it."""
    for model in apps.get_models(include_auto_created=True):
        if model._meta.proxy or model._meta.db_table.strip("`") != table:
            continue
        owner: Any = model._meta.auto_created
        fields = owner._meta.local_many_to_many if owner else ()
        names = [f"{owner.__name__}.{field.name}.through" for field in fields if field.remote_field.through is model]
        return names[0] if names else model.__name__
    return "its model"
