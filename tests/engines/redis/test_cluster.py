"""A Redis Cluster is refused, before it answers some names and not others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, UnsupportedOperation, advisory_lock, held_locks
from django_distlock.backends.redis import target
from django_distlock.backends.redis.commands import keys_of
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.operations.doctor import diagnose
from tests.engines.redis.cluster import Cluster
from tests.engines.redis.server import BACKEND, url

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("databases")
MEANS = "node of a Redis Cluster has only a part of the names.*Use a server without cluster mode"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


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
    for each in names[:5]:
        lock = advisory_lock(each, using=alias, timeout=1)
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
        advisory_lock(name, using="votes").acquire(timeout=1)
    texts = [finding.text for finding in diagnose("votes") if finding.level == "error"]
    assert sum(text.startswith(("Node 1: A node of", "Node 2: A node of")) for text in texts) == 2
