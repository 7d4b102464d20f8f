"""Rows that tests write under a lock, in small tables of their own on every database."""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction

ALIASES = ("default", "postgres", "mariadb")
TABLES = {
    "distlock_written": "name varchar(600) NOT NULL",
    "distlock_parent": "id integer NOT NULL PRIMARY KEY",
}
# A constraint that is looked at by COMMIT and not before; MariaDB has none.
DEFERRED = "parent integer NOT NULL REFERENCES distlock_parent (id) DEFERRABLE INITIALLY DEFERRED"


def ask(alias: str, sql: Any, *parameters: Any) -> Any:
    """The first column of the first row, if there is one."""
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchone()[0] if cursor.description else None


def create() -> None:
    for alias in ALIASES:
        for table, columns in TABLES.items():
            ask(alias, f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        if alias != "mariadb":
            ask(alias, f"CREATE TABLE IF NOT EXISTS distlock_child ({DEFERRED})")


def write(alias: str, name: str) -> None:
    ask(alias, "INSERT INTO distlock_written VALUES (%s)", name)


def count(alias: str, name: str) -> int:
    return int(ask(alias, "SELECT count(*) FROM distlock_written WHERE name = %s", name))


def break_constraint(alias: str) -> None:
    """The COMMIT of the transaction will fail."""
    ask(alias, "INSERT INTO distlock_child VALUES (-1)")


def server_id(alias: str) -> int:
    """What the server calls the connection of this thread."""
    function = "pg_backend_pid" if connections[alias].vendor == "postgresql" else "CONNECTION_ID"
    return int(ask(alias, f"SELECT {function}()"))


def kill(alias: str, victim: int) -> None:
    """End the connection ``victim`` at the server; returns when it has gone."""
    connection = connections[alias].copy()
    try:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                # since PostgreSQL 14 it waits for the end itself, for that many milliseconds
                cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [victim])
                assert cursor.fetchone()[0]
            else:
                cursor.execute(f"KILL CONNECTION {victim}")
    finally:
        connection.close()


def clean() -> None:
    for alias in ALIASES:
        assert not connections[alias].in_atomic_block
        with transaction.atomic(alias):
            ask(alias, "DELETE FROM distlock_written")
