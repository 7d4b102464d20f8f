"""Redis behind a network that holds requests up, and a server that forgets, restarts or is demoted."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import sys
import termios
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from django_distlock.backends.redis import backend as engine
from django_distlock.backends.redis import commands
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.commands import keys_of
from django_distlock.backends.redis.connection import (
    Connection,
    pack,
)
from django_distlock.backends.redis.target import Target
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.records import drift
from tests.conftest import eventually
from tests.engines.redis.server import Own, claim_of, waiters
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("databases")


def refuse(thread: threading.Thread) -> None:
    """Thread.start() at the end of the interpreter, or at the limit of the machine."""
    raise RuntimeError("can't start new thread")


@contextmanager
def detained(own: Own, name: str) -> Iterator[tuple[RedisBackend, Proxy]]:
    """A backend with one connection, whose network may hold up a request for long."""
    with Proxy("127.0.0.1", own.port) as proxy:
        backend = RedisBackend("late", {"url": f"redis://127.0.0.1:{proxy.port}/0"})
        grant = backend.try_acquire(claim_of(name), 5)
        assert grant is not None
        assert backend.extend(grant, 30)
        assert backend.release(grant)
        try:
            yield backend, proxy
        finally:
            backend.close()


def held_of(name: str) -> bytes:
    return keys_of(registry.entry("redis").key(name))[0]


def delivered(own: Own, proxy: Proxy) -> None:
    """What was detained has arrived."""
    before = own.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    proxy.deliver()
    eventually(lambda: own.client.info("commandstats")["cmdstat_evalsha"]["calls"] > before, "it does not arrive")


def swept(backend: RedisBackend, own: Own, held: bytes) -> bool:
    """Tick as the keepalive thread would."""
    backend.tick(monotonic())
    return not own.client.exists(held)


@pytest.mark.parametrize("short_cut", [True, False])
def test_r7_an_acquire_that_arrives_after_the_release(own: Own, name: str, short_cut: bool) -> None:
    """It was sent again on another connection, which was faster."""
    with detained(own, name) as (backend, proxy):
        proxy.detain(1)
        grant = backend.try_acquire(claim_of(name), 5)
        assert grant is not None
        assert (short_cut and backend.release_fast(grant)) or backend.release(grant)
        delivered(own, proxy)
        eventually(lambda: swept(backend, own, held_of(name)), "it is not released")


def test_r7_an_acquire_that_arrives_after_a_refusal(own: Own, name: str) -> None:
    with detained(own, name) as (backend, proxy):
        with own.held(name):
            proxy.detain(1)
            assert backend.try_acquire(claim_of(name), 2.5) is None
        delivered(own, proxy)
        eventually(lambda: swept(backend, own, held_of(name)), "it is not released")


def test_r19_a_request_that_arrives_late_does_not_shorten_the_lease(own: Own, name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(engine, "RENEWAL_PATIENCE", 10.0)  # half a second passes before it is asked again
    with detained(own, name) as (backend, proxy):
        grant = backend.try_acquire(claim_of(name, 30), 5)
        assert grant is not None
        proxy.detain(1)
        assert backend.extend(grant, 10)
        assert own.client.pttl(held_of(name)) <= 10_000
        assert backend.extend(grant, 60)
        delivered(own, proxy)
        assert own.client.pttl(held_of(name)) > 40_000
        assert backend.release(grant)


def test_r19_validity_counts_from_before_the_request(own: Own, name: str, monkeypatch: Any) -> None:
    """However late it arrives: the server may count from any time after it was sent."""
    monkeypatch.setattr(commands, "REPLY", 20.0)  # else it is asked again meanwhile
    monkeypatch.setattr(engine, "RENEWAL_PATIENCE", 20.0)
    with detained(own, name) as (backend, proxy), ThreadPoolExecutor(1) as pool:

        def late(work: Any, *args: Any) -> Any:
            """Its outcome, and a time between its request and the reply."""
            before = proxy.requests
            proxy.detain(1)
            waiting = pool.submit(work, *args)
            eventually(lambda: proxy.requests > before, "it does not ask")
            between = monotonic()
            proxy.deliver()
            return waiting.result(25), between

        grant, between = late(backend.try_acquire, claim_of(name, 60), 20)
        assert grant.valid_until < between + 60 - drift(60)
        grant, between = late(backend.extend, grant, 60)
        assert grant.valid_until < between + 60 - drift(60)
        assert backend.release(grant)


USING = "redis"


def test_scripts_may_be_flushed_and_connections_killed(own: Own, name: str) -> None:
    """A lease is no matter of the connection, and who waits takes another one."""

    def forget() -> None:
        own.client.script_flush()
        own.client.client_kill_filter(_type="normal", skipme=True)
        own.client.client_kill_filter(_type="pubsub")

    lock = advisory_lock(name, using=USING, timeout=20)
    lease = lock.acquire()
    for work in (lambda: lease.extend(20), lease.ensure_held, lease.release):
        forget()
        work()
    grant = own.hold(name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: lock.acquire().release())
        for _ in range(3):
            eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
            forget()
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        assert own.holder.release(grant)
        waiting.result(20)
    assert own.keys() == ["fence"]


def test_r21_fences_rise_through_a_restart(own: Own, name: str) -> None:
    """With an append-only file; the lease outlives the restart, too."""
    lock = advisory_lock(name, using=USING)
    fences = []
    for turn in range(4):
        with lock as lease:
            fences.append(lease.fence)
            if turn == 1:
                own.restart()
                lease.extend(20)
    assert fences == sorted(set(fences))
    assert own.keys() == ["fence"]


def test_a_demoted_server_is_left(own: Own, name: str, tmp_path: Path) -> None:
    """Behind one address that moves on to its replica. Connections to the old one stay open and refuse to write."""
    (tmp_path / "other").mkdir()
    with Own(tmp_path / "other") as other, Proxy("127.0.0.1", own.port) as proxy:
        backend = RedisBackend("moving", {"url": f"redis://127.0.0.1:{proxy.port}/0"})
        assert all(backend.try_acquire(claim_of(f"{name}{number}"), 5) for number in range(2))
        other.client.config_set("repl-diskless-sync-delay", 0)
        own.client.replicaof("127.0.0.1", other.port)
        proxy.target = ("127.0.0.1", other.port)
        grant = backend.try_acquire(claim_of(name), 5)
        assert grant is not None
        assert backend.release(grant)
        assert other.keys() == ["fence"]
        backend.close()


HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"


class Peer:
    """The far end of ``connection``: it says what the test wants."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            greeter = threading.Thread(target=self._greet, args=(listener,))
            greeter.start()
            url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
            self.connection = Connection(Target(url=url).connect(20))
            greeter.join(20)

    def _greet(self, listener: socket.socket) -> None:
        self._sock, _ = listener.accept()
        while b"HELLO" not in self._sock.recv(999):
            pass
        self._sock.sendall(HELLO)
        answered = 0  # redis-py sends its name and its version
        while answered < 2:
            commands = self._sock.recv(999).count(b"SETINFO")
            self._sock.sendall(b"+OK\r\n" * commands)
            answered += commands

    def say(self, data: bytes) -> None:
        self._sock.sendall(data)

    def heard(self) -> bytes:
        """All that it can still read."""
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while data := self._sock.recv(1_000_000):
                heard += data
        return heard

    def close(self) -> None:
        self._sock.close()
        self.connection.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def test_r7_what_the_network_has_not_delivered_is_dropped_with_the_connection(peer: Peer) -> None:
    """Naive code closes the socket, and TCP delivers the request once the network is whole again, minutes later."""

    def full() -> bool:
        """The network takes nothing more."""
        undelivered = bytearray(4)
        fcntl.ioctl(peer.connection.fd, termios.TIOCOUTQ, undelivered)
        if not int.from_bytes(undelivered, sys.byteorder):
            peer.connection.send(pack("SET", "a", b"x" * 100_000))
            return False
        return True

    eventually(full, "it takes everything", pause=0.01)
    peer.connection.send(pack("SET", "too late", "a"))
    peer.connection.close()
    assert b"too late" not in peer.heard()


@pytest.mark.usefixtures("databases")
def test_options_that_would_retry_or_decode_change_nothing(own: Own, name: str) -> None:
    """Those of a cache or URL are meant for redis-py's own client."""
    options = "retry_on_timeout=1&health_check_interval=1&decode_responses=1&socket_timeout=0.001&protocol=2"
    backend = RedisBackend("tuned", {"url": f"{own.url}?{options}"})
    grant = backend.try_acquire(claim_of(name), 5)
    assert grant is not None
    assert backend.release(grant)
    backend.close()
