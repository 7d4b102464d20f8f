"""LOCK TABLES of MySQL and MariaDB: https://dev.mysql.com/doc/refman/8.4/en/lock-tables.html

LOCK TABLES commits an open transaction, and START TRANSACTION or BEGIN drop its locks without an error (measured). So
the block is a durable ``atomic()``: Django sends no BEGIN inside it, and an inner ``atomic()`` is a savepoint.

No statement of the block may end that transaction, and what a statement does its text does not show. The server does,
at the end of the block: a savepoint ends with its transaction. UNLOCK TABLES, BEGIN and LOCK TABLES, which drop the
locks, commit first and so end it too (measured with MariaDB 10.11).
https://dev.mysql.com/doc/refman/8.4/en/implicit-commit.html
"""

from __future__ import annotations

import re
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

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

SAVEPOINT = "distlock_block"
NO_SAVEPOINT = 1305  # ER_SP_DOES_NOT_EXIST
# ER_TABLE_NOT_LOCKED, ER_TABLE_NOT_LOCKED_FOR_WRITE, and what to do
CURES = {
    1100: "Inside table_lock every table and alias must be locked: name its model in table_lock(...), or the alias in "
    "aliases={Model: [...]}.",
    1099: "It is locked for reading only, by table_lock or by the server for a foreign key: name its model in "
    "write=[...].",
}
# Statements that say by their first words that they would unlock the tables or commit. Others are told at the end.
ENDS = re.compile(
    r"\s*(START\s+TRANSACTION|BEGIN|COMMIT|UNLOCK|LOCK|ALTER|TRUNCATE|RENAME|SET\s+(@@)?(SESSION[\s.]+)?AUTOCOMMIT)\b",
    re.IGNORECASE,
)
ENDED = (
    "Something inside table_lock has ended its transaction, and perhaps unlocked the tables: what the block had "
    "written until then is committed (after a rollback or a deadlock: gone), what it wrote later is rolled back. Do "
    "that before the block or after it."
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
    unlock = stack.enter_context(ExitStack())
    unlock.callback(_unlock, connection)
    stack.enter_context(transaction.atomic(using=connection.alias, durable=True))
    transaction.on_commit(unlock.close, using=connection.alias)  # the first hook: before those of the block
    with lock_errors(connection, described(tables), timeout), wait_limit(connection, timeout):
        run(connection, statement(connection, tables))
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
    except BaseException as error:  # also Ctrl-C before it was sent: a persistent connection would keep the tables
        connection.close()
        if not isinstance(error, Error):
            raise


@contextmanager
def guarded(connection: Any) -> Iterator[None]:
    """Guard the block, which begins right after LOCK TABLES.

    LockLost at its end if anything has ended its transaction. If the block fails, its error is raised, and that message
    becomes a note of it.
    """
    raw = connection.connection
    _send(connection, connection.ops.savepoint_create_sql(SAVEPOINT))
    try:
        with connection.execute_wrapper(_explained):
            yield
    except BaseException as error:
        if not isinstance(error, LockLost) and connection.connection is raw:
            with suppress(Error):
                if _ended(connection):
                    error.add_note(ENDED)
        raise
    if _ended(connection):
        raise LockLost(ENDED)


def _ended(connection: Any) -> bool:
    """Is the savepoint gone, and the transaction with it?"""
    try:
        _send(connection, connection.ops.savepoint_commit_sql(SAVEPOINT))
    except Error as error:
        if code_of(error) != NO_SAVEPOINT:
            raise
        return True
    return False


def _send(connection: Any, sql: str) -> None:
    """Send it past the wrappers, and past Django's refusal of statements before a rollback."""
    with connection.wrap_database_errors, closing(connection.create_cursor()) as cursor:
        cursor.execute(sql)


def _explained(execute: Callable[..., Any], sql: Any, *rest: Any) -> Any:
    """Execute wrapper of the block: refuse what plainly ends it, and say how to use a table that is not locked."""
    if ENDS.match(str(sql)):
        shown = repr(str(sql).strip()[:40])
        raise UnsupportedOperation(f"{shown} inside table_lock would unlock the tables or end its transaction.")
    try:
        return execute(sql, *rest)
    except Error as error:
        if (code := code_of(error)) not in CURES:
            raise
        raise LockNotHeld(f"{error.args[-1]}. {CURES[code]}") from error
