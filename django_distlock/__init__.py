"""Locks for Django: named locks on SQLite, PostgreSQL, MySQL and MariaDB, sync and async."""

from __future__ import annotations

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
