"""Does the transaction of a table lock still run? https://dev.mysql.com/doc/refman/8.4/en/implicit-commit.html

The text of a statement cannot tell: comments, procedures, prepared statements and DDL commit too. The server can. A
savepoint ends with its transaction, whatever has ended that, and so do the locks that UNLOCK TABLES, BEGIN and LOCK
TABLES drop, because each of these commits first (measured with MariaDB 10.11).
"""

from __future__ import annotations

import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from django.db import Error

from django_distlock.data.errors import code_of
from django_distlock.exceptions import LockLost, UnsupportedOperation

from .mysql_names import NOT_LOCKED, not_locked

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK, STATEMENT = "distlock_block", "distlock_statement"
NO_SAVEPOINT = 1305  # ER_SP_DOES_NOT_EXIST
OUT_OF_SYNC = 2014  # CR_COMMANDS_OUT_OF_SYNC: the caller has not read all results of the statement yet

# What may stand before the first word.
SKIPPED = r"[\s;(]|--(?=\s|$)[^\n]*+|\#[^\n]*+|/\*(?!M?!).*?\*/"
# /*! and /*M! begin a comment that the server executes, unless the number says that it is too old.
LEAD = rf"(?:{SKIPPED}|/\*M?!\d*)*+"
# Refused before it is sent: it would unlock the tables or commit.
ENDS = re.compile(
    LEAD
    + r"""(?:START\s+TRANSACTION | BEGIN(?!\s+NOT\b) | COMMIT | ROLLBACK(?!\s+(?:WORK\s+)?TO\b)
    | UNLOCK\s+TABLES? | LOCK\s+TABLES? | SET\s+(?:@@)?(?:SESSION[\s.]+|LOCAL[\s.]+)?AUTOCOMMIT
    | CREATE(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b) | ALTER | DROP(?!\s+(?:TEMPORARY|PREPARE)\b) | TRUNCATE | RENAME
    | (?:ANALYZE|CHECK|OPTIMIZE|REPAIR)\s+(?:\w+\s+)?TABLES? | FLUSH | RESET | GRANT | REVOKE)\b""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
# One statement that cannot commit, nor can the functions and triggers that it calls (error 1422). All that the ORM
# sends; for any other the server is asked: /*!999999 SELECT */ COMMIT is a COMMIT.
HARMLESS = re.compile(
    rf"(?:{SKIPPED})*+"
    r"(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|SAVEPOINT|RELEASE|ROLLBACK|SHOW|EXPLAIN)\b[^;]*;?\s*",
    re.IGNORECASE | re.DOTALL,
)


class Guard:
    """Around each statement of the block: refuses what would end its transaction, and says so where one has."""

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
                    self._check(STATEMENT, _shown(text))  # CREATE TABLE commits first and fails then
            if code_of(error) in NOT_LOCKED:
                raise not_locked(error, text) from error
            raise
        if asked:
            self._check(STATEMENT, _shown(text))
        return result

    def finish(self) -> None:
        """LockLost if anything has ended the transaction: also what no statement of Django's cursors has sent."""
        if self.lost is not None:
            raise LockLost(self.lost)
        self._check(BLOCK, "Something")

    def finish_after(self, error: BaseException) -> None:
        """The block has failed by ``error``, which goes on; what has been committed all the same is its note."""
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
                return  # finish() will see it
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
        """Past this guard, and also where Django waits for a rollback."""
        with self.connection.wrap_database_errors, closing(self.connection.create_cursor()) as cursor:
            cursor.execute(sql)


def _shown(text: str) -> str:
    return repr(text.strip()[:40])
