"""Locks for Django: named locks, locks on rows and tables, leader election; sync and async."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_distlock.data.retrying import retrying
    from django_distlock.data.rows.lock import row_lock
    from django_distlock.data.tables.lock import table_lock
    from django_distlock.locks.leader import Leader, Term
    from django_distlock.locks.lease import Lease, LeaseSet
    from django_distlock.locks.lock import Lock, advisory_lock, alocked, locked
    from django_distlock.locks.lockset import lock_all, semaphore
    from django_distlock.manager.introspection import break_lock, held_locks
    from django_distlock.manager.isolation import StaleSnapshotWarning

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
    from .records import BackendReport, LockInfo

__all__ = [
    "BackendReport",
    "BackendUnavailable",
    "DeadlockDetected",
    "DistlockError",
    "Leader",
    "Lease",
    "LeaseSet",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockNotAcquired",
    "LockNotHeld",
    "LockTimeout",
    "StaleSnapshotWarning",
    "Term",
    "UnsupportedOperation",
    "advisory_lock",
    "alocked",
    "break_lock",
    "held_locks",
    "lock_all",
    "locked",
    "retrying",
    "row_lock",
    "semaphore",
    "table_lock",
]

__version__ = "0.1.0"

# The modules of the public names that are no exceptions. A name is imported when it is first used: pytest imports the
# package for its plugin, also in projects without Django.
_HOMES = {
    "BackendReport": "records",
    "Leader": "locks.leader",
    "Lease": "locks.lease",
    "LeaseSet": "locks.lease",
    "Lock": "locks.lock",
    "LockInfo": "records",
    "StaleSnapshotWarning": "manager.isolation",
    "Term": "locks.leader",
    "advisory_lock": "locks.lock",
    "alocked": "locks.lock",
    "break_lock": "manager.introspection",
    "held_locks": "manager.introspection",
    "lock_all": "locks.lockset",
    "locked": "locks.lock",
    "retrying": "data.retrying",
    "row_lock": "data.rows.lock",
    "semaphore": "locks.lockset",
    "table_lock": "data.tables.lock",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_HOMES.get(name, 'exceptions')}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
