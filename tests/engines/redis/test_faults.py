"""Redis behind a network that holds requests up, and a server that forgets, restarts or is demoted."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from django_distlock.backends.redis import backend as engine
from django_distlock.backends.redis import server
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.scripts import keys_of
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import drift
from tests.conftest import eventually
from tests.engines.redis.server import claim_of, waiters
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"


@pytest.fixture
def proxy(own: Own) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", own.port) as proxy:
        yield proxy


@pytest.fixture
def backend(own: Own, proxy: Proxy, name: str) -> Iterator[RedisBackend]:
    """With one connection, whose network may hold up a request for long."""
    backend = RedisBackend("late", {"url": f"redis://127.0.0.1:{proxy.port}/0"})
    grant = backend.try_acquire(claim_of(name), 5)
    assert grant is not None
    assert backend.extend(grant, 30)
    assert backend.release(grant)
    yield backend
    backend.close()


@pytest.fixture
def held(name: str) -> bytes:
    """The key that a holder has."""
    site_key.load()
    return keys_of(registry.entry(USING).key(name).text_bytes)[0]


def delivered(own: Own, proxy: Proxy) -> None:
    """What was detained has arrived."""
    before = own.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    proxy.deliver()
    eventually(lambda: own.client.info("commandstats")["cmdstat_evalsha"]["calls"] > before, "it does not arrive")


@pytest.mark.parametrize("how", ["released", "released fast", "refused"])
def test_r7_an_acquire_that_arrives_late(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, how: str
) -> None:
    """It was sent again on another connection, which was faster, and is over."""
    if how == "refused":
        with own.held(name):
            proxy.detain(1)
            assert backend.try_acquire(claim_of(name), 2.5) is None
    else:
        proxy.detain(1)
        grant = backend.try_acquire(claim_of(name), 5)
        assert grant is not None
        assert backend.release(grant) if how == "released fast" else asyncio.run(backend.arelease(grant))
    delivered(own, proxy)

    def swept() -> bool:
        backend.tick(monotonic())  # as the keepalive thread would
        return not own.client.exists(held)

    eventually(swept, "it is not released")


def test_r19_a_request_that_arrives_late_does_not_shorten_the_lease(
    own: Own, proxy: Proxy, backend: RedisBackend, held: bytes, name: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(engine, "RENEWAL_PATIENCE", 10.0)  # a second passes before it is asked again
    grant = backend.try_acquire(claim_of(name), 5)
    assert grant is not None
    proxy.detain(1)
    assert backend.extend(grant, 10)
    assert own.client.pttl(held) <= 10_000
    assert backend.extend(grant, 60)
    delivered(own, proxy)
    assert own.client.pttl(held) > 40_000
    assert backend.release(grant)


def test_r19_validity_counts_from_before_the_request(
    proxy: Proxy, backend: RedisBackend, name: str, monkeypatch: Any
) -> None:
    """However late it arrives: the server may count from any time after it was sent."""
    monkeypatch.setattr(server, "SILENCE", 20.0)  # else it is asked again meanwhile
    monkeypatch.setattr(engine, "RENEWAL_PATIENCE", 20.0)

    def late(work: Any, *args: Any) -> Any:
        """Its outcome, which is valid from before its request arrived."""
        request = proxy.hold("request")
        waiting = pool.submit(work, *args)
        request.wait()
        between = monotonic()
        request.pass_on()
        grant = waiting.result(25)
        assert grant.valid_until < between + 60 - drift(60)
        return grant

    with ThreadPoolExecutor(1) as pool:
        grant = late(backend.extend, late(backend.try_acquire, claim_of(name, 60), 20), 60)
    assert backend.release(grant)


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


def test_a_demoted_server_is_left(own: Own, another: Own, proxy: Proxy, backend: RedisBackend, name: str) -> None:
    """Behind one address that moves on to its replica. Connections to the old one stay open and refuse to write."""
    own.follow(another)
    proxy.target = ("127.0.0.1", another.port)
    grant = backend.try_acquire(claim_of(name), 5)
    assert grant is not None
    assert backend.release(grant)
    assert another.keys() == ["fence"]


def test_options_that_would_retry_or_decode_change_nothing(own: Own, name: str) -> None:
    """Those of a cache or URL are meant for redis-py's own client."""
    options = "retry_on_timeout=1&health_check_interval=1&decode_responses=1&socket_timeout=0.001&protocol=2"
    backend = RedisBackend("tuned", {"url": f"{own.url}?{options}"})
    grant = backend.try_acquire(claim_of(name), 5)
    assert grant is not None
    assert backend.release(grant)
    backend.close()
