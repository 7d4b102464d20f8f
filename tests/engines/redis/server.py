"""What a test asks a Redis server itself, beside the backend."""

from __future__ import annotations

import subprocess
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from redis import Redis
from redis.exceptions import RedisError

from django_distlock import held_locks
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.scripts import keys_of
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import Claim, new_token
from tests.conftest import eventually
from tests.support import services
from tests.support.services.process import free_port, signal_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django_distlock.records import Grant

# Commands that scripts call are counted apart from those that clients send.
SENT = ("evalsha", "eval", "subscribe", "scan", "publish", "hello", "client", "auth", "select")


def client(name: str = "redis1") -> Any:
    server = services.load()[name]
    return Redis(host=server["host"], port=server["port"], password=server["password"])


def url() -> str:
    server = services.load()["redis1"]
    return f"redis://:{server['password']}@{server['host']}:{server['port']}/0"


def claim_of(name: str, ttl: float = 30.0, **facts: Any) -> Claim:
    """What a backend is asked for a lock of the alias "redis"."""
    site_key.load()
    key = registry.entry("redis").key(name)
    return Claim(key=key, ttl=ttl, token=new_token(), answer_by=monotonic() + 5, **facts)


def lock_keys(name: str) -> tuple[bytes, ...]:
    """What is kept of that lock: who holds it, the queue, the waiters, the fence."""
    return keys_of(claim_of(name).key.text_bytes)


def queued(server: Any, name: str) -> int:
    """How many wait for that lock at this server."""
    return int(server.zcard(lock_keys(name)[1]))


@contextmanager
def counted(server: Any) -> Iterator[Counter[str]]:
    """Fills a Counter with the commands that clients sent to the server during the block: for a server of one's own."""
    found: Counter[str] = Counter()
    before = _sent(server)
    yield found
    found.update(_sent(server) - before)


def _sent(server: Any) -> Counter[str]:
    stats = server.info("commandstats")
    calls = {name.removeprefix("cmdstat_").partition("|")[0]: stats[name]["calls"] for name in stats}
    return Counter({name: calls[name] for name in calls if name in SENT})


def waiters(using: str, name: str) -> int:
    """How many wait at the server, in any process."""
    (report,) = held_locks(using)
    return sum(info.waiters or 0 for info in report.locks if info.name == name)


def commands(data: bytes) -> Iterator[list[bytes]]:
    """The words of each packed command, as clients send them."""
    at = 0

    def number() -> int:
        nonlocal at
        begin, at = at + 1, data.index(b"\r\n", at) + 2
        return int(data[begin : at - 2])

    while at < len(data):
        words = []
        for _ in range(number()):
            size = number()
            words.append(data[at : at + size])
            at += size + 2
        yield words


class Own:
    """A server of one test's own, which may stop, restart and lose its scripts and connections."""

    def __init__(self, folder: Path, options: str = "") -> None:
        self._folder = folder
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._held: Grant | None = None
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = Redis(port=self.port)
        # another process that takes the same locks
        self.holder = RedisBackend("redis", {"url": self.url})

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        options = f"--port {self.port} --bind 127.0.0.1 --dir {self._folder} {self._options} --appendonly yes"
        options += " --shutdown-timeout 0 --save"  # it ends without waiting for its replicas
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["redis-server", *options.split(), ""], stdout=log)
        eventually(self._answers, "the server does not answer")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def signal(self, number: int) -> None:
        signal_all([self._process.pid], number)

    def follow(self, primary: Own) -> None:
        """Become a replica of ``primary``, in step with it."""
        primary.client.config_set("repl-diskless-sync-delay", 0)
        self.client.replicaof("127.0.0.1", primary.port)
        eventually(lambda: primary.client.wait(1, 100) == 1, "no replica")
        # Redis does not end while it writes its first file
        eventually(lambda: not self.client.info("persistence")["aof_rewrite_in_progress"], "it writes on")

    def hold(self, name: str, ttl: float = 30.0) -> Grant:
        grant = self.holder.try_acquire(claim_of(name, ttl), 5)
        assert grant is not None
        return grant

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Another process holds the lock until the end of the block."""
        self._held = self.hold(name)
        yield
        self.let_go()

    def let_go(self) -> None:
        """Release what is held in :meth:`hold`."""
        held, self._held = self._held, None
        if held is not None:
            assert self.holder.release(held)

    def keys(self) -> list[str]:
        """The last parts of all keys that there are."""
        return sorted(key.decode().rpartition(":")[2] for key in self.client.scan_iter())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.holder.close()
        self.client.close()
        self.stop()


def fail_over(old: Any, new: Any) -> None:
    """In order: nothing is lost."""
    eventually(lambda: old.info("replication")["connected_slaves"] == 1, "no replica")
    old.execute_command("FAILOVER", "TIMEOUT", 5000)
    eventually(lambda: new.info("replication")["role"] == "master", "no fail-over")
    eventually(lambda: old.info("replication").get("master_link_status") == "up", "it does not follow")
