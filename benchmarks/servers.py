"""The servers under test: how to connect to them, what they say they are, and which processes they are."""

from __future__ import annotations

import contextlib
import functools
import socket
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
from django.conf import settings

from benchmarks.delays import delayed
from testproject.databases import services

if TYPE_CHECKING:
    from MySQLdb.connections import Connection as MySQLConnection
    from psycopg import Connection as PostgresConnection
    from redis import Redis as RedisClient


class Server:
    """One engine of the benchmark; ``lock_alias`` is its name in DISTLOCK, ``alias`` in DATABASES.

    ``version`` is what it says it is, ``pids`` are its processes on this machine: none if it runs elsewhere.
    """

    lock_alias: ClassVar[str]
    alias: ClassVar[str]
    embedded: ClassVar[bool] = False  # runs inside the client process
    parts: ClassVar[tuple[str, ...]] = ("uncontended", "contended")

    @classmethod
    def params(cls) -> dict[str, Any]:
        """Return the settings of the database, or say what is missing."""
        return known(settings.DATABASES, cls.alias)

    @classmethod
    def account(cls) -> dict[str, Any]:
        """Return what drivers want to know, under the names that they all have for it."""
        return {key.lower(): cls.params()[key] for key in ("HOST", "USER", "PASSWORD")} | {
            "port": int(cls.params()["PORT"])
        }


def known(servers: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one of the private servers, or say what is missing."""
    if name not in servers:
        raise SystemExit(f'there is no server "{name}": start the private servers with `make services`')
    return servers[name]


class Postgres(Server):
    """PostgreSQL: one process per session, all children of one postmaster."""

    alias = lock_alias = "postgres"

    @classmethod
    def connect(cls) -> PostgresConnection[tuple[Any, ...]]:
        """Connect outside Django with the parameters of the alias."""
        import psycopg

        return psycopg.connect(**cls.account(), dbname=cls.params()["NAME"], autocommit=True)

    @classmethod
    def version(cls) -> str:
        with cls.connect() as connection:
            return f"PostgreSQL {connection.info.parameter_status('server_version')}"

    @classmethod
    def pids(cls) -> list[int]:
        with cls.connect() as connection, contextlib.suppress(psutil.Error):
            backend = psutil.Process(connection.info.backend_pid)
            if backend.name() == "postgres" and (postmaster := backend.parent()):
                return [postmaster.pid, *(child.pid for child in postmaster.children())]
        return []


class MariaDB(Server):
    """MariaDB or MySQL: one process with a thread per session."""

    alias = "mariadb"
    lock_alias = "mysql"

    @classmethod
    def connect(cls) -> MySQLConnection:
        """Connect outside Django with the parameters of the alias."""
        import MySQLdb

        return MySQLdb.connect(**cls.account(), database=cls.params()["NAME"], autocommit=True)

    @classmethod
    def version(cls) -> str:
        return f"MariaDB {cls._ask('SELECT VERSION()')}"

    @classmethod
    def pids(cls) -> list[int]:
        """Read the pid from the file that the server names, if that process is a server of this machine."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            pid = int((Path(cls._ask("SELECT @@datadir")) / cls._ask("SELECT @@pid_file")).read_text())
            if psutil.Process(pid).name() in {"mariadbd", "mysqld"}:
                return [pid]
        return []

    @classmethod
    def _ask(cls, statement: str) -> str:
        with contextlib.closing(cls.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return str(cursor.fetchone()[0])


class SQLite(Server):
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
        return f"SQLite {sqlite3.sqlite_version}"

    @classmethod
    def pids(cls) -> list[int]:
        return []


class Redis(Server):
    """One Redis server: a single process."""

    lock_alias = "redis"
    nodes: ClassVar[tuple[str, ...]] = ("redis1",)

    @classmethod
    def addresses(cls) -> list[tuple[str, int]]:
        """Return host and port of every node."""
        return [(node["host"], int(node["port"])) for node in (known(services(), name) for name in cls.nodes)]

    @classmethod
    def urls(cls) -> list[str]:
        """Return a redis:// URL for every node."""
        password = known(services(), cls.nodes[0])["password"]
        return [f"redis://:{password}@{host}:{port}/0" for host, port in cls.addresses()]

    @classmethod
    def clients(cls) -> list[RedisClient]:
        """Return a redis-py client for every node."""
        import redis

        return [redis.Redis.from_url(url) for url in cls.urls()]

    @classmethod
    def version(cls) -> str:
        version = cls.clients()[0].info("server")["redis_version"]
        return f"Redis {version}" if len(cls.nodes) == 1 else f"{len(cls.nodes)} x Redis {version}"

    @classmethod
    def pids(cls) -> list[int]:
        return [pid for _, port in cls.addresses() for pid in listeners(port, "redis-server")]


class Redlock(Redis):
    """Five Redis servers that know nothing of each other."""

    lock_alias = "redlock"
    nodes = ("redis1", "redis2", "redis3", "redis4", "redis5")


class RedlockFar(Redlock):
    """The same five, each behind a proxy that holds up everything for a millisecond."""

    lock_alias = "redlock_far"
    parts = ("uncontended",)
    delay = 0.001
    # asked directly: the proxies are started when the measurement begins
    version = Redlock.version
    pids = Redlock.pids

    @classmethod
    def addresses(cls) -> list[tuple[str, int]]:
        """Return where the proxies listen; they are started by the first call in this process."""
        return delayed(tuple(super().addresses()), cls.delay)

    @classmethod
    def configure(cls) -> None:
        """Add the lock alias, whose ports exist only now."""
        near = settings.DISTLOCK[Redlock.lock_alias]
        settings.DISTLOCK[cls.lock_alias] = {**near, "OPTIONS": {**near.get("OPTIONS", {}), "nodes": cls.urls()}}


class ZooKeeper(Server):
    """A ZooKeeper of one node: a single Java process."""

    lock_alias = "zookeeper"

    @classmethod
    def address(cls) -> tuple[str, int]:
        """Return host and port."""
        server = known(services(), "zookeeper")
        return server["host"], int(server["port"])

    @classmethod
    def hosts(cls) -> str:
        """Return the address as kazoo wants it."""
        return "{}:{}".format(*cls.address())

    @classmethod
    def version(cls) -> str:
        with socket.create_connection(cls.address(), timeout=10) as connection, connection.makefile() as answer:
            connection.sendall(b"srvr")
            return f"ZooKeeper {answer.readline().partition(': ')[2].partition('-')[0]}"

    @classmethod
    def pids(cls) -> list[int]:
        return listeners(cls.address()[1], "java")


@functools.cache
def listeners(port: int, program: str) -> list[int]:
    """Return the processes that listen on a TCP port, if they are that program.

    In front of a container it is another one, which is of no use.
    """
    found = [process for process in psutil.process_iter(["name"]) if process.info["name"] == program]
    return [process.pid for process in found if port in listening(process)]


def listening(process: psutil.Process) -> set[int]:
    """Return the ports that a process listens on, as far as this user may know."""
    with contextlib.suppress(psutil.Error):
        connections = process.net_connections("tcp")
        return {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}
    return set()


SERVERS: dict[str, type[Server]] = {
    "postgres": Postgres,
    "mysql": MariaDB,
    "sqlite": SQLite,
    "redis": Redis,
    "redlock": Redlock,
    "redlock-far": RedlockFar,
    "zookeeper": ZooKeeper,
}
