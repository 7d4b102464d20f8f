"""LOCK TABLES of MySQL and MariaDB: https://dev.mysql.com/doc/refman/8.4/en/lock-tables.html

LOCK TABLES commits an open transaction, and START TRANSACTION or BEGIN drop its locks without an error (measured). So
the block is a durable ``atomic()``: Django sends no BEGIN inside it, and an inner ``atomic()`` is a savepoint.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django.db import Error, transaction

from django_distlock.data.errors import ensure_open, lock_errors
from django_distlock.data.timeouts import mysql_limits, wait_limit
from django_distlock.exceptions import UnsupportedOperation
from django_distlock.manager.open_transactions import in_transaction

from .modes import READING, WRITING
from .mysql_guard import Guard
from .targets import described

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .targets import Table

# In the version of servers whose LOCK TABLES does nothing: https://vitess.io/docs/reference/compatibility/,
# https://docs.pingcap.com/tidb/stable/sql-statement-lock-tables-and-unlock-tables/
WITHOUT = re.compile("vitess|tidb", re.IGNORECASE)
# (database alias, host, port) -> is the server a node of Galera? Asked once per process.
_galera: dict[tuple[str, str, str], bool] = {}


@contextmanager
def locked(connection: Any, tables: Sequence[Table], timeout: float | None) -> Iterator[None]:
    """Run the block in a transaction that begins with LOCK TABLES. UNLOCK TABLES follows its rollback, or its commit,
    before the on_commit hooks of the block."""
    if not connection.in_atomic_block:
        connection.ensure_connection()  # without a connection autocommit does not show an open transaction
    if in_transaction(connection):
        raise UnsupportedOperation(
            "table_lock cannot be taken inside a transaction on MySQL and MariaDB: LOCK TABLES would commit it. Take "
            "it around atomic(), around a view under ATOMIC_REQUESTS as its decorator, in tests under "
            "TransactionTestCase."
        )
    refuse_server(connection)
    sql = statement(connection, tables)
    unlock = _Unlock(connection)
    try:
        with transaction.atomic(using=connection.alias, durable=True):
            transaction.on_commit(unlock, using=connection.alias)  # the first hook: before those of the block
            with lock_errors(connection, described(tables), timeout):
                _lock(connection, sql, timeout)
            guard = Guard(connection)
            try:
                with connection.execute_wrapper(guard):
                    yield
            except BaseException as error:
                guard.finish_after(error)
                raise
            ensure_open(connection, guard.raw)
            guard.finish()
    finally:
        unlock()


def refuse_server(connection: Any) -> None:
    """UnsupportedOperation for servers on which LOCK TABLES excludes nothing, or nothing on other nodes."""
    connection.ensure_connection()
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
    if odd := [table for table in tables if table.mode not in READING | WRITING]:
        raise UnsupportedOperation(f"MySQL and MariaDB have no table lock like {odd[0].mode}; use read or write.")
    quote = connection.ops.quote_name
    names = []
    for table in tables:
        mode = "READ" if table.mode in READING else "WRITE"
        names.append(f"{table.name} {mode}")
        names += [f"{table.name} AS {quote(alias)} {mode}" for alias in dict.fromkeys(table.aliases)]
    return f"LOCK TABLES {', '.join(names)}"


def _lock(connection: Any, sql: str, timeout: float | None) -> None:
    if connection.mysql_is_mariadb:  # limits of this statement only: nothing to restore
        limits = ", ".join(f"{name} = {value}" for name, value in mysql_limits(connection, timeout).items())
        sql = f"SET STATEMENT {limits} FOR {sql}"
    limit = nullcontext() if connection.mysql_is_mariadb else wait_limit(connection, timeout)
    with limit, connection.cursor() as cursor:
        cursor.execute(sql)


class _Unlock:
    """Sends UNLOCK TABLES once. If that fails, the connection is closed, which unlocks as well."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.done = False

    def __call__(self) -> None:
        if self.done or self.connection.connection is None:
            return
        self.done = True
        try:
            with self.connection.cursor() as cursor:
                cursor.execute("UNLOCK TABLES")
        except Error:
            self.connection.close()
