"""Rows to lock, and what the server itself says of locks, of those who wait for them, and how long it lets them."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.apps.registry import Apps
from django.db import connections, models

from django_distlock.data import LockingManager
from tests.conftest import eventually
from tests.data.app.models import Account
from tests.faults.server import is_mariadb, statement_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import QuerySet

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


def accounts(using: str, *balances: int) -> list[int]:
    """New accounts, alone in their table; their primary keys."""
    Account.objects.using(using).all().delete()
    made = [Account.objects.using(using).create(owner=f"owner {n}", balance=b) for n, b in enumerate(balances)]
    return [account.pk for account in made]


def rows_of(using: str, pks: list[int]) -> QuerySet[Account]:
    return Account.objects.using(using).filter(pk__in=pks)


def balances(using: str) -> list[int]:
    return list(Account.objects.using(using).order_by("pk").values_list("balance", flat=True))


def held(using: str, session: int) -> set[tuple[str, str]]:
    """(table, mode) of the table locks of a session."""
    sql = PG_HELD if using == "postgres" else MARIADB_HELD if is_mariadb() else MYSQL_HELD
    with another(using) as connection:
        return set(ask(connection, sql, session))


def table_wait(using: str, timeout: float) -> float:
    """How long somebody waits for a table: for Oracle's MySQL whole seconds, one at least."""
    return max(1.0, math.ceil(timeout)) if using == "mariadb" and not is_mariadb() else timeout


def limits(using: str) -> str:
    """The statement that reads every limit on a wait that the session has."""
    if using == "mariadb":
        return f"SELECT @@lock_wait_timeout, @@innodb_lock_wait_timeout, @@{statement_limit(0)[0]}"
    return {
        "default": "PRAGMA busy_timeout",
        "postgres": "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')",
    }[using]


@contextmanager
def when_somebody_waits(using: str, action: Callable[[], Any]) -> Iterator[None]:
    """Do ``action`` in a thread as soon as the server says that somebody waits for a lock."""

    def run() -> None:
        with another(using) as connection:
            eventually(lambda: ask(connection, WAITING[using])[0][0] > 0, "nobody waits")
        action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def unmanaged(name: str, db_table: str) -> Any:
    """A model of a table that the test itself makes; to be called under isolate_apps."""
    meta = type("Meta", (), {"app_label": "dataapp", "db_table": db_table, "managed": False})
    return type(name, (models.Model,), {"Meta": meta, "__module__": __name__})


class Legacy(models.Model):
    """A table that a test makes, kept by MyISAM; unknown to the app, which has a table for each of its models."""

    amount = models.IntegerField(default=0)
    objects = LockingManager()

    class Meta:
        app_label = "legacy"
        apps = Apps()
        db_table = "dataapp_legacy"

    def __str__(self) -> str:
        return str(self.amount)


@contextmanager
def kept_by_myisam() -> Iterator[None]:
    run("mariadb", "CREATE TABLE dataapp_legacy (id integer PRIMARY KEY, amount integer NOT NULL) ENGINE=MyISAM")
    try:
        yield
    finally:
        run("mariadb", "DROP TABLE dataapp_legacy")
