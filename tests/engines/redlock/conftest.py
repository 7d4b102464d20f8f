"""The alias "five": five Redis servers behind a proxy each, and what they say of keys: never the library's word."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import Claim, new_token
from tests.conftest import eventually
from tests.engines.redis.server import client
from tests.faults.proxy import Proxy
from tests.support import services

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.keys import LockKey


class Nodes:
    """The alias "five" of the test."""

    using = "five"

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.servers = [services.load()[f"redis{number}"] for number in range(1, 6)]
        self.proxies = [stack.enter_context(Proxy(each["host"], each["port"])) for each in self.servers]
        self.clients = [stack.enter_context(client(f"redis{number}")) for number in range(1, 6)]
        passwords = [server["password"] for server in self.servers]
        ports = ([proxy.port for proxy in self.proxies], [server["port"] for server in self.servers])
        self.urls, self.direct_urls = (
            [f"redis://:{word}@127.0.0.1:{port}/0" for word, port in zip(passwords, each, strict=True)]
            for each in ports
        )
        for each in self.clients:
            for key in each.scan_iter("redlock:*"):
                each.delete(key)

    @property
    def engine(self) -> Any:
        """The backend."""
        return registry.entry(self.using).backend

    def lock(self, name: str, **options: Any) -> Any:
        return advisory_lock(name, using=self.using, **options)

    def key(self, name: str) -> LockKey:
        site_key.load()
        return registry.entry(self.using).key(name)

    def lead(self, name: str) -> int:
        """The node at which waiters stand in line."""
        return self.key(name).digest[0] % 5

    def claim(self, name: str, ttl: float = 60.0, answer_in: float = 20.0) -> Claim:
        return Claim(key=self.key(name), ttl=ttl, token=new_token(), answer_by=monotonic() + answer_in)

    def stored(self, name: str) -> str:
        """The key that a holder has at each node."""
        return f"redlock:{{{self.key(name).text}}}:held"

    @contextlib.contextmanager
    def taken(self, name: str, *numbers: int) -> Iterator[None]:
        """Another caller has the votes of these nodes."""
        for number in numbers:
            self.clients[number].hset(self.stored(name), "xsomebody", "9999999999999 {}")
        yield
        for number in numbers:
            self.clients[number].hdel(self.stored(name), "xsomebody")

    def keys(self, nodes: Any = range(5)) -> list[int]:
        """How many locks each of ``nodes`` has."""
        return [sum(1 for _ in self.clients[index].scan_iter("redlock:{*}:held")) for index in nodes]

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
        eventually(lambda: self.keys() == [0] * 5, self._left)

    def _left(self) -> str:
        found = [[(key, each.pttl(key)) for key in each.scan_iter("redlock:*")] for each in self.clients]
        return f"a key is left: {found}"

    def connect(self, name: str) -> None:
        """Have connections to all five, which know the scripts; a majority is enough for a caller."""
        lock, nodes = self.lock(name), self.engine.nodes

        def connected() -> bool:
            """And have asked each of them once more."""
            were = all(node._all and not node.down for node in nodes)
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

    @contextlib.contextmanager
    def silent(self, *numbers: int) -> Iterator[None]:
        """Nothing passes to and from these nodes."""
        for number in numbers:
            self.proxies[number].blackhole()
        yield
        for number in numbers:
            self.proxies[number].heal()

    @contextlib.contextmanager
    def down(self, *numbers: int, reset: bool = False) -> Iterator[None]:
        """These servers do not run."""
        proxies = [self.proxies[number] for number in numbers]
        targets = [proxy.target for proxy in proxies]
        for proxy in proxies:
            proxy.target = ("127.0.0.1", 1)
            proxy.cut(reset=reset)
        yield
        for proxy, target in zip(proxies, targets, strict=True):
            proxy.target = target


@contextlib.contextmanager
def five(settings: Any, node_timeout: float) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        nodes = Nodes(stack)
        options = {"nodes": nodes.urls, "node_timeout": node_timeout}
        backend = "django_distlock.backends.redlock.RedlockBackend"
        settings.DISTLOCK = {**settings.DISTLOCK, nodes.using: {"BACKEND": backend, "OPTIONS": options}}
        yield nodes
        registry.close()


@pytest.fixture
def nodes(settings: Any, databases: None) -> Iterator[Nodes]:
    """With time to answer: a node that is late is left out, and keeps what it has."""
    with five(settings, 2.0) as nodes:
        yield nodes


@pytest.fixture
def patient_nodes(settings: Any, databases: None) -> Iterator[Nodes]:
    """No request of theirs is sent a second time while a test lets it wait."""
    with five(settings, 15.0) as nodes:
        yield nodes


@pytest.fixture
def lead(nodes: Nodes, name: str) -> int:
    """The node at which waiters of the test's name stand in line."""
    return nodes.lead(name)


@pytest.fixture
def engine(nodes: Nodes, name: str) -> Any:
    """The backend of "five", connected to all nodes."""
    nodes.connect(name)
    return nodes.engine
