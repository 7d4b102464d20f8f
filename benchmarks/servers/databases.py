"""The database servers: PostgreSQL, MariaDB or MySQL, and SQLite, which is none."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.servers.base import DatabaseServer
from benchmarks.servers.processes import all_pids, command, parent

if TYPE_CHECKING:
    from MySQLdb.connections import Connection as MySQLConnection
    from psycopg import Connection as PostgresConnection


class Postgres(DatabaseServer):
    """PostgreSQL: one process per session, all children of one postmaster."""

    alias = lock_alias = "postgres"

    @classmethod
    def connect(cls) -> PostgresConnection[tuple[Any, ...]]:
        """Connect outside Django with the parameters of the alias."""
        import psycopg

        params = cls.params()
        return psycopg.connect(
            host=params["HOST"],
            port=params["PORT"],
            user=params["USER"],
            password=params["PASSWORD"],
            dbname=params["NAME"],
            autocommit=True,
        )

    @classmethod
    def version(cls) -> str:
        """Return the first words of version()."""
        with cls.connect() as connection:
            return f"PostgreSQL {connection.info.parameter_status('server_version')}"

    @classmethod
    def pids(cls) -> list[int]:
        """Return the postmaster and every child it has now."""
        with cls.connect() as connection:
            backend = connection.info.backend_pid
            if command(backend) != "postgres":
                return []
            postmaster = parent(backend)
        return [postmaster, *(pid for pid in all_pids() if parent(pid) == postmaster)]


class MariaDB(DatabaseServer):
    """MariaDB or MySQL: one process with a thread per session."""

    alias = "mariadb"
    lock_alias = "mysql"

    @classmethod
    def connect(cls) -> MySQLConnection:
        """Connect outside Django with the parameters of the alias."""
        import MySQLdb

        params = cls.params()
        return MySQLdb.connect(
            host=params["HOST"],
            port=int(params["PORT"]),
            user=params["USER"],
            password=params["PASSWORD"],
            database=params["NAME"],
            autocommit=True,
        )

    @classmethod
    def version(cls) -> str:
        """Return the server's own version string."""
        return f"MariaDB {cls._query('SELECT VERSION()')[0][0]}"

    @classmethod
    def pids(cls) -> list[int]:
        """Read the pid from the file that the server names, if that process is a server of this machine."""
        pid_file = Path(cls._query("SELECT @@pid_file")[0][0])
        if not pid_file.is_absolute():
            pid_file = Path(cls._query("SELECT @@datadir")[0][0]) / pid_file
        with contextlib.suppress(OSError, ValueError):
            pid = int(pid_file.read_text())
            if command(pid) in {"mariadbd", "mysqld"}:
                return [pid]
        return []

    @classmethod
    def _query(cls, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(cls.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


class SQLite(DatabaseServer):
    """SQLite: no server; a session is an open file."""

    alias = "default"
    lock_alias = "leasetable"
    embedded = True

    @classmethod
    def connect(cls) -> sqlite3.Connection:
        """Open a file of the benchmark's own beside the database: WAL, autocommit, no busy handler."""
        connection = sqlite3.connect(f"{cls.params()['NAME']}-bare", timeout=0, isolation_level=None)
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA busy_timeout = 0")
        return connection

    @classmethod
    def version(cls) -> str:
        """Return the library's version."""
        return f"SQLite {sqlite3.sqlite_version}"

    @classmethod
    def pids(cls) -> list[int]:
        """Return nothing: the engine runs in this process."""
        return []
