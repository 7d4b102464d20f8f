"""ZooKeeper: ephemeral sequential nodes, in order of arrival.

``ZooKeeperBackend`` is imported when it is first asked for: only then is its driver needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import ZooKeeperBackend

__all__ = ["ZooKeeperBackend"]


def __getattr__(name: str) -> Any:
    if name == "ZooKeeperBackend":
        from .backend import ZooKeeperBackend

        return ZooKeeperBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
