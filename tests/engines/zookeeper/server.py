"""What the ZooKeeper server itself says, asked by a client of kazoo's own: never the library's word."""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.conf import settings
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.support import services

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.proxy import Proxy

USING = "zookeeper"
SESSION = 2.0  # seconds, as in testproject/databases.py


def address() -> tuple[str, int]:
    server = services.load()[USING]
    return server["host"], server["port"]


@contextmanager
def clerk(**options: Any) -> Iterator[Any]:
    """A bare client."""
    client = KazooClient(hosts=":".join(map(str, address())), timeout=10, **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def path_of(name: str) -> str:
    """The node above the contenders of a lock."""
    site_key.load()
    return f"{settings.DISTLOCK[USING]['OPTIONS']['path']}/{registry.entry(USING).key(name).path}"


def nodes(client: Any, name: str) -> list[str]:
    """The contenders of a lock, in order."""
    try:
        return sorted(client.get_children(path_of(name)), key=lambda node: node.rpartition("-")[2])
    except NoNodeError:
        return []


def stand_in(server: Any, name: str) -> str:
    """A contender of another process, which never marks its release."""
    path: str = server.create(f"{path_of(name)}/{0:032x}-x-", b"", ephemeral=True, sequence=True, makepath=True)
    return path


def told(word: bytes) -> list[str]:
    """What the server answers to an administrator's word."""
    with socket.create_connection(address(), 5) as connection:
        connection.sendall(word)
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode().splitlines()


def packets() -> int:
    """How many requests the server has had, of all clients."""
    return next(int(line.split()[1]) for line in told(b"mntr") if line.startswith("zk_packets_received"))


def watched(path: str) -> bool:
    """Does a session wait to be told the end of this node?"""
    return path in told(b"wchp")


def session_of(lease: Any) -> Any:
    """The session on which a lease lives."""
    return lease._hold.grant.session.session


def use(settings: Any, **options: Any) -> None:
    """Change OPTIONS of the alias for one test."""
    alias = settings.DISTLOCK[USING]
    settings.DISTLOCK = {**settings.DISTLOCK, USING: {**alias, "OPTIONS": {**alias["OPTIONS"], **options}}}


def behind(settings: Any, proxy: Proxy, **options: Any) -> None:
    """From here on this process goes through ``proxy``."""
    use(settings, hosts=f"127.0.0.1:{proxy.port}", **options)


def own_path(settings: Any) -> str:
    """A path of the test's own, so that what others leave is not counted."""
    path = f"/distlock-{secrets.token_hex(4)}"
    use(settings, path=path)
    return path


class Waiter:
    """One waiter of this process, past the queue of the process, which would let only one of them ask."""

    def __init__(self, server: Any, name: str, **facts: Any) -> None:
        site_key.load()
        entry = registry.entry(USING)
        self.backend, self.claim = entry.backend, Claim(key=entry.key(name), **facts)
        self.grant: Any = None
        before = nodes(server, name)
        self._thread = threading.Thread(target=self._acquire)
        self._thread.start()
        eventually(lambda: len(nodes(server, name)) == len(before) + 1, "it does not queue")
        self.path = f"{path_of(name)}/{next(node for node in nodes(server, name) if node not in before)}"
        # a semaphore's waiter watches the children of the node above, which the server does not list
        ahead = [node for node in before if "-x-" in node or not facts][-1:]
        eventually(lambda: all(watched(f"{path_of(name)}/{node}") for node in ahead), "it does not wait")

    def _acquire(self) -> None:
        self.grant = self.backend.try_acquire(self.claim, 25)

    def comes_in(self) -> None:
        self._thread.join(25)
        assert self.grant is not None, "it waits although it is its turn"

    def release(self) -> bool:
        self.comes_in()
        return self.backend.release(self.grant)
