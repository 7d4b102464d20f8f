"""Finds the transactions open around the caller: its thread's or, in a task, those of the thread that waits for it."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any

from asgiref.sync import AsyncToSync
from django.db import connections
from django.db.backends.signals import connection_created

from django_distlock.backends.begin_listener import BeginListener, server_inside
from django_distlock.backends.opened import opened_connections

from . import owner
from .lock_table import lock_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from .lock_table import Hold


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Is a transaction open on ``connection``: ``atomic()``, or autocommit switched off by hand?

    A connection that was closed inside an ``atomic()`` block has none, although Django leaves the block only later.
    """
    if connection.closed_in_transaction:
        return False
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


class _Connections(threading.local):
    """Django's connections of this thread, cached until any thread opens a connection.

    A connection that was never opened is in no transaction. The look-up costs more than the rest of an acquire.
    """

    seen = -1
    known: tuple[tuple[BaseDatabaseWrapper, Callable[[Any], object]], ...] = ()
    mysql: tuple[BaseDatabaseWrapper, ...] = ()


_connections = _Connections()
_connected = itertools.count(1)
_latest = 0

# libpq's INTRANS and INERROR: https://www.postgresql.org/docs/current/libpq-status.html
_PG_INSIDE = (2, 3)

# What tells of a transaction on an open connection, by vendor. It is read at each release: psycopg's info is thirty
# times slower than its pgconn; psycopg2 has only info.
_INSIDE: dict[str, Callable[[Any], object]] = {
    "sqlite": lambda connection: connection.connection.in_transaction,
    "postgresql": lambda connection: (
        (getattr(connection.connection, "pgconn", None) or connection.connection.info).transaction_status in _PG_INSIDE
    ),
    "mysql": server_inside,
}


def _unknown(connection: object) -> bool:
    """For a database that does not report transactions."""
    return False


# Set to False by testing.override_locks(): the transactions that TestCase puts around its tests keep no locks.
testcases_count = True


def _note_connection(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    global _latest  # a number that only rises
    _latest = next(_connected)
    connection.__dict__.pop("_distlock_may_be_inside", None)
    if connection.vendor == "mysql" and (held := lock_table.held()):  # opened under locks that the caller holds already
        caller = owner.current()
        for hold in held:
            if hold.owner is caller:
                lock_table.listen(hold, BeginListener.of(connection))


connection_created.connect(_note_connection, dispatch_uid="django_distlock.manager.open_transactions")


def open_transactions(by_sql: list[BaseDatabaseWrapper] | None = None) -> list[BaseDatabaseWrapper]:
    """The connections of the caller that are inside a transaction.

    The connections of a thread in a transaction that was begun by ``BEGIN`` in a cursor, unseen by Django, are added to
    ``by_sql``. The drivers report it without a statement; for mysqlclient see backends/begin_listener.py.
    """
    if asyncio._get_running_loop() is not None:
        return _around_task()
    here = _connections
    if here.seen != _latest:
        here.seen = _latest
        present = tuple(connections.all(initialized_only=True))
        here.known = tuple((connection, _INSIDE.get(connection.vendor, _unknown)) for connection in present)
        here.mysql = tuple(connection for connection in present if connection.vendor == "mysql")
    found = []
    for connection, inside in here.known:  # spelt out: this is asked at every acquire and every release
        raw = connection.connection
        if (
            connection.in_atomic_block or (raw is not None and not connection.autocommit)
        ) and not connection.closed_in_transaction:  # in_transaction()
            found.append(connection)
        elif by_sql is not None and raw is not None and _reported(inside, connection):
            by_sql.append(connection)
    return found if testcases_count else _without_testcases(found)


def _without_testcases(found: list[BaseDatabaseWrapper]) -> list[BaseDatabaseWrapper]:
    return [connection for connection in found if testcases_count or not only_testcases(connection)]


def only_testcases(connection: BaseDatabaseWrapper) -> bool:
    """Are all open blocks of ``connection`` those of TestCase, around the class and the test?"""
    blocks: Any = connection.atomic_blocks
    return bool(blocks) and all(block._from_testcase for block in blocks)


def in_testcase(connection: BaseDatabaseWrapper) -> bool:
    """Is the outermost transaction that of a TestCase, which is to be ignored?"""
    blocks: Any = connection.atomic_blocks
    return not testcases_count and bool(blocks) and bool(blocks[0]._from_testcase)


def of_thread(thread: threading.Thread) -> list[BaseDatabaseWrapper]:
    """The connections of another thread that are inside a transaction."""
    return _of_ident(thread.ident) if thread.is_alive() else []


def _of_ident(ident: int | None) -> list[BaseDatabaseWrapper]:
    found = [connection for connection in opened_connections() if getattr(connection, "_thread_ident", None) == ident]
    return _without_testcases([connection for connection in found if in_transaction(connection)])


def listen_for_begin(hold: Hold, opened: list[BaseDatabaseWrapper]) -> None:
    """Watch for transactions that the driver does not report. Called when a lock was granted, with the open ones: it is
    not released before they end."""
    for connection in _connections.mysql:
        if connection not in opened:
            lock_table.listen(hold, BeginListener.of(connection))


def driver_inside(connection: BaseDatabaseWrapper) -> bool:
    """Does the driver report an open transaction? No statement is sent, except to MySQL after one like BEGIN."""
    inside = _INSIDE.get(connection.vendor)
    return inside is not None and connection.connection is not None and _reported(inside, connection)


def _reported(inside: Callable[[Any], object], connection: BaseDatabaseWrapper) -> bool:
    try:
        return bool(inside(connection))
    except Exception:  # an error of the driver: the connection is closed, so no transaction is open
        return False


def _around_task() -> list[BaseDatabaseWrapper]:
    """The open transactions around a task: those of the thread that waits for it in ``async_to_sync``.

    A task has no connections; its ORM calls run in that thread. This reads two private names of asgiref, which tests
    pin like those of owner.py. Most often no thread is in a transaction, and asgiref need not be asked.
    """
    if not any(map(in_transaction, opened_connections())):
        return []
    executor = getattr(AsyncToSync.executors, "current", None)
    if executor is not None and not executor._broken:
        return _of_ident(executor._work_thread.ident)
    if os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):  # Django keeps other connections for the async code of a thread
        found = list(connections.all(initialized_only=True))
        return _without_testcases([connection for connection in found if in_transaction(connection)])
    return []
