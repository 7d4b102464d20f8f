"""R22a: a hand-over is a grant only if the server that granted it says so. Redlock refuses a node of a cluster."""

from __future__ import annotations

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.scripts import keys_of
from django_distlock.operations.doctor import diagnose
from tests.conftest import eventually
from tests.engines.actors import share_and_write
from tests.engines.redis.cluster import Cluster, Router, of_each_node
from tests.engines.redis.server import claim_of, client, fail_over, url, waiters
from tests.faults.proxy import Proxy
from tests.support.processes import Child

if TYPE_CHECKING:
    from django_distlock.keys import LockKey
    from tests.engines.redis.server import Own

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"
# The lease that the waiter waits for: at its end it asks, wherever it is connected. Seconds.
SHORT = 1.0
# A fail-over takes less. Seconds.
FAIL_OVER = 2.0


def queued(client: Any, key: LockKey) -> int:
    return int(client.zcard(keys_of(key.text_bytes)[1]))


def holders(client: Any, key: LockKey) -> list[bytes]:
    return [who[1:] for who in client.hkeys(keys_of(key.text_bytes)[0])]


@pytest.mark.tier2
def test_r22a_a_waiter_at_the_old_primary_is_handed_nothing(own: Own, another: Own, name: str) -> None:
    """Clients have one address, which moves on; old connections live on."""
    another.client.config_set("repl-diskless-sync-delay", 0)
    another.follow(own)
    with Proxy("127.0.0.1", own.port) as address, ThreadPoolExecutor(1) as pool:
        there = RedisBackend("moving", {"url": f"redis://127.0.0.1:{address.port}/0"})
        held = own.hold(name, FAIL_OVER + SHORT)
        waiting = pool.submit(there.try_acquire, claim_of(name), 10)
        eventually(lambda: queued(own.client, held.claim.key) == 1, "there is no waiter")
        fail_over(own.client, another.client)
        address.target = ("127.0.0.1", another.port)
        assert another.holder.release(held)
        newcomer = another.hold(name)
        # it asks again at the end of the lease that it knows, and is connected to the right one then
        eventually(lambda: waiting.done() or queued(another.client, held.claim.key) == 1, "it does not ask")
        assert not waiting.done(), "it believes that it was handed the lock, which another holds"
        assert another.holder.release(newcomer)
        grant = waiting.result(15)
        assert grant is not None
        assert holders(another.client, grant.claim.key) == [grant.claim.token.encode()]
        assert newcomer.fence < grant.fence
        assert there.release(grant)
        there.close()


@pytest.mark.tier2
@pytest.mark.parametrize("node", [0, 1])
def test_r22a_a_message_on_the_bus_of_a_cluster_is_no_grant(cluster: Cluster, name: str, node: int) -> None:
    """Behind a proxy that hides the cluster: the waiter is subscribed at node 0, and its lock may be elsewhere."""
    name = of_each_node(cluster, name)[node]
    owner = cluster.clients[node]
    with Router(cluster) as router, ThreadPoolExecutor(1) as pool:
        backend = RedisBackend("routed", {"url": router.url})
        held = backend.try_acquire(claim_of(name, SHORT))
        assert held is not None
        waiting = pool.submit(backend.try_acquire, claim_of(name), 10)
        eventually(lambda: queued(owner, held.claim.key) == 1, "there is no waiter")
        assert backend.release(held)
        newcomer = backend.try_acquire(claim_of(name, 3 * SHORT))
        if node == 0:
            assert newcomer is None, "the waiter was not handed the lock"
        else:
            assert newcomer is not None
            eventually(lambda: waiting.done() or queued(owner, held.claim.key) == 1, "it does not ask")
            assert not waiting.done(), "it believes that it was handed the lock, which another holds"
            assert backend.release(newcomer)
        grant = waiting.result(15)
        assert grant is not None
        assert holders(owner, grant.claim.key) == [grant.claim.token.encode()]
        assert grant.fence > max(held.fence, newcomer.fence if newcomer else 0)
        assert backend.release(grant)
        backend.close()


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
