"""MySQL and MariaDB: named locks (GET_LOCK) on a session of the process.

``NamedLockBackend`` is imported when it is first asked for: only then is its driver needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import NamedLockBackend

__all__ = ["NamedLockBackend"]


def __getattr__(name: str) -> Any:
    if name == "NamedLockBackend":
        from .backend import NamedLockBackend

        return NamedLockBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
