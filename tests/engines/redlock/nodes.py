"""Five nodes behind a proxy each, and what they themselves say of keys: never the library's word."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import redis

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.faults.proxy import Proxy
from tests.support import services

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES = [f"redis{number}" for number in range(1, 6)]


class Nodes:
    """The alias "five" of the test: the five servers, each behind a proxy of its own."""

    using = "five"

    def __init__(self, proxies: list[Proxy]) -> None:
        self.proxies = proxies
        self.servers = [services.load()[name] for name in NODES]
        self.urls = [
            f"redis://:{server['password']}@127.0.0.1:{proxy.port}/0"
            for server, proxy in zip(self.servers, proxies, strict=True)
        ]
        self.clients = [
            redis.Redis(host=server["host"], port=server["port"], password=server["password"], socket_timeout=5)
            for server in self.servers
        ]

    def lock(self, name: str, **options: Any) -> Any:
        return advisory_lock(name, using=self.using, **options)

    def keys(self, nodes: Any = range(5)) -> list[int]:
        """How many locks each of ``nodes`` has."""
        return [sum(1 for _ in self.clients[index].scan_iter("redlock:{*}")) for index in nodes]

    def calls(self, command: str) -> list[int]:
        """How often each node has done a command."""
        stats = [client.info("commandstats") for client in self.clients]
        return [each.get(f"cmdstat_{command}", {}).get("calls", 0) for each in stats]

    def held(self, name: str) -> Any:
        """A lease that all nodes have granted."""
        lease = self.lock(name, ttl=30).acquire(timeout=10)
        eventually(lambda: self.keys() == [1] * 5, "somebody has not granted it")
        self.quiet()
        return lease

    def gone(self) -> None:
        """Long before the TTL of 30 s."""
        eventually(lambda: self.keys() == [0] * 5, "a key is left")

    def connect(self, name: str) -> None:
        """Have connections to all five, which know the scripts: a majority is enough for a caller, and whoever could
        not be asked is not asked later."""
        lock, nodes = self.lock(name), registry.entry(self.using).backend._nodes  # type: ignore[attr-defined]

        def connected() -> bool:
            """And have asked each of them once more."""
            were = all(node.pool.is_open for node in nodes.all)
            with contextlib.suppress(BackendUnavailable):  # too few have answered a release in time
                lock.acquire(timeout=5).release()
                return were
            return False

        eventually(connected, "not all are connected")
        self.quiet()

    def quiet(self) -> None:
        """Wait until no reply is on its way: a majority is enough for a caller, the rest comes later."""
        for proxy in self.proxies:
            eventually(lambda: not any(pair.asking for pair in proxy._pairs), "a node does not answer")  # noqa: B023

    def close(self) -> None:
        for client in self.clients:
            client.close()


@contextlib.contextmanager
def five_nodes(settings: Any, node_timeout: float = 2.0) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        servers = [services.load()[name] for name in NODES]
        nodes = Nodes([stack.enter_context(Proxy(server["host"], server["port"])) for server in servers])
        for client in nodes.clients:
            for key in client.scan_iter("redlock:*"):
                client.delete(key)
        backend = f"{RedlockBackend.__module__}.{RedlockBackend.__qualname__}"
        settings.DISTLOCK = {
            **settings.DISTLOCK,
            nodes.using: {"BACKEND": backend, "OPTIONS": {"nodes": nodes.urls, "node_timeout": node_timeout}},
        }
        yield nodes
        nodes.close()


def extended(lease: Any) -> bool:
    """False if too few nodes have answered in time."""
    with contextlib.suppress(BackendUnavailable):
        lease.extend(30)
        return True
    return False
