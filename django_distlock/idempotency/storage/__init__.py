"""Where claims and answers are kept: one file for each kind of storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections

from django_distlock.idempotency.conf import config
from django_distlock.idempotency.storage import sealing

from .base import Storage, TooManyKeys

if TYPE_CHECKING:
    from .database import DatabaseStorage


def storage_of(alias: str | None = None) -> Storage:
    """The storage that the setting names; with ``alias`` the table in that database, for the exactly-once mode."""
    sealing.require()
    # what a project does not use is not imported
    if alias is None and config().storage == "cache":
        from .cache import CacheStorage

        return CacheStorage(config().cache)
    return table_in(alias or config().database)


def table_in(alias: str) -> DatabaseStorage:
    """The table in one database, with the statements that its server understands."""
    from .database import DatabaseStorage
    from .statements import NOW

    if connections[alias].vendor in NOW:
        return DatabaseStorage(alias)
    from .portable import PortableStorage

    return PortableStorage(alias)


__all__ = ["Storage", "TooManyKeys", "storage_of", "table_in"]
