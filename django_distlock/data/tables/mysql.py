"""LOCK TABLES of MySQL and MariaDB: https://dev.mysql.com/doc/refman/8.4/en/lock-tables.html

LOCK TABLES commits an open transaction, and START TRANSACTION or BEGIN drop its locks without an error (measured). So
the block is a durable ``atomic()``: Django sends no BEGIN inside it, and an inner ``atomic()`` is a savepoint.

The statements of the block must not end that transaction, nor use tables that are not locked. The text of a statement
does not show that it commits: comments, procedures, prepared statements and DDL may. The server shows it: a savepoint
ends with its transaction. UNLOCK TABLES, BEGIN and LOCK TABLES, which drop the locks, commit first and so end it too
(measured with MariaDB 10.11). https://dev.mysql.com/doc/refman/8.4/en/implicit-commit.html
"""

from __future__ import annotations

import re
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import Error, transaction

from django_distlock.data.errors import code_of, lock_errors
from django_distlock.data.timeouts import run, wait_limit
from django_distlock.exceptions import LockLost, LockNotHeld, UnsupportedOperation
from django_distlock.manager.open_transactions import in_transaction

from .modes import TableLockMode, described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .modes import Table

# In the version of servers whose LOCK TABLES does nothing: https://vitess.io/docs/reference/compatibility/,
# https://docs.pingcap.com/tidb/stable/sql-statement-lock-tables-and-unlock-tables/
WITHOUT = re.compile("vitess|tidb", re.IGNORECASE)
# (database alias, host, port) -> is the server a node of Galera? Asked once per process.
_galera: dict[tuple[str, str, str], bool] = {}

BLOCK, STATEMENT = "distlock_block", "distlock_statement"
NO_SAVEPOINT = 1305  # ER_SP_DOES_NOT_EXIST
OUT_OF_SYNC = 2014  # CR_COMMANDS_OUT_OF_SYNC: the caller has not read all results of the statement yet
# ER_TABLE_NOT_LOCKED, ER_TABLE_NOT_LOCKED_FOR_WRITE
UNNAMED, READ_ONLY = 1100, 1099
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


def lock(stack: ExitStack, connection: Any, tables: Sequence[Table], timeout: float | None) -> None:
    """Begin a transaction with LOCK TABLES. UNLOCK TABLES follows its rollback, or its commit, before the on_commit
    hooks of the block."""
    if in_transaction(connection):
        raise UnsupportedOperation(
            "table_lock cannot be taken inside a transaction on MySQL and MariaDB: LOCK TABLES would commit it. Take "
            "it around atomic(), around a view under ATOMIC_REQUESTS as its decorator, in tests under "
            "TransactionTestCase."
        )
    refuse_server(connection)
    sql = statement(connection, tables)
    unlock = stack.enter_context(ExitStack())
    unlock.callback(_unlock, connection)
    stack.enter_context(transaction.atomic(using=connection.alias, durable=True))
    transaction.on_commit(unlock.close, using=connection.alias)  # the first hook: before those of the block
    with lock_errors(connection, described(tables), timeout), wait_limit(connection, timeout):
        run(connection, sql)
    stack.enter_context(guarded(connection))


def refuse_server(connection: Any) -> None:
    """UnsupportedOperation for servers on which LOCK TABLES excludes nothing, or nothing on other nodes."""
    version = str(connection.connection.get_server_info())
    settings = connection.settings_dict
    server = (connection.alias, str(settings["HOST"]), str(settings["PORT"]))
    if server not in _galera:
        # on a cursor of the driver: assertNumQueries must not count it
        with connection.wrap_database_errors, connection.connection.cursor() as cursor:
            cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
            _galera[server] = ("wsrep_on", "ON") in cursor.fetchall()
    if _galera[server] or WITHOUT.search(version):
        why = "is a Galera node (wsrep_on): other nodes know nothing of" if _galera[server] else "does nothing on"
        raise UnsupportedOperation(
            f"The server of the database {connection.alias!r} ({version}) {why} LOCK TABLES. Take an advisory_lock of "
            "leasetable.LeaseTableBackend around every writer instead."
        )


def statement(connection: Any, tables: Sequence[Table]) -> str:
    quote = connection.ops.quote_name
    names = []
    for table in tables:
        mode = "READ" if table.mode is TableLockMode.SHARE else "WRITE"
        names.append(f"{table.name} {mode}")
        names += [f"{table.name} AS {quote(alias)} {mode}" for alias in dict.fromkeys(table.aliases)]
    return f"LOCK TABLES {', '.join(names)}"


def _unlock(connection: Any) -> None:
    """Send UNLOCK TABLES. If that fails, the connection is closed, which unlocks as well."""
    if connection.connection is None:
        return
    try:
        run(connection, "UNLOCK TABLES")
    except Error:
        connection.close()


@contextmanager
def guarded(connection: Any) -> Iterator[None]:
    """Guard the block, which begins right after LOCK TABLES.

    LockLost at its end if anything has ended its transaction, also past Django's cursors. If the block fails, its error
    is raised, and that message becomes a note of it.
    """
    guard, raw = Guard(connection), connection.connection
    try:
        with connection.execute_wrapper(guard):
            yield
    except BaseException as error:
        if not isinstance(error, LockLost) and connection.connection is raw:
            with suppress(Error):
                try:
                    guard.finish()
                except LockLost as lost:
                    error.add_note(str(lost))
        raise
    guard.finish()


class Guard:
    """Execute wrapper of the block: refuses statements that would end its transaction, and reports one that did."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.lost: str | None = None
        self._send(connection.ops.savepoint_create_sql(BLOCK))

    def __call__(self, execute: Callable[..., Any], sql: Any, *rest: Any) -> Any:
        text = str(sql)
        shown = repr(text.strip()[:40])
        if ENDS.match(text):
            raise UnsupportedOperation(f"{shown} inside table_lock would unlock the tables or end its transaction.")
        asked = not HARMLESS.fullmatch(text)
        if asked:
            self._send(self.connection.ops.savepoint_create_sql(STATEMENT))
        try:
            result = execute(sql, *rest)
        except Error as error:
            if asked:
                with suppress(Error):
                    self._check(STATEMENT, shown)  # CREATE TABLE commits, and may fail then
            if code_of(error) in (UNNAMED, READ_ONLY):
                raise not_locked(error, text) from error
            raise
        if asked:
            self._check(STATEMENT, shown)
        return result

    def finish(self) -> None:
        """LockLost if the transaction of the block has ended."""
        if self.lost is not None:
            raise LockLost(self.lost)
        self._check(BLOCK, "Something")

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

    def _send(self, sql: str) -> None:
        """Send it past this guard, and past Django's refusal of statements before a rollback."""
        with self.connection.wrap_database_errors, closing(self.connection.create_cursor()) as cursor:
            cursor.execute(sql)


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
    found = re.search(rf"`((?:[^`]|``)+)`\s+(?:AS\s+)?`?{re.escape(name)}`?(?![\w`.])", sql, re.IGNORECASE)
    if found is None or found[1] == name:
        return LockNotHeld(
            f"The table {name!r} is used inside table_lock and not locked: name {model_named(name)} in table_lock(...)."
        )
    return LockNotHeld(
        f"The alias {name!r} of the table {found[1]!r} is used inside table_lock and not locked: add "
        f"aliases={{{model_named(found[1])}: [{name!r}]}}, and the model if it is not named yet."
    )


def model_named(table: str) -> str:
    """The model of a table, as code refers to it."""
    for model in apps.get_models(include_auto_created=True):
        if model._meta.proxy or model._meta.db_table.strip("`") != table:
            continue
        owner: Any = model._meta.auto_created
        fields = owner._meta.local_many_to_many if owner else ()
        names = (f"{owner.__name__}.{field.name}.through" for field in fields if field.remote_field.through is model)
        return next(names, model.__name__)
    return "its model"
