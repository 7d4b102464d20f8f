"""The servers under test: how to connect to them, which processes they are and which sessions they see."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings

if TYPE_CHECKING:
    from MySQLdb.connections import Connection as MySQLConnection
    from psycopg import Connection as PostgresConnection

PROC = Path("/proc")


class Server(ABC):
    """One engine of the benchmark; ``alias`` is its name in DATABASES, ``lock_alias`` the one in DISTLOCK."""

    alias: ClassVar[str]
    lock_alias: ClassVar[str]
    embedded: ClassVar[bool] = False  # runs inside the client process

    @classmethod
    def params(cls) -> dict[str, Any]:
        """Return the settings of the alias, or say what is missing."""
        try:
            return settings.DATABASES[cls.alias]
        except KeyError:
            raise SystemExit(
                f'settings.DATABASES has no alias "{cls.alias}": start the private servers with `make services`'
            ) from None

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Return what the server says it is."""

    @classmethod
    @abstractmethod
    def pids(cls) -> list[int]:
        """Return the server's processes on this machine; empty if it runs elsewhere or inside this process."""

    @classmethod
    @abstractmethod
    def sessions_of(cls, pid: int) -> int:
        """Return how many sessions the process ``pid`` has, as the server sees it."""


class Postgres(Server):
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
            if _command(backend) != "postgres":
                return []
            postmaster = _parent(backend)
        return [postmaster, *(pid for pid in _all_pids() if _parent(pid) == postmaster)]

    @classmethod
    def sessions_of(cls, pid: int) -> int:
        """Match the client ports in pg_stat_activity with the sockets of the process."""
        with cls.connect() as connection:
            rows = connection.execute("SELECT client_port FROM pg_stat_activity WHERE client_port > 0").fetchall()
        return len({port for (port,) in rows} & local_ports(pid))


class MariaDB(Server):
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
            if _command(pid) in {"mariadbd", "mysqld"}:
                return [pid]
        return []

    @classmethod
    def sessions_of(cls, pid: int) -> int:
        """Match the client ports in the process list with the sockets of the process."""
        rows = cls._query("SELECT HOST FROM information_schema.PROCESSLIST")
        ports = {int(host.rpartition(":")[2]) for (host,) in rows if host.rpartition(":")[2].isdigit()}
        return len(ports & local_ports(pid))

    @classmethod
    def _query(cls, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(cls.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


class SQLite(Server):
    """SQLite: no server; a session is an open file."""

    alias = "default"
    lock_alias = "leasetable"
    embedded = True
    suffix = "-distlock"  # the lease table's file beside the database

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

    @classmethod
    def sessions_of(cls, pid: int) -> int:
        """Count how often the process has the lease file open."""
        return sum(target.endswith(cls.suffix) for target in _descriptors(pid))


class ZooKeeper(Server):
    """ZooKeeper: one Java process with a session per client."""

    alias = lock_alias = "zookeeper"

    @classmethod
    def address(cls) -> str:
        """Return host:port."""
        try:
            return str(settings.DISTLOCK[cls.lock_alias]["OPTIONS"]["hosts"])
        except KeyError:
            raise SystemExit(
                f'settings.DISTLOCK has no alias "{cls.lock_alias}": start the private servers with `make services`'
            ) from None

    @classmethod
    def connect(cls) -> Any:
        """Connect with kazoo's defaults."""
        from kazoo.client import KazooClient

        client = KazooClient(hosts=cls.address())
        client.start()
        return client

    @classmethod
    def version(cls) -> str:
        """Return the first words of the server's own statement."""
        return f"ZooKeeper {cls._said('srvr').partition(': ')[2].partition('-')[0]}"

    @classmethod
    def pids(cls) -> list[int]:
        """Return the Java processes that listen on the port."""
        port = int(cls.address().rpartition(":")[2])
        return [pid for pid in _all_pids() if _command(pid) == "java" and port in local_ports(pid)]

    @classmethod
    def sessions_of(cls, pid: int) -> int:
        """Match the client ports that the server lists with the sockets of the process."""
        listed = {line.partition("[")[0].rpartition(":")[2] for line in cls._said("cons").splitlines()}
        return len({int(port) for port in listed if port.isdigit()} & local_ports(pid))

    @classmethod
    def _said(cls, command: str) -> str:
        host, _, port = cls.address().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(command.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


SERVERS: dict[str, type[Server]] = {
    "postgres": Postgres,
    "mysql": MariaDB,
    "sqlite": SQLite,
    "zookeeper": ZooKeeper,
}


def local_ports(pid: int) -> set[int]:
    """Return the local TCP ports of a process, from the inodes of its sockets."""
    inodes = {target[8:-1] for target in _descriptors(pid) if target.startswith("socket:[")}
    ports = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _descriptors(pid: int) -> list[str]:
    targets = []
    with contextlib.suppress(OSError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                targets.append(os.readlink(descriptor))
    return targets


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "comm").read_text().strip()
    return ""


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0
