"""R22a, R22b: a node of a cluster is refused; a hand-over is a grant only if the server that granted it says so."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, UnsupportedOperation, advisory_lock, held_locks
from django_distlock.backends.redis import target
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.commands import keys_of
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.operations.doctor import diagnose
from tests.conftest import eventually
from tests.engines.actors import share_and_write
from tests.engines.redis.cluster import Cluster, Router
from tests.engines.redis.server import BACKEND, Own, claim_of, client, url, waiters
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


MEANS = "node of a Redis Cluster has only a part of the names.*Use a server without cluster mode"


@pytest.fixture
def alias(cluster: Cluster, settings: Any) -> str:
    settings.DISTLOCK = {"node": {"BACKEND": BACKEND, "OPTIONS": {"url": cluster.url(0)}}}
    return "node"


@pytest.mark.parametrize("hidden", [False, True], ids=["by its first reply", "by MOVED"])
def test_r22b_each_name_is_refused_alike(alias: str, name: str, hidden: bool, monkeypatch: Any) -> None:
    """Two thirds of the names are of other nodes. redis-py before 5.1 keeps nothing of the first reply."""
    site_key.load()
    if hidden:
        monkeypatch.setattr(target, "_clustered", lambda connection: False)
    names = [f"{name}{number}" for number in range(30)]
    if hidden:
        key_of = registry.entry(alias).key
        names = [each for each in names if Cluster.node_of(keys_of(key_of(each))[0]) != 0]
    for each in names[:3]:
        lock = advisory_lock(each, using=alias, timeout=5)
        with pytest.raises(UnsupportedOperation, match="The Redis server of alias 'node': A " + MEANS):
            lock.acquire()
        with pytest.raises(UnsupportedOperation, match=MEANS):
            asyncio.run(lock.aacquire())
    if not hidden:
        assert [report.error for report in held_locks(alias)] == ["ClusterNode"]


@pytest.mark.parametrize("database", [0, 1])
def test_the_doctor_says_so_whatever_the_name_is(cluster: Cluster, settings: Any, database: int) -> None:
    options = {"url": cluster.url(0).removesuffix("0") + str(database)}
    settings.DISTLOCK = {"node": {"BACKEND": BACKEND, "OPTIONS": options}}
    found = [finding for finding in diagnose("node") if finding.alias]
    assert [finding.level for finding in found] == ["error"]
    assert "No lock can be acquired: The Redis server of alias 'node': A node of a Redis Cluster" in found[0].text


def test_the_doctor_asks_the_server_too(alias: str, monkeypatch: Any) -> None:
    """A proxy may answer for it, and pass INFO on."""
    monkeypatch.setattr(target, "_clustered", lambda connection: False)
    found = [finding for finding in diagnose(alias) if finding.level == "error"]
    assert [finding for finding in found if finding.text.startswith("A node of a Redis Cluster")]


def test_redlock_says_which_nodes_are_in_a_cluster(cluster: Cluster, settings: Any, name: str) -> None:
    options = {"nodes": [cluster.url(0), cluster.url(1), url()]}
    settings.DISTLOCK = {"votes": {"BACKEND": BACKEND.replace("redis.RedisB", "redlock.RedlockB"), "OPTIONS": options}}
    with pytest.raises(BackendUnavailable, match="2 of 3 Redis nodes failed: 1, 2 .*" + MEANS):
        advisory_lock(name, using="votes").acquire(timeout=5)
    texts = [finding.text for finding in diagnose("votes") if finding.level == "error"]
    assert sum(text.startswith(("Node 1: A node of", "Node 2: A node of")) for text in texts) == 2


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
