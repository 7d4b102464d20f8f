"""One session of the lease table on a database server, and how it is opened."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

from django.db import OperationalError

from django_distlock.backends.side_connection import Direct
from django_distlock.concurrency import sockets
from django_distlock.concurrency.background import Stragglers
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.parking import Parker

from .server_sql import Dialect, dialect

_stragglers: defaultdict[str, Stragglers] = defaultdict(Stragglers)
# Sessions of the parent of this process, never closed: a driver says goodbye on the socket, which the parent uses.
_inherited: list[Session] = []


class Session(Direct):
    """Statements go to the driver's cursor, so that nothing is logged."""

    def __init__(self, database: str, alias: str) -> None:
        super().__init__(database)
        if self.wrapper.vendor == "postgresql":
            self.options["server_side_binding"] = True  # only so can statements be prepared
        elif self.wrapper.vendor == "mysql":
            self.options["isolation_level"] = "read committed"  # under the server's own the queue would take gap locks
        self.used_at = monotonic()
        self.dialect: Dialect
        self._cursor: Any = None
        self._alias = alias

    def open(self) -> None:
        super().open()
        raw: Any = self.wrapper.connection
        self.dialect = dialect(self.wrapper, self._alias)
        self._cursor = self.wrapper.create_cursor()
        if hasattr(raw, "prepare_threshold"):  # psycopg 3
            self._cursor.execute("SELECT pg_backend_pid()")
            pooled = self._cursor.fetchone()[0] != raw.info.backend_pid
            # Planning costs more than executing. A pooler that changes the server session loses what was prepared.
            raw.prepare_threshold = None if pooled else 1

    def execute(self, operation: str, args: tuple[Any, ...]) -> Any:
        """Run one operation of the dialect; errors are Django's."""
        with self.wrapper.wrap_database_errors:
            return getattr(self.dialect, operation)(self._cursor, *args)

    def silence(self) -> None:
        """In the child of a fork: leave the parent's connection alone."""
        if self._fd >= 0:
            sockets.silence(self._fd)
        _inherited.append(self)


class Opening:
    """A session on its way, opened in a thread of its own because no driver keeps a deadline while it connects."""

    def __init__(self, database: str, alias: str) -> None:
        self.session: Session | None = None
        self.error: BaseException | None = None
        self._parker = Parker()
        self._args = database, alias
        self._thread = threading.Thread(target=self._open, name=f"distlock-{alias}-open", daemon=True)

    def _open(self) -> None:
        try:
            session = Session(*self._args)
            try:
                session.open()
            except BaseException:
                session.close()
                raise
            self.session = session
        except BaseException as error:
            self.error = error
        if not self._parker.wake() and self.session is not None:
            self.session.close()

    def finish(self, until: float) -> bool:
        """Start, and wait until it is open or has failed; False at the monotonic time ``until``."""
        if not self._start():
            return True
        came = False
        try:
            came = self._parker.park(until - monotonic())
            return came
        except BaseException:
            self._leave()
            raise
        finally:
            self._forget(came)

    async def afinish(self, until: float) -> bool:
        """:meth:`finish` for a task."""
        if not self._start():
            return True
        came = False
        try:
            came = await self._parker.apark(until - monotonic())
            return came
        except BaseException:
            self._leave()
            raise
        finally:
            self._forget(came)

    def _start(self) -> bool:
        reason = _stragglers[self._args[1]].refuse()
        if reason is None:
            self._thread.start()
        else:
            self.error = OperationalError(reason)
        return reason is None

    def _forget(self, came: bool) -> None:
        if not came:
            _stragglers[self._args[1]].add(self._thread)

    def _leave(self) -> None:
        if self._parker.leave() and self.session is not None:
            self.session.close()
