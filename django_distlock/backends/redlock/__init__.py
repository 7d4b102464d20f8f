"""Redlock: one lock on several independent Redis nodes, held by a majority.

``RedlockBackend`` is imported when it is first asked for: only then is its driver needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import RedlockBackend

__all__ = ["RedlockBackend"]


def __getattr__(name: str) -> Any:
    if name == "RedlockBackend":
        from .backend import RedlockBackend

        return RedlockBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
