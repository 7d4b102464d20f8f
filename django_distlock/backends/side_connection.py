"""A connection of our own beside Django's: outside of the caller's transaction and pool, and ended when a server hangs,
which Django's would wait for as long as TCP does."""

from __future__ import annotations

import contextlib
import copy
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import OperationalError, connections
from django.db.utils import load_backend

from django_distlock.concurrency import sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")

SERVERS = ("postgresql", "mysql")
# How long a thread that connects may go on when nobody waits for it any more; whole seconds for the drivers.
CONNECT_LIMIT = 3
PATIENCE = 2.0


class Silent(OperationalError):
    """The server did not answer in time."""


class Direct:
    """A private wrapper of Django's, in autocommit."""

    def __init__(self, database: str) -> None:
        settings = copy.deepcopy(connections.settings[database])
        settings["AUTOCOMMIT"] = True
        self.options = settings["OPTIONS"] = dict(settings.get("OPTIONS") or {})
        self.options.pop("pool", None)
        self.name = settings["NAME"]
        self.wrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, database)
        if self.wrapper.vendor in SERVERS:
            self.options.setdefault("connect_timeout", CONNECT_LIMIT)
        if self.wrapper.vendor == "postgresql":
            self.options.setdefault("application_name", "distlock")
        self.wrapper.inc_thread_sharing()
        # a thread may end the conversation while another closes the descriptor, whose number is then somebody else's
        self._end = threading.Lock()
        self._fd = -1

    def open(self) -> None:
        """Connect. Slow, and deaf to deadlines."""
        with self.wrapper.wrap_database_errors:
            self.wrapper.connect()
        raw: Any = self.wrapper.connection
        with contextlib.suppress(Exception):  # not every driver has one
            self._fd = raw.fileno()

    def cut(self) -> None:
        """End the conversation from another thread, so that a statement that hangs fails."""
        with self._end:
            if self._fd >= 0:
                sockets.shut(self._fd)

    def close(self) -> None:
        with self._end:
            self._fd = -1
            raw, self.wrapper.connection = self.wrapper.connection, None
        if raw is not None:
            with contextlib.suppress(Exception):
                raw.close()


def ask(database: str, question: Callable[[BaseDatabaseWrapper], T], patience: float = PATIENCE) -> T:
    """What ``question`` finds on a connection of its own. Errors are Django's; Silent if the server of the database
    alias hangs for ``patience`` seconds.

    What is no server (SQLite), or none that we know, is asked on Django's own connection, with no bound on time.
    """
    if connections[database].vendor not in SERVERS:
        return question(connections[database])
    asking = _Asking(database, question)
    asking.start()
    asking.join(patience)
    if asking.is_alive():
        asking.direct.cut()
        raise Silent(f"The database {database!r} does not answer within {patience:g} s.")
    if asking.error is not None:
        raise asking.error
    return asking.answers[0]


class _Asking(threading.Thread, Generic[T]):
    """If nobody waits for it any more it goes on by itself, for as long as a driver takes to connect."""

    def __init__(self, database: str, question: Callable[[BaseDatabaseWrapper], T]) -> None:
        super().__init__(name=f"distlock-{database}-ask", daemon=True)
        self.direct = Direct(database)
        self.answers: list[T] = []
        self.error: BaseException | None = None
        self._question = question

    def run(self) -> None:
        try:
            self.direct.open()
            self.answers.append(self._question(self.direct.wrapper))
        except BaseException as error:
            self.error = error
        finally:
            self.direct.close()


def answers(database: str) -> None:
    """Nothing if the server does; else as :func:`ask`."""

    def question(connection: BaseDatabaseWrapper) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    ask(database, question)


@contextmanager
def attended(database: str) -> Iterator[None]:
    """For statements on Django's own connection of this thread: one that waits for a server that hangs fails. If it
    hangs before the block has begun, Silent at once."""
    connection: Any = connections[database]
    if connection.vendor not in SERVERS:
        yield
        return
    answers(database)
    over, guard = threading.Event(), threading.Lock()

    def watch() -> None:
        while not over.wait(PATIENCE):
            try:
                answers(database)
            except Silent:
                with guard, contextlib.suppress(Exception):  # it may just be connecting
                    if not over.is_set():
                        sockets.shut(connection.connection.fileno())
            except Exception:  # noqa: S112 - it answers
                continue

    thread = threading.Thread(target=watch, name=f"distlock-{database}-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with guard:
            over.set()
        thread.join()
