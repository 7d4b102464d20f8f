"""Servers that are replicated, fail over, are reached by TLS or by Sentinel. R22a: a hand-over is a grant only if the
server that granted it says so. Redlock refuses a node of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from redis import Redis
from redis.exceptions import RedisError

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.redis import attempt
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.conftest import eventually
from tests.engines.actors import share_and_write
from tests.engines.redis.server import Own, claim_of, client, fail_over, lock_keys, queued, url, waiters
from tests.engines.zookeeper.test_secure import CERTIFICATE
from tests.faults.proxy import Proxy
from tests.support.processes import Child
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.redis.cluster import Cluster

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"
# The lease that the waiter waits for: at its end it asks, wherever it is connected. Seconds.
SHORT = 1.0
# A fail-over takes less. Seconds.
FAIL_OVER = 2.0


@pytest.mark.tier2
def test_r22a_a_waiter_at_the_old_primary_is_handed_nothing(own: Own, another: Own, name: str) -> None:
    """Clients have one address, which moves on; old connections live on."""
    another.client.config_set("repl-diskless-sync-delay", 0)
    another.follow(own)
    with Proxy("127.0.0.1", own.port) as address, ThreadPoolExecutor(1) as pool:
        there = RedisBackend("moving", {"url": f"redis://127.0.0.1:{address.port}/0"})
        held = own.hold(name, FAIL_OVER + SHORT)
        waiting = pool.submit(there.try_acquire, claim_of(name), 10)
        eventually(lambda: queued(own.client, name) == 1, "there is no waiter")
        fail_over(own.client, another.client)
        address.target = ("127.0.0.1", another.port)
        assert another.holder.release(held)
        newcomer = another.hold(name)
        # it asks again at the end of the lease that it knows, and is connected to the right one then
        eventually(lambda: waiting.done() or queued(another.client, name) == 1, "it does not ask")
        assert not waiting.done(), "it believes that it was handed the lock, which another holds"
        assert another.holder.release(newcomer)
        grant = waiting.result(15)
        assert another.client.hkeys(lock_keys(name)[0]) == [b"x" + grant.claim.token.encode()]
        assert newcomer.fence < grant.fence
        assert there.release(grant)
        there.close()


MEANS = "node of a Redis Cluster has only a part of the names.*Use a server without cluster mode"


def errors(using: str) -> list[str]:
    """What the doctor says."""
    return [finding.text for finding in diagnose(using) if finding.level == "error" and finding.alias]


def test_r22b_redlock_says_which_nodes_are_in_a_cluster(cluster: Cluster, alias: Any, name: str) -> None:
    alias("votes", "redlock", nodes=[cluster.url(0), cluster.url(1), url()])
    with pytest.raises(BackendUnavailable, match="2 of 3 Redis nodes failed: 1, 2 .*" + MEANS):
        advisory_lock(name, using="votes").acquire(timeout=5)
    assert sum(text.startswith(("Node 1: A node of", "Node 2: A node of")) for text in errors("votes")) == 2


@pytest.mark.tier2
def test_r4_a_monitor_of_all_channels_does_not_stand_for_a_dead_waiter(name: str) -> None:
    """PUBLISH counts it, and says that the message was heard: the lock would go to the dead one, until its TTL."""
    with client() as server, server.pubsub() as monitor:
        monitor.psubscribe("*")
        assert monitor.get_message(timeout=5)
        lease = advisory_lock(name, using=USING).acquire(timeout=5)
        others = set(server.pubsub_channels("distlock:*"))
        with Child(share_and_write, USING, name) as dying:
            assert dying.hear() == "asking"
            eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
            dying.kill()
        eventually(lambda: others.issuperset(server.pubsub_channels("distlock:*")), "it is connected")
        lease.release()
        advisory_lock(name, using=USING).acquire(timeout=0).release()


@pytest.mark.tier2
def test_an_old_primary_that_wakes_grants_nothing_without_replicas(own: Own, another: Own, name: str) -> None:
    """With min-replicas-to-write. It hung, its replica was promoted, and clients are connected to both."""
    another.follow(own)
    assert own.holder.release(own.hold(name))
    own.client.config_set("min-replicas-to-write", 1)
    own.client.config_set("min-replicas-max-lag", 1)
    own.signal(signal.SIGSTOP)
    another.client.replicaof("NO", "ONE")
    grant = another.hold(name)
    own.signal(signal.SIGCONT)
    numbers = itertools.count()

    def refused() -> bool:
        try:
            own.holder.try_acquire(claim_of(f"{name}{next(numbers)}"))
        except BackendUnavailable as error:
            return "NOREPLICAS" in str(error)
        return False

    eventually(refused, "it goes on granting locks")
    assert another.holder.release(grant)
    own.client.config_set("min-replicas-to-write", 0)


def test_the_doctor_asks_for_min_replicas(own: Own, another: Own) -> None:
    another.follow(own)
    for enough in (0, 1):
        own.client.config_set("min-replicas-to-write", enough)
        texts = " ".join(finding.text for finding in diagnose(USING))
        assert "is replicated" in texts
        assert ("min-replicas-to-write is 0" in texts) == (enough == 0)


@pytest.mark.tier2
def test_a_server_that_speaks_tls(alias: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait, and a long reply, in a thread and in a task."""
    monkeypatch.setattr(attempt, "LOOK_EVERY", 60.0)
    subprocess.run(CERTIFICATE.split(), cwd=tmp_path, check=True, capture_output=True, timeout=60)
    files = f"--tls-cert-file {tmp_path}/certificate.pem --tls-key-file {tmp_path}/key.pem"
    port = free_port()
    options = f"--tls-port {port} {files} --tls-ca-cert-file {tmp_path}/certificate.pem --tls-auth-clients no"
    with Own(tmp_path / "server", options) as own:
        alias(USING, url=f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path}/certificate.pem")
        backend = registry.entry(USING).backend

        def wait(in_a_task: bool) -> Any:
            claim = claim_of(name)
            return asyncio.run(backend.atry_acquire(claim, 30)) if in_a_task else backend.try_acquire(claim, 30)

        for in_a_task in (False, True):
            held = own.hold(name)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(wait, in_a_task)
                eventually(lambda: waiters(USING, name) == 1, "it does not wait")
                assert own.holder.release(held)
                grant = waiting.result(20)
            assert backend.extend(grant, 20)
            assert backend.release(grant)
        registry.close()


@pytest.mark.tier2
def test_a_fail_over_by_sentinel(
    own: Own, another: Own, settings: Any, alias: Any, name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """In order: a holder keeps its lock, a waiter gets it at the new primary."""
    monkeypatch.setattr(attempt, "LOOK_EVERY", 0.5)
    another.follow(own)
    port = free_port()
    (tmp_path / "sentinel.conf").write_text(
        f"port {port}\ndir {tmp_path}\nsentinel monitor primary 127.0.0.1 {own.port} 1\n"
    )
    command = ["redis-server", str(tmp_path / "sentinel.conf"), "--sentinel"]
    with (tmp_path / "sentinel.log").open("ab") as log, subprocess.Popen(command, stdout=log) as sentinel:
        settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
        options = {"CLIENT_CLASS": "django_redis.client.SentinelClient", "SENTINELS": [("127.0.0.1", port)]}
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://primary/0", "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "watched": cache}
        alias(USING, cache="watched")
        told = Redis(port=port)
        try:
            eventually(lambda: tried(lambda: told.sentinel_master("primary")["num-slaves"]), "it knows no replica")
            lease = advisory_lock(name, using=USING).acquire(timeout=20)
            other = RedisBackend(USING, {"cache": "watched"})
            kept = lock_keys(name)[:2]  # who holds it, the queue
            promote = partial(told.execute_command, "SENTINEL", "FAILOVER", "primary")
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(other.try_acquire, claim_of(name), 60)
                eventually(lambda: waiters(USING, name) == 1, "it does not wait")
                # Sentinel promotes what there is: what the replica has not got would be lost
                eventually(lambda: another.client.exists(*kept) == len(kept), "it is not replicated")
                eventually(lambda: tried(promote), "it promotes no replica")
                eventually(lambda: another.client.info("replication")["role"] == "master", "no fail-over")
                eventually(lambda: own.client.info("replication")["role"] == "slave", "the old one is not demoted")
                lease.extend(30)
                lease.release()
                grant = waiting.result(30)
            assert grant.fence > lease.fence
            assert other.release(grant)
            assert another.keys() == ["fence"]
            other.close()
            registry.close()
            caches.close_all()
            told.close()
        finally:
            sentinel.terminate()


def tried(call: Any) -> Any:
    """Its reply, if it was one: Sentinel does not answer yet, or has not asked the replica yet how it is."""
    with contextlib.suppress(RedisError):
        return call()
