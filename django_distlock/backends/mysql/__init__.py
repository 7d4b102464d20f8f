"""MySQL and MariaDB: named locks (GET_LOCK) on a session of the process."""

from .backend import NamedLockBackend

__all__ = ["NamedLockBackend"]
