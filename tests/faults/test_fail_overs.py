"""R1, R21: servers that fail over under load. Nobody is in beside another one, whichever server decides."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings

from django_distlock import LockLost, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import share_and_write
from tests.engines.own_servers import EnsembleServer, ensemble, needs_programs
from tests.engines.redis.cluster import Cluster, move, of_each_node
from tests.engines.redis.server import Own, fail_over
from tests.engines.zookeeper.server import use
from tests.faults.proxy import Proxy
from tests.faults.under_load import PATIENCE, under_load
from tests.support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

# No release is lost in a fail-over that is in order: a lock would stay held until its TTL of 30 s. Seconds.
LONGEST = 15.0
pytestmark = [pytest.mark.tier2, pytest.mark.timeout(300), pytest.mark.usefixtures("databases")]


def _leader(servers: list[EnsembleServer]) -> EnsembleServer:
    return next(server for server in servers if server.mode() == "leader")


@needs_programs
def test_the_leader_of_zookeeper_is_killed(name: str, tmp_path: Path) -> None:
    with ensemble() as servers:
        hosts = ",".join(f"127.0.0.1:{server.server['port']}" for server in servers)
        with under_load(name, "zookeeper", tmp_path, PATIENCE, hosts=hosts, session_timeout=6) as goes_on:
            for _ in range(2):
                leader = _leader(servers)
                leader.kill()
                goes_on()
                leader.start()
                eventually(leader.mode, "it does not come back", PATIENCE, pause=0.1)
                goes_on()


@needs_programs
def test_r18_a_follower_that_its_leader_does_not_hear(name: str, settings: Any) -> None:
    """It answers what is read for 5 s more (syncLimit), and its clients' sessions end before."""
    with ensemble() as servers:
        lonely, leader = (f"127.0.0.1:{server.server['port']}" for server in (servers[0], _leader(servers)))
        use(settings, hosts=lonely, session_timeout=3)
        lease = advisory_lock(name, using="zookeeper").acquire()
        now = held = time.monotonic()
        with Child(enter, name, leader) as rival:
            assert rival.hear() == "asking"
            for way in servers[0].ways:
                way.blackhole()
            while lease.held:
                held, now = now, time.monotonic()
                time.sleep(0.005)
            assert held < rival.hear(), "two holders at once"
            rival.say()
        with contextlib.suppress(LockLost):
            lease.release()
        registry.close()


def enter(link: Any, name: str, hosts: str) -> None:
    """Wait for the lock at these servers."""
    use(settings, hosts=hosts, session_timeout=3)
    share_and_write(link, "zookeeper", name)


def test_a_primary_of_redis_hands_over_to_its_replica(name: str, tmp_path: Path) -> None:
    """In order. Clients have one address, which moves on; old connections live on."""
    with Own(tmp_path / "one") as one, Own(tmp_path / "two") as two, Proxy("127.0.0.1", one.port) as address:
        two.follow(one)
        one.client.config_set("repl-diskless-sync-delay", 0)
        two.client.config_set("repl-diskless-sync-delay", 0)
        url = f"redis://127.0.0.1:{address.port}/0"
        with under_load(name, "redis", tmp_path, LONGEST, url=url) as goes_on:
            for old, new in ((one, two), (two, one)):
                fail_over(old.client, new.client)
                address.target = ("127.0.0.1", new.port)
                goes_on()


def test_a_node_of_a_cluster_fails_over_and_slots_move(name: str, tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, Own(tmp_path / "replica", cluster.options) as replica:
        cluster.joined_by(replica, 0)
        name = of_each_node(cluster, name)[0]
        with under_load(name, "redis", tmp_path, LONGEST, url=cluster.url(1)) as goes_on:
            for source, target in ((0, 1), (1, 2), (2, 0)):
                move(cluster, name, source, target)
                goes_on()
            replica.client.cluster("failover")
            eventually(lambda: replica.client.info("replication")["role"] == "master", "no fail-over")
            goes_on()
