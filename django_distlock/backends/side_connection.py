"""A connection beside Django's: outside of the caller's transaction and pool, and with a deadline.

A statement on Django's own connection waits for a server that hangs for as long as TCP does.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import OperationalError, connections
from django.db.utils import load_backend

from django_distlock.concurrency import clock, sockets
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.deadline import PATIENCE
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.fork import Order, at_fork

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")

SERVERS = ("postgresql", "mysql")
# Whole seconds after which a driver gives up connecting, in a thread that may have been abandoned.
CONNECT_LIMIT = 3

_questions: dict[str, Background] = {}
at_fork(Order.THREADS, child=_questions.clear)  # the abandoned ones are the parent's


class Silent(OperationalError):
    """The server did not answer in time."""


def code_of(error: BaseException) -> object:
    """The SQLSTATE or the number of a database error of Django's or of a driver's."""
    cause = error.__cause__ or error
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or (cause.args or (None,))[0]


class SideConnection:
    """A database wrapper as Django has, for this package alone, in autocommit.

    ``options`` are added to those of the database alias, unless it sets them.
    """

    def __init__(self, database: str, **options: Any) -> None:
        settings = copy.deepcopy(connections.settings[database])
        settings["AUTOCOMMIT"] = True
        self.options = settings["OPTIONS"] = {**options, **(settings.get("OPTIONS") or {})}
        self.options.pop("pool", None)
        self.name = settings["NAME"]
        self.wrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, database)
        if self.wrapper.vendor in SERVERS:
            self.options.setdefault("connect_timeout", CONNECT_LIMIT)
        if self.wrapper.vendor == "postgresql":
            self.options.setdefault("application_name", "distlock")
        self.wrapper.inc_thread_sharing()
        # guards the descriptors: once one is closed, another file may get its number, which cut() must not end
        self._end = threading.Lock()
        #: The driver's descriptor; -1 if there is none.
        self.fd = -1
        #: A duplicate of that, which stays ours whatever the driver does with its own: any error may close it.
        self.descriptor = -1

    def open_driver(self) -> None:
        """Connect, without the statements that Django sends on a new connection of the application. Slow, and deaf to
        deadlines."""
        wrapper = self.wrapper
        with wrapper.wrap_database_errors:
            raw: Any = wrapper.get_new_connection(wrapper.get_connection_params())
        wrapper.connection = raw
        with contextlib.suppress(Exception):  # not every driver has fileno()
            self.fd = raw.fileno()
        if self.fd >= 0:
            try:
                self.descriptor = os.dup(self.fd)
            except OSError as error:  # without it a statement that hangs could not be ended
                self.close()
                raise OperationalError(str(error)) from error

    def open(self) -> None:
        """:meth:`open_driver`, with the settings of the application's connections. No signal is sent: receivers of
        ``connection_created`` expect a connection of the application."""
        self.open_driver()
        self.wrapper.set_autocommit(True)
        self.wrapper.init_connection_state()

    def cut(self) -> None:
        """End the session from another thread, so that a statement that hangs fails."""
        with self._end:
            if self.descriptor >= 0:
                sockets.shut(self.descriptor)

    def close(self) -> None:
        """Close the connection. Errors are dropped."""
        with self._end:
            self.fd = -1
            descriptor, self.descriptor = self.descriptor, -1
            raw, self.wrapper.connection = self.wrapper.connection, None
        if raw is not None:
            with contextlib.suppress(Exception):
                raw.close()
        if descriptor >= 0:
            os.close(descriptor)

    def abandon(self, fd: int) -> None:
        """In the child of a fork: never close it, since the driver would say goodbye on the parent's socket. ``fd`` is
        the driver's descriptor, -1 if it has closed that."""
        if fd >= 0:
            sockets.silence(fd)
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        _inherited.append(self)


_inherited: list[SideConnection] = []


def ask(database: str, question: Callable[[BaseDatabaseWrapper], T], patience: float = PATIENCE) -> T:
    """The result of ``question`` on a side connection. Errors are Django's; Silent if the server of the database alias
    hangs for ``patience`` seconds.

    SQLite and servers of other kinds are asked on Django's own connection, without a deadline.
    """
    if connections[database].vendor not in SERVERS:
        return question(connections[database])
    connection = SideConnection(database)
    background = _questions.setdefault(database, Background(f"distlock-{database}-ask"))
    try:
        answer: T = run(background.call(clock.now() + patience, _answer, connection, question))
        return answer
    except CallTimeout:
        connection.cut()
        raise Silent(f"The database {database!r} does not answer within {patience:g} s.") from None
    except NotStarted as error:
        raise Silent(f"The database {database!r} does not answer. {error}") from error


def _answer(connection: SideConnection, question: Callable[[BaseDatabaseWrapper], T]) -> T:
    try:
        connection.open()
        return question(connection.wrapper)
    finally:
        connection.close()
