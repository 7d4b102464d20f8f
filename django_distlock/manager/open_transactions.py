"""Finds the transactions open around the caller: its thread's or, in a task, those of the thread that waits for it.

Only transactions that Django knows count. ``ready()`` imports this, long before the first lock is taken.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

from asgiref.sync import AsyncToSync, SyncToAsync
from django.db import connections
from django.db.backends.signals import connection_created

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# Set to True by testing.override_locks(): no transaction keeps a lock.
ignored = False

# Was a connection ever opened on the thread of an event loop, which DJANGO_ALLOW_ASYNC_UNSAFE allows?
_on_event_loop = False


def _note_connection(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Note it with its thread. Django knows the connections of the calling thread only, and to ask it takes longer than
    the rest of an acquire."""
    global _on_event_loop
    if asyncio._get_running_loop() is not None:
        _on_event_loop = True
    elif connection in connections.all(initialized_only=True):  # not a copy that other code has made for itself
        thread: Any = threading.current_thread()
        known = [ref for ref in getattr(thread, "_distlock_connections", ()) if ref() not in (None, connection)]
        thread._distlock_connections = (*known, weakref.ref(connection))
        connection.__dict__["_distlock_thread"] = weakref.ref(thread)


connection_created.connect(_note_connection, dispatch_uid="django_distlock.manager.open_transactions")


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Is a transaction open on ``connection``: ``atomic()``, or autocommit switched off by hand?

    A connection that was closed inside an ``atomic()`` block has none, although Django leaves the block only later.
    """
    if connection.closed_in_transaction:
        return False
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def orphaned(connection: BaseDatabaseWrapper) -> bool:
    """Has its thread ended? Then nobody can end its transaction: Django refuses a connection to other threads."""
    if connection.allow_thread_sharing or "_distlock_thread" not in connection.__dict__:
        return False
    thread = connection.__dict__["_distlock_thread"]()
    # the main thread has functions to call when the others have ended
    return thread is None or not (thread is threading.main_thread() or thread.is_alive())


def open_transactions(owner: object = None) -> list[BaseDatabaseWrapper]:
    """The connections that are in a transaction: those of this thread or, in a task, of the thread where its ORM calls
    run, which waits for it in ``async_to_sync`` or belongs to its ThreadSensitiveContext; and those of ``owner``, if
    that is another thread.

    This reads private names of asgiref and of thread pools, which tests pin like those of owner.py.
    """
    if ignored:
        return []
    known: tuple[weakref.ref[BaseDatabaseWrapper], ...] = ()
    thread: threading.Thread | None = None
    if asyncio._get_running_loop() is None:
        thread = threading.current_thread()
    else:
        executor = getattr(AsyncToSync.executors, "current", None)
        if executor is not None and not executor._broken:
            thread = executor._work_thread
        else:
            if (context := SyncToAsync.thread_sensitive_context.get(None)) is not None:
                pool: Any = SyncToAsync.context_to_thread_executor.get(context)
                thread = next(iter(pool._threads), None) if pool is not None else None
            if _on_event_loop:  # Django keeps other connections for the async code of a thread
                known = tuple(map(weakref.ref, connections.all(initialized_only=True)))
    if thread is not None:
        known += getattr(thread, "_distlock_connections", ())
    if owner is not thread and isinstance(owner, threading.Thread) and owner.is_alive():
        known += getattr(owner, "_distlock_connections", ())
    if not known:
        return []
    return [connection for ref in known if (connection := ref()) is not None and in_transaction(connection)]
