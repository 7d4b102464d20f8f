"""Finds the transactions open around the caller: its thread's or, in a task, those of the thread that waits for it.

Only transactions that Django knows count. ``ready()`` imports this, long before the first lock is taken.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

from asgiref.sync import AsyncToSync
from django.db import connections
from django.db.backends.signals import connection_created

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# Django's connections that were ever opened, by the thread they belong to. Django itself knows those of the calling
# thread only, and to ask it takes longer than the rest of an acquire.
_opened: weakref.WeakKeyDictionary[threading.Thread, tuple[weakref.ref[BaseDatabaseWrapper], ...]] = (
    weakref.WeakKeyDictionary()
)

# Set to True by testing.override_locks(): no transaction keeps a lock.
ignored = False


def _note_connection(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    thread = threading.current_thread()
    known = [ref for ref in _opened.get(thread, ()) if ref() not in (None, connection)]
    _opened[thread] = (*known, weakref.ref(connection))


connection_created.connect(_note_connection, dispatch_uid="django_distlock.manager.open_transactions")


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Is a transaction open on ``connection``: ``atomic()``, or autocommit switched off by hand?

    A connection that was closed inside an ``atomic()`` block has none, although Django leaves the block only later.
    """
    if connection.closed_in_transaction:
        return False
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def open_transactions() -> list[BaseDatabaseWrapper]:
    """The connections that are in a transaction: those of this thread or, in a task, of the thread that waits for it
    in ``async_to_sync``, where the task's ORM calls run.

    This reads two private names of asgiref, which tests pin like those of owner.py.
    """
    if asyncio._get_running_loop() is not None:
        executor = getattr(AsyncToSync.executors, "current", None)
        if executor is not None and not executor._broken:
            return of_thread(executor._work_thread)
    found = of_thread(threading.current_thread())
    # not the copies that other code has made, and not those that Django keeps for the async code of the same thread
    return [each for each in found if each.alias in connections.settings and connections[each.alias] is each]


def of_thread(thread: threading.Thread) -> list[BaseDatabaseWrapper]:
    """The connections of a thread that are in a transaction."""
    if ignored:
        return []
    known = (ref() for ref in _opened.get(thread, ()))
    return [connection for connection in known if connection is not None and in_transaction(connection)]
