"""The backend of engines whose locks belong to a session: releasing, verifying, and looking after the sessions."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step, arun, finished, run
from django_distlock.exceptions import BackendUnavailable

from . import poolers
from .acquire import SessionAcquire
from .names import Notes
from .session import STATEMENT_LIMIT, ServerError, Session, SessionDead, StatementTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Grant, Note, Noted

    from .names import NotesSQL

S = TypeVar("S", bound=Session)
T = TypeVar("T")

# Pause between attempts when every wait session is taken.
PAUSE = 0.01


class SessionLockBackend(SessionAcquire[S]):
    """Locks that are held by dedicated sessions."""

    waits_natively = True
    supports_break = True
    keeps_notes = True
    notes_sql: ClassVar[NotesSQL]
    option_names: ClassVar[frozenset[str]] = frozenset({"database", "session_database", "wait_sessions"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._notes = Notes(alias, self.sessions, self.notes_sql)

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return run(self._acquire(claim, wait))

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return await arun(self._acquire(claim, wait))

    def release(self, grant: Grant) -> bool:
        return run(self._release(grant))

    async def arelease(self, grant: Grant) -> bool:
        turnstile = grant.session.turnstile
        if turnstile.try_acquire():
            if grant.session.orphaned_at is None:
                return await arun(self._release(grant, entered=True))  # sent at once: cancelled, it is a release
            turnstile.release()
        return bool(await finished(arun(self._release(grant))))

    def release_fast(self, grant: Grant) -> bool:
        session: S = grant.session
        if session.dead is not None or session.orphaned_at is not None or not session.turnstile.try_acquire():
            return False
        freed = False
        try:
            freed = session.unlock_now(grant.claim.key, grant.claim.shared)
        except (SessionDead, ServerError):
            return False  # asked again, with the care of _release
        finally:
            if freed:
                session.forget(grant.claim.key)
                session.used_at = monotonic()
            session.turnstile.release()
        if (session.waits or session.retired) and not session.held:
            self.sessions.give_back(session)
        return freed

    def verify(self, grant: Grant) -> bool:
        return run(self._verify(grant))

    async def averify(self, grant: Grant) -> bool:
        return await arun(self._verify(grant))

    def pause(self, claim: Claim, attempt: int) -> float:
        return PAUSE

    def alive(self, grant: Grant) -> bool:
        return grant.session.dead is None

    def look(self, grant: Grant) -> bool:
        grant.session.look()
        return grant.session.dead is None

    def _release(self, grant: Grant, *, entered: bool = False) -> Flow[bool]:
        session: S = grant.session
        key = grant.claim.key
        try:
            entered = entered or (
                yield Step(session.turnstile.acquire, session.turnstile.aacquire, (2 * STATEMENT_LIMIT,))
            )
        except GeneratorExit:  # the event loop is closed, and nobody will go on here
            threading.Thread(
                target=self._release_in_thread, args=(grant,), name="distlock-release", daemon=True
            ).start()
            raise
        if not entered:
            session.kill("a release could not get through")  # rather lost than held by nobody
            raise BackendUnavailable(f"The server of alias {self.alias!r} did not answer to a release.")
        try:
            if session.dead is not None:
                return False
            return (yield from session.unlock(key, grant.claim.shared))
        except SessionDead:
            return False
        except (ServerError, StatementTimeout) as error:
            session.kill("a release failed")
            raise self._unavailable(error) from error
        finally:
            session.forget(key)
            session.used_at = monotonic()
            session.turnstile.release()
            if (session.waits or session.retired) and not session.held:
                self.sessions.give_back(session)

    def _release_in_thread(self, grant: Grant) -> None:
        with contextlib.suppress(BackendUnavailable):  # its session is dead then, and the lock free
            self.release(grant)

    def _verify(self, grant: Grant) -> Flow[bool]:
        session: S = grant.session
        until = monotonic() + STATEMENT_LIMIT
        entered: list[bool] = []
        try:
            if not (yield Step(session.turnstile.acquire, session.turnstile.aacquire, (STATEMENT_LIMIT,), entered)):
                raise BackendUnavailable(f"The server of alias {self.alias!r} did not answer.")
            if session.dead is None:
                with contextlib.suppress(ServerError):  # whoever refuses, or was interrupted, lives
                    yield from session.ping(until)
            return session.dead is None
        except SessionDead:
            return False
        except StatementTimeout as error:
            raise self._unavailable(error) from error
        finally:
            if any(entered):
                session.turnstile.release()

    # for operators

    def listed_as(self, key: LockKey) -> str:
        return self.notes_sql.key(key)

    def server_session(self, grant: Grant) -> int:
        return int(grant.session.server_id)

    def write_notes(self, notes: Sequence[Note], done: Callable[[list[Noted]], object]) -> bool:
        return self._notes.write(notes, done)

    def prune_old(self, days: float) -> Mapping[str, int]:
        try:
            return {"names": self._notes.prune(days)}
        except (SessionDead, ServerError, StatementTimeout) as error:
            raise self._unavailable(error) from error

    def _aside(self, work: Callable[[S], Flow[T]]) -> Flow[T]:
        """Do ``work`` for an operator, on a session without locks. ServerError if the server refuses."""
        try:
            return (yield from self.sessions.aside(work, monotonic() + STATEMENT_LIMIT))
        except (SessionDead, StatementTimeout) as error:
            raise self._unavailable(error) from error

    def _ask(self, sql: bytes) -> list[Any]:
        """The rows of one statement, for an operator."""

        def asked(session: S) -> Flow[list[Any]]:
            rows: list[Any] = yield Step(session.query, session.aquery, (sql, monotonic() + STATEMENT_LIMIT))
            return rows

        return run(self._aside(asked))

    check = poolers.check

    def tick(self, now: float) -> float | None:
        due = self.sessions.tick(now)
        if due is None:
            self.threads.stop_if_idle()
        return due

    def close(self) -> None:
        self.sessions.close()
        self._notes = Notes(self.alias, self.sessions, self.notes_sql)
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self.sessions.abandon()
        self._notes = Notes(self.alias, self.sessions, self.notes_sql)
        self._hot = {}
