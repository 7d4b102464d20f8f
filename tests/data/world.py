"""Databases, rows to lock and to fence, and what the server itself says of locks and of those who wait."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.test import RequestFactory

from tests.conftest import eventually
from tests.data.app.models import Account, CashRegister, Register
from tests.faults.server import is_mariadb, statement_limit
from tests.transactions.rows import server_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import QuerySet

DATABASES = ("default", "postgres", "mariadb")
everywhere = pytest.mark.parametrize("using", DATABASES)
on_servers = pytest.mark.parametrize("using", DATABASES[1:])
EARLY, LATE = 5, 6  # the tokens of two holders, one after the other

PG_HELD = """
SELECT relation::regclass::text, mode FROM pg_locks
WHERE locktype = 'relation' AND granted AND pid = %s AND relation >= 16384
"""
MARIADB_HELD = """
SELECT TABLE_NAME, LOCK_MODE FROM information_schema.METADATA_LOCK_INFO
WHERE THREAD_ID = %s AND LOCK_TYPE = 'Table metadata lock'
"""
MYSQL_HELD = """
SELECT m.OBJECT_NAME, CONCAT('MDL_', m.LOCK_TYPE) FROM performance_schema.metadata_locks m
JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID
WHERE t.PROCESSLIST_ID = %s AND m.OBJECT_TYPE = 'TABLE' AND m.LOCK_STATUS = 'GRANTED' AND m.OBJECT_SCHEMA = DATABASE()
"""
WAITING = {
    "postgres": "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database AND datname = current_database() "
    "WHERE NOT granted",
    "mariadb": "SELECT count(*) FROM information_schema.PROCESSLIST "
    "WHERE STATE LIKE 'Waiting for table %' AND DB = DATABASE()",
}


SNAPSHOTS = {
    "default": "SELECT 1",
    "postgres": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "mariadb": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}
ROW_WAITS = {
    "postgres": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    # INNODB_LOCK_WAITS is a copy that is renewed only when nobody has looked for 0.1 s
    "mariadb": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
}


@contextmanager
def another(using: str) -> Iterator[Any]:
    """A second connection, in autocommit."""
    connection = connections[using].copy()
    try:
        yield connection
    finally:
        connection.close()


def ask(connection: Any, sql: str, *parameters: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else None


def run(using: str, sql: str, *parameters: Any) -> Any:
    return ask(connections[using], sql, *parameters)


@contextmanager
def sent(using: str) -> Iterator[list[str]]:
    """The statements that went to the database, those of transactions included."""
    texts: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        texts.append(sql)
        return execute(sql, *rest)

    with connections[using].execute_wrapper(note):
        yield texts


def somebody_waits_for_a_row(using: str) -> None:
    eventually(lambda: int(run(using, ROW_WAITS[using])[0][-1]) > 0, "nobody waits")


def keep_snapshots(using: str) -> None:
    """From here on a transaction of this session sees what was there at its first read, and compares with that."""
    if using == "mariadb" and not is_mariadb():
        pytest.skip("Oracle's MySQL locks what is there now")
    if using == "mariadb":
        run(using, "SET SESSION innodb_snapshot_isolation = ON")
    run(using, SNAPSHOTS[using])
    if using == "default":  # fresh() makes a new connection for the next test
        connections[using].transaction_mode = None


def accounts(using: str, *balances: int) -> list[int]:
    """The primary keys of new accounts."""
    return [Account.objects.using(using).create(owner=f"owner {n}", balance=b).pk for n, b in enumerate(balances)]


def rows_of(using: str, pks: list[int]) -> QuerySet[Account]:
    return Account.objects.using(using).filter(pk__in=pks)


def balances(using: str) -> list[int]:
    return list(Account.objects.using(using).order_by("pk").values_list("balance", flat=True))


def rows(using: str) -> Any:
    return Register.objects.using(using)


def tills(using: str) -> Any:
    """A model whose fence is in the table of its parent."""
    return CashRegister.objects.using(using)


def register(using: str, fence: int = 0, balance: int = 0, owner: str = "ann") -> Any:
    return rows(using).create(owner=owner, balance=balance, fence=fence)


def till(using: str, fence: int = 0, drawer: int = 0) -> Any:
    return tills(using).create(owner="ann", drawer=drawer, fence=fence)


def stored(row: Any) -> tuple[int, int]:
    """Balance and fence as the database has them."""
    found: tuple[int, int] = type(row)._base_manager.using(row._state.db).values_list("balance", "fence").get(pk=row.pk)
    return found


def held(using: str) -> set[tuple[str, str]]:
    """(table, mode) of the table locks of this process's session."""
    sql = PG_HELD if using == "postgres" else MARIADB_HELD if is_mariadb() else MYSQL_HELD
    number = server_id(using)
    with another(using) as connection:
        return set(ask(connection, sql, number))


def limits(using: str) -> Any:
    """Every limit on a wait that the session has."""
    if using == "mariadb":
        return run(using, f"SELECT @@lock_wait_timeout, @@innodb_lock_wait_timeout, @@{statement_limit(0)[0]}")
    return run(
        using,
        "PRAGMA busy_timeout"
        if using == "default"
        else "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')",
    )


def odd_limits(using: str) -> Any:
    """Give the session limits that are nobody's default."""
    odd = {
        "postgres": "SET lock_timeout = '1d'; SET statement_timeout = '90min'",
        "mariadb": "SET SESSION lock_wait_timeout = 86400, SESSION innodb_lock_wait_timeout = 86399, SESSION {} = {}",
        "default": "PRAGMA busy_timeout = 123",
    }
    run(using, odd[using].format(*statement_limit(3.000001)) if using == "mariadb" else odd[using])
    return limits(using)


@contextmanager
def when_somebody_waits(using: str, action: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """Do ``action`` in a thread as soon as the server says that somebody waits for a lock."""

    def watch() -> None:
        with another(using) as connection:
            eventually(lambda: ask(connection, WAITING[using])[0][0] > 0, "nobody waits")
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def repeatable(using: str) -> Iterator[Any]:
    """The name of an alias whose transactions are REPEATABLE READ."""
    from psycopg import IsolationLevel

    connection = connections[using].copy("repeatable")
    level = IsolationLevel.REPEATABLE_READ if using == "postgres" else "repeatable read"
    connection.settings_dict["OPTIONS"]["isolation_level"] = level
    connections["repeatable"] = connection
    try:
        yield "repeatable"
    finally:
        connection.close()
        del connections["repeatable"]


def respond(view: Any, query: str = "", **arguments: Any) -> Any:
    """What a view answers that the resolver has found: with the transaction of the request, if there is one."""
    request: Any = RequestFactory().get(f"/?{query}")
    request.resolver_match = SimpleNamespace(func=view)
    return BaseHandler().make_view_atomic(view)(request, **arguments)
