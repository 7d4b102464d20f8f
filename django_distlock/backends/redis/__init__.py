"""Redis: leases on one server, with a queue in order of arrival.

``RedisBackend`` is imported when it is first asked for: only then is its driver needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import RedisBackend

__all__ = ["RedisBackend"]


def __getattr__(name: str) -> Any:
    if name == "RedisBackend":
        from .backend import RedisBackend

        return RedisBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
