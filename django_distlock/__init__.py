"""Locks for Django: named locks on SQLite, PostgreSQL, MySQL and MariaDB, sync and async."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data.row import row_lock
    from .data.table import table_lock
    from .exceptions import (
        BackendUnavailable,
        DeadlockDetected,
        DistlockError,
        LockLost,
        LockNotAcquired,
        LockNotHeld,
        LockTimeout,
        UnsupportedOperation,
    )
    from .introspection import break_lock, held_locks
    from .leader import Leader
    from .lease import Lease
    from .lock import Lock, advisory_lock
    from .sets import lock_all, semaphore

__all__ = [
    "BackendUnavailable",
    "DeadlockDetected",
    "DistlockError",
    "Leader",
    "Lease",
    "Lock",
    "LockLost",
    "LockNotAcquired",
    "LockNotHeld",
    "LockTimeout",
    "UnsupportedOperation",
    "advisory_lock",
    "break_lock",
    "held_locks",
    "lock_all",
    "row_lock",
    "semaphore",
    "table_lock",
]

__version__ = "0.1.0"

# Where the public names are that are no exceptions. Each is imported when it is first asked for: pytest loads the
# package for its plugin, in projects without Django too.
_HOMES = {
    "Leader": "leader",
    "Lease": "lease",
    "Lock": "lock",
    "advisory_lock": "lock",
    "break_lock": "introspection",
    "held_locks": "introspection",
    "lock_all": "sets",
    "row_lock": "data.row",
    "semaphore": "sets",
    "table_lock": "data.table",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_HOMES.get(name, 'exceptions')}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
