"""Django's open connections, of all threads: Django itself knows those of the calling thread only.

``ready()`` imports this, long before the first lock is taken.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from django.db.backends.signals import connection_created

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_opened: weakref.WeakValueDictionary[int, BaseDatabaseWrapper] = weakref.WeakValueDictionary()


def opened_connections() -> list[BaseDatabaseWrapper]:
    """The connections of this process that were ever opened, as long as they exist."""
    # values() would fail when another thread opens a connection meanwhile; this makes one list of references
    return [connection for reference in _opened.valuerefs() if (connection := reference()) is not None]


def _note(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    _opened[id(connection)] = connection


connection_created.connect(_note, dispatch_uid="django_distlock.backends.opened")
