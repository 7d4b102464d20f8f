"""The servers under test: how to connect to them, which processes they are and which sessions they see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.servers.databases import MariaDB, Postgres, SQLite
from benchmarks.servers.leases import Redis, Redlock, RedlockFar, ZooKeeper

if TYPE_CHECKING:
    from benchmarks.servers.base import Server

SERVERS: dict[str, type[Server]] = {
    "postgres": Postgres,
    "mysql": MariaDB,
    "sqlite": SQLite,
    "redis": Redis,
    "redlock": Redlock,
    "redlock-far": RedlockFar,
    "zookeeper": ZooKeeper,
}
