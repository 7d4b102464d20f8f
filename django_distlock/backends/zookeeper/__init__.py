"""ZooKeeper: ephemeral sequential nodes, in order of arrival."""

from .backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]
