"""R22a: a hand-over is a grant only if the server that granted it says so. Redis carries a message on, to its replicas
and over the bus of a cluster; who hears it there holds nothing."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.commands import keys_of
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from tests.conftest import eventually
from tests.engines.redis.cluster import Cluster, Router
from tests.engines.redis.server import Own, claim_of, client, waiters
from tests.engines.redis.test_processes import queue
from tests.faults.proxy import Proxy
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Grant

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"
# The lease that the waiter waits for: at its end it asks, wherever it is connected. Seconds.
SHORT = 1.0
# A fail-over takes less. Seconds.
FAIL_OVER = 2.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@contextmanager
def waiting(backend: RedisBackend, claim: Claim) -> Iterator[list[Grant | None]]:
    """Another thread waits; what it got."""
    found: list[Grant | None] = []
    thread = threading.Thread(target=lambda: found.append(backend.try_acquire(claim, 10)))
    thread.start()
    yield found
    thread.join(15)


def queued(client: Any, key: LockKey) -> int:
    return int(client.zcard(keys_of(key)[1]))


def holders(client: Any, key: LockKey) -> list[bytes]:
    return [who[1:] for who in client.hkeys(keys_of(key)[0])]


@pytest.mark.tier2
def test_r22a_a_waiter_at_the_old_primary_is_handed_nothing(own: Own, name: str, tmp_path: Path) -> None:
    """A fail-over in order, which loses nothing; clients have one address, which moves on; old connections live on."""
    (tmp_path / "other").mkdir()
    with Own(tmp_path / "other") as new, Proxy("127.0.0.1", own.port) as address:
        new.client.config_set("repl-diskless-sync-delay", 0)
        new.follow(own)
        there = RedisBackend("moving", {"url": f"redis://127.0.0.1:{address.port}/0"})
        held = own.holder.try_acquire(claim_of(name, FAIL_OVER + SHORT))
        assert held is not None
        with waiting(there, claim_of(name)) as found:
            eventually(lambda: queued(own.client, held.claim.key) == 1, "there is no waiter")
            fail_over(own.client, new.client)
            address.target = ("127.0.0.1", new.port)
            assert new.holder.release(held)
            newcomer = new.holder.try_acquire(claim_of(name, 30))
            assert newcomer is not None
            # it asks again at the end of the lease that it knows, and is connected to the right one then
            eventually(lambda: found or queued(new.client, held.claim.key) == 1, "it does not ask")
            assert found == [], "it believes that it was handed the lock, which another holds"
            assert new.holder.release(newcomer)
        (grant,) = found
        assert grant is not None
        assert holders(new.client, grant.claim.key) == [grant.claim.token.encode()]
        assert newcomer.fence < grant.fence
        assert there.release(grant)
        there.close()


def fail_over(old: Any, new: Any) -> None:
    eventually(lambda: old.info("replication")["connected_slaves"] == 1, "no replica")
    old.execute_command("FAILOVER", "TIMEOUT", 5000)
    eventually(lambda: new.info("replication")["role"] == "master", "no fail-over")
    eventually(lambda: old.info("replication").get("master_link_status") == "up", "it does not follow")


@pytest.mark.tier2
@pytest.mark.parametrize("node", [0, 1])
def test_r22a_a_message_on_the_bus_of_a_cluster_is_no_grant(cluster: Cluster, name: str, node: int) -> None:
    """Behind a proxy that hides the cluster: the waiter is subscribed at node 0, and its lock may be elsewhere."""
    site_key.load()
    names = (f"{name}{number}" for number in range(100))
    name = next(each for each in names if cluster.node_of(keys_of(registry.entry(USING).key(each))[0]) == node)
    with Router(cluster) as router:
        backend = RedisBackend("routed", {"url": router.url})
        held = backend.try_acquire(claim_of(name, SHORT))
        assert held is not None
        owner = cluster.clients[node]
        with waiting(backend, claim_of(name)) as found:
            eventually(lambda: queued(owner, held.claim.key) == 1, "there is no waiter")
            assert backend.release(held)
            newcomer = backend.try_acquire(claim_of(name, 3 * SHORT))
            if node == 0:
                eventually(lambda: found, "it was not handed the lock")
                assert newcomer is None
            else:
                assert newcomer is not None
                eventually(lambda: found or queued(owner, held.claim.key) == 1, "it does not ask")
                assert found == [], "it believes that it was handed the lock, which another holds"
                assert backend.release(newcomer)
        (grant,) = found
        assert grant is not None
        assert holders(owner, grant.claim.key) == [grant.claim.token.encode()]
        assert grant.fence > max(held.fence, newcomer.fence if newcomer else 0)
        assert backend.release(grant)
        backend.close()


def test_r4_a_monitor_of_all_channels_does_not_stand_for_a_dead_waiter(name: str) -> None:
    """PUBLISH counts it, and says that the message was heard."""
    with client() as server, server.pubsub() as monitor:
        monitor.psubscribe("*")
        assert monitor.get_message(timeout=5)
        lease = advisory_lock(name, using=USING).acquire(timeout=0)
        others = set(server.pubsub_channels("distlock:*"))
        with Child(queue, name) as dying:
            assert dying.hear() == "asking"
            eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
            dying.kill()
        eventually(lambda: others.issuperset(server.pubsub_channels("distlock:*")), "it is connected")
        lease.release()
        advisory_lock(name, using=USING).acquire(timeout=0).release()
