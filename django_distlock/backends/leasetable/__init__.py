"""Lease table: leases as rows, on SQLite and on any other database.

``LeaseTableBackend`` is imported when it is first asked for: only then is its driver needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import LeaseTableBackend

__all__ = ["LeaseTableBackend"]


def __getattr__(name: str) -> Any:
    if name == "LeaseTableBackend":
        from .backend import LeaseTableBackend

        return LeaseTableBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
