"""A Redis Cluster of three masters."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Self

from redis.crc import key_slot

from tests.conftest import eventually
from tests.engines.redis.server import Own, lock_keys
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from pathlib import Path

SLOTS = 16384
NODES = 3


class Cluster:
    """Each node has a third of the slots."""

    def __init__(self, folder: Path) -> None:
        self._stack = contextlib.ExitStack()
        self._nodes = [Own(folder / str(number), self.options) for number in range(NODES)]
        self.clients = [node.client for node in self._nodes]
        self.ports = [node.port for node in self._nodes]

    @property
    def options(self) -> str:
        """Of the server of one node."""
        return f"--cluster-enabled yes --cluster-port {free_port()}"

    def url(self, node: int) -> str:
        return f"redis://127.0.0.1:{self.ports[node]}/0"

    def signal(self, node: int, number: int) -> None:
        self._nodes[node].signal(number)

    @staticmethod
    def node_of(key: bytes) -> int:
        """The node that has a key."""
        return key_slot(key) * NODES // SLOTS

    def joined_by(self, replica: Own, node: int) -> None:
        """Let another server follow a node, in step with it."""
        replica.client.config_set("repl-diskless-sync-delay", 0)
        bus = self.clients[0].config_get("cluster-port")["cluster-port"]
        replica.client.cluster("meet", "127.0.0.1", self.ports[0], bus)
        known = b"cluster_known_nodes:%d" % (NODES + 1)
        eventually(lambda: known in replica.client.execute_command("CLUSTER", "INFO"), "they do not meet")
        replica.client.cluster("replicate", self.clients[node].cluster("myid"))
        eventually(lambda: replica.client.info("replication").get("master_link_status") == "up", "it does not follow")

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for node in self._nodes:
                stack.enter_context(node)
            addresses = [f"127.0.0.1:{port}" for port in self.ports]
            create = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
            subprocess.run(create, check=True, capture_output=True, timeout=60)
            eventually(self._whole, "the cluster does not form")
            self._stack = stack.pop_all()
        return self

    def _whole(self) -> bool:
        return all(b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO") for client in self.clients)

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def of_each_node(cluster: Cluster, name: str) -> list[str]:
    """One name for each node."""
    names = [f"{name}{number}" for number in range(100)]
    return [next(each for each in names if cluster.node_of(lock_keys(each)[0]) == node) for node in range(NODES)]


def move(cluster: Cluster, name: str, source: int, target: int) -> None:
    """The slot of a lock goes to another node, with its keys."""
    slot = cluster.clients[source].cluster("keyslot", lock_keys(name)[0])
    ids = [client.cluster("myid") for client in cluster.clients]
    cluster.clients[target].cluster("setslot", slot, "importing", ids[source])
    cluster.clients[source].cluster("setslot", slot, "migrating", ids[target])
    keys = cluster.clients[source].cluster("getkeysinslot", slot, 100)
    if keys:
        cluster.clients[source].migrate("127.0.0.1", cluster.ports[target], keys, 0, 5000)
    for client in (cluster.clients[target], cluster.clients[source], *cluster.clients):
        client.cluster("setslot", slot, "node", ids[target])
