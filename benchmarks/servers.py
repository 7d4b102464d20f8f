"""The servers under test: how to connect to them outside Django, what they are, and which processes they are."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings

from testproject.databases import redis_url, services
from tests.support.services import status
from tests.support.services.files import processes_path, read_json
from tests.support.services.process import process_tree

if TYPE_CHECKING:
    from MySQLdb.connections import Connection as MySQLConnection
    from psycopg import Connection as PostgresConnection


@dataclass(frozen=True)
class Server:
    """One engine of the benchmark: its name in DISTLOCK, and the private servers that it is, if it is no library."""

    lock_alias: str
    nodes: tuple[str, ...] = ()

    @property
    def alias(self) -> str:
        """Return its name in DATABASES."""
        return self.nodes[0] if self.nodes else "default"

    def known(self) -> list[dict[str, Any]]:
        """Return where each node is, or say what is missing."""
        found = services()
        if missing := [name for name in self.nodes if name not in found]:
            raise SystemExit(f'there is no server "{missing[0]}": start the private servers with `make services`')
        return [found[name] for name in self.nodes]

    def account(self) -> dict[str, Any]:
        """Return what drivers want to know, under the names that they all have for it."""
        (server,) = self.known()
        return {key: server[key] for key in ("host", "user", "password")} | {"port": int(server["port"])}

    def urls(self) -> list[str]:
        """Return a redis:// URL for every node."""
        return [redis_url(server, server["password"]) for server in self.known()]

    def hosts(self) -> str:
        """Return the address as kazoo wants it."""
        return ",".join(f"{server['host']}:{server['port']}" for server in self.known())

    def pids(self) -> list[int]:
        """Return its processes on this machine: none if it runs elsewhere."""
        ours = read_json(processes_path()).get("servers", {})
        return process_tree(*(ours[name]["pid"] for name in self.nodes if name in ours))

    def version(self) -> str:
        if not self.known():
            return sqlite3.sqlite_version
        return next(text.partition(",")[0] for name, _, text in status() if name == self.alias)


POSTGRES = Server("postgres", ("postgres",))
MARIADB = Server("mysql", ("mariadb",))
SQLITE = Server("leasetable")
REDIS = Server("redis", ("redis1",))
REDLOCK = Server("redlock", ("redis1", "redis2", "redis3", "redis4", "redis5"))
ZOOKEEPER = Server("zookeeper", ("zookeeper",))
SERVERS = {
    "postgres": POSTGRES,
    "mysql": MARIADB,
    "sqlite": SQLITE,
    "redis": REDIS,
    "redlock": REDLOCK,
    "zookeeper": ZOOKEEPER,
}


def connect_postgres() -> PostgresConnection[tuple[Any, ...]]:
    import psycopg

    return psycopg.connect(**POSTGRES.account(), dbname=settings.DATABASES["postgres"]["NAME"], autocommit=True)


def connect_mariadb() -> MySQLConnection:
    import MySQLdb

    return MySQLdb.connect(**MARIADB.account(), database=settings.DATABASES["mariadb"]["NAME"], autocommit=True)


def connect_sqlite() -> sqlite3.Connection:
    """Open a file of the benchmark's own beside the database: WAL, autocommit, no busy handler."""
    connection = sqlite3.connect(f"{settings.DATABASES['default']['NAME']}-bare", timeout=5, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA busy_timeout = 0")
    return connection
