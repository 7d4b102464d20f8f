"""Transactions that read an old snapshot (R13): data read under a lock may be older than the lock."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

STALE_LEVELS = frozenset({"REPEATABLE READ", "SERIALIZABLE", "SNAPSHOT"})


class StaleSnapshotWarning(RuntimeWarning):
    """A lock was taken inside a transaction that may read data from before the lock was granted."""


def warn_of_stale_snapshot(name: str, opened: list[BaseDatabaseWrapper], reported: str | None = None) -> None:
    """The snapshot of such a transaction can be older than the lock. Warns with the name and the fix.

    ``reported`` is the level that the statement of the lock has returned. No statement is sent.
    """
    for connection in opened:
        level = reported or configured_level(connection)
        if level in STALE_LEVELS:
            warnings.warn(
                f"The lock {name!r} was taken inside a {level} transaction on {connection.alias!r}. What the "
                "transaction reads may be older than the lock: its snapshot is taken before the lock is granted. Take "
                "the lock before atomic(), or use READ COMMITTED.",
                StaleSnapshotWarning,
                stacklevel=_frames_of_this_package(),
            )


def _frames_of_this_package() -> int:
    """The ``stacklevel`` at which the user's own code begins."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("django_distlock."):
        level, frame = level + 1, frame.f_back
    return level


def configured_level(connection: BaseDatabaseWrapper) -> str | None:
    """The isolation level of the settings, in capitals; None if they leave it to the server."""
    level = getattr(connection, "isolation_level", None)
    return None if level is None else str(getattr(level, "name", level)).replace("_", " ").upper()
