"""R1, R21: servers that fail over under load. Nobody is in beside another one, whichever server decides."""

from __future__ import annotations

import contextlib
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings

from django_distlock import DistlockError, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.own_servers import ensemble, needs_programs
from tests.engines.redis.cluster import Cluster, move, of_each_node
from tests.engines.redis.server import Own, fail_over
from tests.faults.history import History, Journal
from tests.faults.proxy import Proxy
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# `DISTLOCK_HOLDS=200 pytest tests/faults/test_fail_overs.py` for more between two faults.
WORKERS, HOLDS = 4, int(os.environ.get("DISTLOCK_HOLDS", "30"))
PATIENCE = 60.0  # seconds for an election on a busy machine
# No release is lost in a fail-over that is in order: a lock would stay held until its TTL of 30 s. Seconds.
LONGEST = 15.0
pytestmark = [pytest.mark.tier2, pytest.mark.timeout(300), pytest.mark.usefixtures("databases")]


def work(link: Any, name: str, using: str, options: dict[str, Any], ledger: str, over: str) -> None:
    """Take the lock and write into the ledger until there is a file ``over``. ``options``: the OPTIONS of the alias."""
    settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "OPTIONS": options}}
    journal = Journal(ledger)
    link.say("ready")
    while not Path(over).exists():
        with contextlib.suppress(DistlockError), journal.hold(advisory_lock(name, using=using, timeout=5)):
            time.sleep(0.002)
    registry.close()
    link.say("done")


@contextlib.contextmanager
def under_load(name: str, using: str, folder: Path, longest: float, **options: Any) -> Iterator[Callable[[], None]]:
    """Gives a function that waits until the lock was had HOLDS times more. At the end of the block nobody was in beside
    another one, the fence rose from holder to holder, nobody waited for more than ``longest`` seconds, and everybody
    had a turn."""
    ledger, over = folder / "ledger", folder / "over"
    ledger.touch()

    def holds() -> int:
        return ledger.read_text().count('"granted"')

    def goes_on() -> None:
        before = holds()
        eventually(lambda: holds() >= before + HOLDS, "nobody gets the lock", PATIENCE + HOLDS / 10, pause=0.05)

    with contextlib.ExitStack() as stack:
        arguments = (name, using, options, str(ledger), str(over))
        workers = [stack.enter_context(Child(work, *arguments)) for _ in range(WORKERS)]
        for worker in workers:
            assert worker.hear() == "ready"
        goes_on()
        yield goes_on
        over.touch()
        assert [worker.hear() for worker in workers] == ["done"] * WORKERS
    history = History.read(ledger)
    assert history.check() == []
    assert max(after.acquired - before.acquired for before, after in pairwise(history.holds)) < longest
    assert {hold.pid for hold in history.holds} == {worker.pid for worker in workers}


@needs_programs
def test_the_leader_of_zookeeper_is_killed(name: str, tmp_path: Path) -> None:
    with ensemble() as servers:
        hosts = ",".join(f"127.0.0.1:{server.server['port']}" for server in servers)
        with under_load(name, "zookeeper", tmp_path, PATIENCE, hosts=hosts, session_timeout=6) as goes_on:
            for _ in range(2):
                leader = next(server for server in servers if server.mode() == "leader")
                leader.kill()
                goes_on()
                leader.start()
                eventually(leader.mode, "it does not come back", PATIENCE, pause=0.1)
                goes_on()


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
