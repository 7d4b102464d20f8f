"""Where claims and answers are kept: one file for each kind of storage."""

from __future__ import annotations

from django_distlock.idempotency.conf import config

from .base import Storage


def storage_of(alias: str | None = None) -> Storage:
    """The storage that the setting names; with ``alias`` the table in that database, for the exactly-once mode."""
    # what a project does not use is not imported
    if alias is None and config().storage == "cache":
        from .cache import CacheStorage

        return CacheStorage(config().cache)
    from .database import DatabaseStorage

    return DatabaseStorage(alias or config().database)


__all__ = ["Storage", "storage_of"]
