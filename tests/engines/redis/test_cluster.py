"""A Redis Cluster: each lock is at the node that has its slot, and its waiters listen there. Of slots
that move and nodes that fail over: tests/faults/test_fail_overs.py."""

from __future__ import annotations

import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_distlock import advisory_lock, held_locks, locked
from django_distlock.backends.redis import attempt
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.conftest import eventually
from tests.engines.redis.cluster import NODES, Cluster, of_each_node
from tests.engines.redis.server import claim_of, lock_keys, queued

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]
USING = "redis"


@pytest.fixture(autouse=True)
def nodes(cluster: Cluster, alias: Any) -> None:
    """The alias names one of the nodes."""
    alias(USING, url=cluster.url(0))


def test_each_name_is_locked_at_its_node(cluster: Cluster, name: str) -> None:
    async def in_a_task(lock: Any) -> None:
        async with lock:
            pass

    for node, each in enumerate(of_each_node(cluster, name)):
        lock = advisory_lock(each, using=USING, timeout=20)
        with lock as lease:
            assert cluster.clients[node].exists(lock_keys(each)[0])
            lease.extend(30)
            lease.ensure_held()
        assert not cluster.clients[node].exists(lock_keys(each)[0])
        asyncio.run(in_a_task(lock))


def test_locks_of_all_nodes_are_listed_and_broken(cluster: Cluster, name: str) -> None:
    names = of_each_node(cluster, name)
    leases = [advisory_lock(each, using=USING, timeout=20).acquire() for each in names]
    (report,) = held_locks(USING)
    assert {info.name for info in report.locks} >= set(names)
    assert locked([*names, f"{name} free"], using=USING) == set(names)
    for info in report.locks:
        if info.name in names:
            assert registry.entry(USING).backend.break_lock(info)
    assert locked(names, using=USING) == set()
    for each in names:
        advisory_lock(each, using=USING).acquire(timeout=0).release()
    registry.close()
    assert len(leases) == NODES


def test_r4_waiters_listen_at_the_node_of_their_lock(cluster: Cluster, name: str, monkeypatch: Any) -> None:
    """They are handed it: none asks again."""
    monkeypatch.setattr(attempt, "LOOK_EVERY", 60.0)
    holder, waiter = (RedisBackend(USING, {"url": cluster.url(node)}) for node in (1, 2))
    with ThreadPoolExecutor(NODES) as pool:
        for node, each in enumerate(of_each_node(cluster, name)):
            held = holder.try_acquire(claim_of(each), 20)
            claims = [claim_of(each) for _ in range(2)]
            in_thread = pool.submit(waiter.try_acquire, claims[0], 30)
            eventually(lambda: queued(cluster.clients[node], each) == 1, "it does not wait")  # noqa: B023
            in_task = pool.submit(lambda claim=claims[1]: asyncio.run(waiter.atry_acquire(claim, 30)))
            eventually(lambda: queued(cluster.clients[node], each) == 2, "it does not wait")  # noqa: B023
            assert holder.release(held)
            grant = in_thread.result(20)
            assert waiter.release(grant)
            assert waiter.release(in_task.result(20))
    holder.close()
    waiter.close()


def test_r20_a_node_that_hangs_costs_no_lease_of_the_others(cluster: Cluster, name: str) -> None:
    """However many of its own have to be renewed in vain meanwhile."""
    names = [f"{name}{number}" for number in range(30)]
    leases = {each: advisory_lock(each, using=USING, timeout=20, ttl=6).acquire() for each in names}
    cluster.signal(2, signal.SIGSTOP)
    others = [lease for each, lease in leases.items() if cluster.node_of(lock_keys(each)[0]) != 2]
    assert 15 < len(others) < 25
    try:
        time.sleep(8)
        assert not [lease.name for lease in others if lease.lost]
        for lease in others:
            lease.release()
    finally:
        cluster.signal(2, signal.SIGCONT)


def test_the_doctor_looks_at_each_node(cluster: Cluster) -> None:
    cluster.clients[2].config_set("maxmemory-policy", "allkeys-lru")
    texts = [finding.text for finding in diagnose(USING)]
    cluster.clients[2].config_set("maxmemory-policy", "noeviction")
    assert sum("of the cluster: Redis " in text for text in texts) == NODES
    assert sum("maxmemory-policy is allkeys-lru" in text for text in texts) == 1
    assert not [finding for finding in diagnose(USING) if finding.level == "error"]
