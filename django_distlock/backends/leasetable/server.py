"""The lease table on a database server: one session of our own, used by one thread or task at a time.

Never the caller's connection: a lease written inside the caller's transaction is invisible to rivals until that ends.
Leases are rows, so nothing is lost when the session is: a statement that hangs is cut off by ending its socket, and
sent again on a new session while there is time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS, InterfaceError, InternalError, OperationalError, connections

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.deadline import PAUSE
from django_distlock.concurrency.flow import Flow, Step, run
from django_distlock.concurrency.parking import FairLock

from .records import Crowded, StoreError
from .session import Opening, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_distlock.concurrency.executor import Threads

# A statement that has no reply after this time has met a server that hangs: none of ours waits for anything. Seconds.
STATEMENT_LIMIT = 0.5
# One that has begun is not cut off before this time, though its caller has no time left. Seconds.
LEAST_LIMIT = 0.03
# Who has no time left while the server has been silent for less than this was only unlucky; seconds.
SILENCE = 0.25
# The server undid the statement in favour of another one: SQLSTATEs of PostgreSQL, error numbers of MySQL and MariaDB.
CONFLICTS = frozenset({"40001", "40P01", "55P03", 1020, 1205, 1213})
NO_TABLE = frozenset({"42P01", 1146})
CONFLICT_PAUSE = 0.001
# A session that was idle may be dead, and so may the one after it; a server that hangs up each time does not stop.
LOST_SESSIONS = 2


class Hung(Exception):
    """There was no reply in time, and the conversation was ended."""


def code(error: Exception) -> object:
    """The SQLSTATE or the error number of a database error of Django's."""
    cause = error.__cause__ or error
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or (cause.args or (None,))[0]


class ServerStore:
    """The session of one alias, and the watch over it. The operations are those of the dialect."""

    def __init__(
        self, alias: str, database: str, threads: Callable[[], Threads], wake_at: Callable[[float], None]
    ) -> None:
        self._alias = alias
        self._database = database
        self._threads = threads
        self._turnstile = FairLock()
        self._session: Session | None = None
        # until when the statement that runs now may go on
        self._limit: float | None = None
        # when the server last answered
        self._replied_at = 0.0
        self._wake_at = wake_at

    def run(self, until: float, operation: str, *args: Any) -> Flow[Any]:
        """Do ``operation``, again on a new session if the old one turns out to be dead. StoreError at the monotonic
        time ``until``."""
        lost = 0
        while True:
            left = until - monotonic()
            entered: list[bool] = []
            try:
                if left <= 0 or not (yield Step(self._turnstile.acquire, self._turnstile.aacquire, (left,), entered)):
                    raise self._no_time(lost > 0)
                session = self._usable() or (yield from self._open(until, lost > 0))
                error, value = yield Step(self.attempt, self.aattempt, (session, operation, args, until))
                if error is None:
                    # what was done before its reply was lost is refused the second time
                    return None if lost and value is False else value
                retry = self._judge(error, session, lost)
            finally:
                if any(entered):
                    self._turnstile.release()
            lost += self._session is None
            if retry > 0:
                yield Step(PAUSE.sleep, PAUSE.asleep, (retry,))

    def attempt(
        self, session: Session, operation: str, args: tuple[Any, ...], until: float
    ) -> tuple[Exception | None, Any]:
        """The error or None, and the result: after a step that raises, a task cannot be cancelled any more."""
        now = monotonic()
        limit = self._limit = max(min(until, now + STATEMENT_LIMIT), now + LEAST_LIMIT)
        self._wake_at(limit)
        try:
            value = session.execute(operation, args)
            self._replied_at = monotonic()
            return None, value
        except Exception as error:
            if monotonic() >= limit:
                return Hung(), None
            return error, None
        except BaseException:  # the driver is in the middle of something
            self._drop()
            raise
        finally:
            self._limit = None
            session.used_at = monotonic()

    async def aattempt(
        self, session: Session, operation: str, args: tuple[Any, ...], until: float
    ) -> tuple[Exception | None, Any]:
        """:meth:`attempt` for a task, in a thread."""
        return await self._threads().short(self.attempt, session, operation, args, until)

    def _usable(self) -> Session | None:
        """The session, unless the alias has another database by now: test runners change its NAME."""
        session = self._session
        if session is not None and session.name != connections.settings[self._database]["NAME"]:
            self._drop()
            return None
        return session

    def _open(self, until: float, uncertain: bool) -> Flow[Session]:
        opening = Opening(self._database, self._alias)
        if not (yield Step(opening.finish, opening.afinish, (until,))):
            raise self._no_time(uncertain)
        if opening.session is None:
            raise StoreError(self._failed(opening.error), uncertain=uncertain) from opening.error
        self._session = opening.session
        return opening.session

    def _judge(self, error: Exception, session: Session, lost: int) -> float:
        """Seconds after which it may be tried again. StoreError if not; a session that is dead is dropped."""
        if code(error) in CONFLICTS:
            return CONFLICT_PAUSE
        if code(error) in NO_TABLE:
            cure = "python manage.py migrate"
            if self._database != DEFAULT_DB_ALIAS:
                cure += f" --database={self._database}"
            raise StoreError(f"The lease table of alias {self._alias!r} does not exist. Run `{cure}`.") from error
        hung = isinstance(error, Hung)
        if hung or isinstance(error, OperationalError | InterfaceError | InternalError):
            self._drop()
            if hung or lost < LOST_SESSIONS:
                return 0.0
            raise StoreError(self._failed(error), uncertain=True) from error
        raise StoreError(self._failed(error)) from error

    def _no_time(self, uncertain: bool) -> StoreError:
        if monotonic() - self._replied_at < SILENCE:
            return Crowded(f"The lock session of alias {self._alias!r} had too much to do.", uncertain=uncertain)
        return StoreError(f"The database server of alias {self._alias!r} did not answer in time.", uncertain=uncertain)

    def _failed(self, error: BaseException | None) -> str:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"The lease table of alias {self._alias!r} failed: {lines[0]}"

    def attended(self, flow: Flow[Any]) -> Any:
        """Run ``flow`` in another thread and keep watch meanwhile: for the thread that keeps the watch else."""
        outcome: list[Any] = []
        over = threading.Event()

        def work() -> None:
            try:
                outcome.append(run(flow))
            except BaseException as error:
                outcome.append(error)
            over.set()

        threading.Thread(target=work, name=f"distlock-{self._alias}-attended", daemon=True).start()
        while not over.wait(max(0.001, (self._limit or monotonic() + 0.02) - monotonic())):
            self.watch(monotonic())
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def watch(self, now: float) -> float | None:
        """End the conversation of a statement that has no time left; until when the one that runs has time."""
        limit, session = self._limit, self._session
        if limit is not None and session is not None and now >= limit:
            session.cut()
            return None
        return limit

    @property
    def is_open(self) -> bool:
        """Is there a session to be closed when it has been idle?"""
        return self._session is not None

    @property
    def used_at(self) -> float:
        session = self._session
        return session.used_at if session is not None else 0.0

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def close_idle(self) -> None:
        """Close the session unless somebody uses it."""
        if self._turnstile.try_acquire():
            try:
                self._drop()
            finally:
                self._turnstile.release()

    def close(self) -> None:
        """Close the session, whoever uses it; the next statement opens another."""
        if self._turnstile.acquire(STATEMENT_LIMIT):
            self._drop()
            self._turnstile.release()
        elif (session := self._session) is not None:
            session.cut()

    def abandon(self) -> None:
        """In the child of a fork: the session is the parent's, who must not notice."""
        session, self._session = self._session, None
        if session is not None:
            session.silence()
        self._turnstile = FairLock()
        self._limit = None
