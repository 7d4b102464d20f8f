"""The servers that no database is: Redis, five of them for Redlock, and ZooKeeper."""

from __future__ import annotations

import functools
import socket
from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings

from benchmarks.servers.base import Server
from benchmarks.servers.delays import delayed
from benchmarks.servers.processes import listeners
from testproject.databases import services

if TYPE_CHECKING:
    from redis import Redis as RedisClient


def service(name: str) -> dict[str, Any]:
    """Return host, port and password of a private server, or say what is missing."""
    try:
        return services()[name]
    except KeyError:
        raise SystemExit(f'there is no server "{name}": start the private servers with `make services`') from None


class Redis(Server):
    """One Redis server: a single process."""

    lock_alias = "redis"
    nodes: ClassVar[tuple[str, ...]] = ("redis1",)

    @classmethod
    def addresses(cls) -> list[tuple[str, int]]:
        """Return host and port of every node."""
        return [(node["host"], int(node["port"])) for node in map(service, cls.nodes)]

    @classmethod
    def urls(cls) -> list[str]:
        """Return a redis:// URL for every node."""
        password = service(cls.nodes[0])["password"]
        return [f"redis://:{password}@{host}:{port}/0" for host, port in cls.addresses()]

    @classmethod
    def clients(cls) -> list[RedisClient]:
        """Return a redis-py client for every node."""
        import redis

        return [redis.Redis.from_url(url) for url in cls.urls()]

    @classmethod
    @functools.cache
    def observers(cls) -> list[RedisClient]:
        """Return clients that this process keeps, to ask the nodes about themselves."""
        return cls.clients()

    @classmethod
    def version(cls) -> str:
        """Return the version of the first node, and how many there are."""
        version = cls.observers()[0].info("server")["redis_version"]
        return f"Redis {version}" if len(cls.nodes) == 1 else f"{len(cls.nodes)} x Redis {version}"

    @classmethod
    def pids(cls) -> list[int]:
        """Look for the owners of the ports."""
        return [pid for node in cls.nodes for pid in listeners(int(service(node)["port"]), "redis-server")]


class Redlock(Redis):
    """Five Redis servers that know nothing of each other."""

    lock_alias = "redlock"
    nodes = ("redis1", "redis2", "redis3", "redis4", "redis5")


class RedlockFar(Redlock):
    """The same five, each behind a proxy that holds up everything for a millisecond."""

    lock_alias = "redlock_far"
    parts = ("uncontended",)
    delay = 0.001

    @classmethod
    def addresses(cls) -> list[tuple[str, int]]:
        """Return where the proxies listen; they are started by the first call in this process."""
        return delayed(tuple(super().addresses()), cls.delay)

    @classmethod
    def version(cls) -> str:
        """Ask the nodes directly: the proxies are started when the measurement begins."""
        return Redlock.version()

    @classmethod
    def configure(cls) -> None:
        """Add the lock alias, whose ports exist only now."""
        near = settings.DISTLOCK[super().lock_alias]
        settings.DISTLOCK[cls.lock_alias] = {**near, "OPTIONS": {**near.get("OPTIONS", {}), "nodes": cls.urls()}}


class ZooKeeper(Server):
    """A ZooKeeper of one node: a single Java process."""

    lock_alias = "zookeeper"

    @classmethod
    def address(cls) -> tuple[str, int]:
        """Return host and port."""
        server = service("zookeeper")
        return server["host"], int(server["port"])

    @classmethod
    def hosts(cls) -> str:
        """Return the address as kazoo wants it."""
        return "{}:{}".format(*cls.address())

    @classmethod
    def version(cls) -> str:
        """Return the version that ``srvr`` tells."""
        return f"ZooKeeper {cls._ask('srvr').partition(': ')[2].partition('-')[0]}"

    @classmethod
    def pids(cls) -> list[int]:
        """Look for the owner of the port: no command of ZooKeeper tells a pid."""
        return listeners(cls.address()[1], "java")

    @classmethod
    def _ask(cls, command: str) -> str:
        answer = b""
        with socket.create_connection(cls.address(), timeout=10) as connection:
            connection.sendall(command.encode())
            while data := connection.recv(65536):
                answer += data
        return answer.decode()
