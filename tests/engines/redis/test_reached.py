"""Servers that are reached by TLS, and by Sentinel."""

from __future__ import annotations

import asyncio
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from redis import Redis
from redis.exceptions import RedisError

from django_distlock import advisory_lock
from django_distlock.backends.redis import attempt
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redis.server import Own, claim_of, lock_keys, waiters
from tests.engines.zookeeper.test_secure import CERTIFICATE
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]
USING = "redis"


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
            assert grant is not None
            assert backend.extend(grant, 20)
            assert backend.release(grant)
        registry.close()


def test_a_fail_over_by_sentinel(
    own: Own, another: Own, settings: Any, alias: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
            eventually(lambda: _replicas(told) == 1, "Sentinel knows no replica")
            lease = advisory_lock(name, using=USING).acquire(timeout=20)
            other = RedisBackend(USING, {"cache": "watched"})
            kept = lock_keys(name)[:2]  # who holds it, the queue
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(other.try_acquire, claim_of(name), 60)
                eventually(lambda: waiters(USING, name) == 1, "it does not wait")
                # Sentinel promotes what there is: what the replica has not got would be lost
                eventually(lambda: another.client.exists(*kept) == len(kept), "it is not replicated")
                eventually(lambda: _fails_over(told), "Sentinel promotes no replica")
                eventually(lambda: another.client.info("replication")["role"] == "master", "no fail-over")
                eventually(lambda: own.client.info("replication")["role"] == "slave", "the old one is not demoted")
                lease.extend(30)
                lease.release()
                grant = waiting.result(30)
            assert grant is not None
            assert grant.fence > lease.fence
            assert other.release(grant)
            assert another.keys() == ["fence"]
            other.close()
            registry.close()
            caches.close_all()
            told.close()
        finally:
            sentinel.terminate()


def _replicas(sentinel: Any) -> int:
    try:
        return int(sentinel.sentinel_master("primary")["num-slaves"])
    except RedisError:  # it does not answer yet
        return 0


def _fails_over(sentinel: Any) -> bool:
    try:
        sentinel.execute_command("SENTINEL", "FAILOVER", "primary")
    except RedisError:  # NOGOODSLAVE: it has not asked the replica yet how it is
        return False
    return True
