"""The backend of engines whose locks belong to a session: which session a lock is asked for on, and what happens when
a statement is interrupted, times out, or finds the session dead.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS

from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Claim, Grant
from django_distlock.waiting import Call, Flow, drive

from .base import Backend
from .session import GRACE, STATEMENT_LIMIT, TICK, ServerError, Session, SessionDead, StatementTimeout
from .sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S", bound=Session)

# Sessions of one process and alias on which busy locks are waited for and then held.
WAIT_SESSIONS = 8
# A name that was busy is waited for without trying first, for this many seconds: under contention a hand-over then
# costs two statements, like the bare driver's.
HOT = 1.0
# Pause between attempts when every wait session is taken.
PAUSE = 0.01
# A caller that does not wait still grants the server this long to say so; seconds.
LEAST_PATIENCE = 0.5


class SessionLockBackend(Backend, Generic[S]):
    """Locks that are held by dedicated sessions."""

    waits_natively = True
    option_names: ClassVar[frozenset[str]] = frozenset({"database", "session_database", "wait_sessions"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self.database: str = options.get("database", DEFAULT_DB_ALIAS)
        self.session_database: str = options.get("session_database", self.database)
        self.sessions: Sessions[S] = Sessions(
            self._connect,
            options.get("wait_sessions", WAIT_SESSIONS),
            lambda: self.wake_at(time.monotonic() + TICK),
        )
        self._hot: dict[bytes, float] = {}

    def _connect(self, waits: bool, until: float) -> Flow[S]:
        """Open a session by the monotonic time ``until``; BackendUnavailable, StatementTimeout."""
        raise NotImplementedError

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return drive(self._acquire(claim, wait))

    def release(self, grant: Grant) -> bool:
        return drive(self._release(grant))

    def take_now(self, claim: Claim) -> Grant | None:
        session = self.sessions.ready()
        if session is None:
            return None
        try:
            asked = time.monotonic()
            if self._hot and self._is_hot(claim.key.digest, asked):
                return None
            if not session.lock_now(claim.key, claim.shared):
                return None
            session.note(claim.key)
            return Grant(claim=claim, acquired_at=asked, session=session)
        except (SessionDead, ServerError):
            return None  # asked again, with the care of _acquire
        except BaseException:
            drive(self._undo_try(session, claim))
            raise
        finally:
            session.turnstile.release()

    def free_now(self, grant: Grant) -> bool:
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
                session.used_at = time.monotonic()
            session.turnstile.release()
        if (session.waits or session.retired) and not session.held:
            self.sessions.give_back(session)
        return freed

    def verify(self, grant: Grant) -> bool:
        return drive(self._verify(grant))

    def pause(self, claim: Claim, attempt: int) -> float:
        return PAUSE

    def alive(self, grant: Grant) -> bool:
        return grant.session.dead is None

    def look(self, grant: Grant) -> bool:
        grant.session.look()
        return grant.session.dead is None

    def _acquire(self, claim: Claim, wait: float) -> Flow[Grant | None]:
        now = time.monotonic()
        until = now + max(wait, LEAST_PATIENCE)
        digest = claim.key.digest
        try:
            if wait <= 0 or not self._is_hot(digest, now):
                grant = yield from self._try(claim, until)
                if grant is not None or wait <= 0:
                    return grant
                if len(self._hot) >= 1000:
                    self._hot.clear()
                self._hot[digest] = now + HOT
            return (yield from self._wait(claim, now + wait))
        except StatementTimeout as error:
            seconds = time.monotonic() - now
            raise BackendUnavailable(
                f"The server of alias {self.alias!r} did not answer within {seconds:.2f} s."
            ) from error
        except (SessionDead, ServerError) as error:
            raise self._unavailable(error) from (error.__cause__ or error)

    def _is_hot(self, digest: bytes, now: float) -> bool:
        """Was it busy a moment ago?"""
        until = self._hot.get(digest, 0.0)
        if until < now:
            self._hot.pop(digest, None)
        return until >= now

    def _try(self, claim: Claim, until: float) -> Flow[Grant | None]:
        """On the shared session, which may turn out to be dead: then once more on a new one."""
        attempts = 3
        while True:
            attempts -= 1
            session = yield from self.sessions.shared(until)
            if not (yield Call(session.turnstile, "acquire", (max(0.0, until - time.monotonic()),))):
                raise StatementTimeout
            try:
                if session.dead is None:
                    limit = time.monotonic() + STATEMENT_LIMIT
                    return (yield from self._try_on(session, claim, min(until, limit)))
            except SessionDead:
                if not attempts:
                    raise
            finally:
                session.turnstile.release()
            if not attempts:
                raise SessionDead(session.dead)

    def _try_on(self, session: S, claim: Claim, until: float) -> Flow[Grant | None]:
        asked = time.monotonic()
        try:
            granted = yield from session.lock(claim.key, claim.shared, until)
            if not granted:
                return None
            session.note(claim.key)
            return Grant(claim=claim, acquired_at=asked, session=session)
        except (SessionDead, ServerError, StatementTimeout, GeneratorExit):
            raise  # nothing was granted, or the session cleans up when the reply comes
        except BaseException:
            yield from self._undo_try(session, claim)
            raise

    def _undo_try(self, session: S, claim: Claim) -> Flow[None]:
        """The attempt was interrupted and may have been granted (R7)."""
        if claim.shared and session.held.get(claim.key.digest):
            self.sessions.retire(session)  # one reader too many, perhaps: the server does not tell the count
            return
        session.held.pop(claim.key.digest, None)
        try:
            yield from session.unlock(claim.key, claim.shared)
        except (SessionDead, ServerError, StatementTimeout):
            session.kill("an interrupted statement could not be undone")

    def _wait(self, claim: Claim, until: float) -> Flow[Grant | None]:
        """In the engine's queue, on a session of our own; None at the deadline, or if all such sessions are taken."""
        try:
            # a wait of a millisecond is too short to connect in: let the session come for the next one
            session = yield from self.sessions.lend(max(until, time.monotonic() + GRACE))
        except StatementTimeout:
            return None
        if session is None:
            return (yield from self._try(claim, time.monotonic() + LEAST_PATIENCE))
        asked = time.monotonic()
        granted = False
        if asked >= until:
            self.sessions.give_back(session)
            return None
        yield Call(session.turnstile, "acquire", (math.inf,))
        try:
            granted = yield from self._wait_on(session, claim, until)
            if granted:
                session.note(claim.key)
                return Grant(claim=claim, acquired_at=asked, session=session)
            return None
        except SessionDead:
            return None  # asked again, on a new one
        except (StatementTimeout, GeneratorExit):
            session.kill("a wait was cut off")
            return None
        except ServerError:
            session.kill("a wait failed")
            raise
        except BaseException:
            granted = False
            session.held.clear()
            yield from self._stop_waiting(session)
            raise
        finally:
            session.turnstile.release()
            if not granted:
                self.sessions.give_back(session)

    def _wait_on(self, session: S, claim: Claim, until: float) -> Flow[bool]:
        return (yield from session.wait(claim.key, claim.shared, until))

    def _stop_waiting(self, session: S) -> Flow[None]:
        """The wait was interrupted. Have the server end it: closing the socket would leave the waiter in the queue for
        a while, and perhaps get it the lock."""
        until = time.monotonic() + STATEMENT_LIMIT / 2
        try:
            yield from self._cancel(session)
            yield from session.settle(until)
            yield from session.clear(until)
        except Exception:
            session.kill("a wait was cancelled")

    def _cancel(self, session: S) -> Flow[None]:
        until = time.monotonic() + STATEMENT_LIMIT / 2
        other = yield from self.sessions.shared(until)
        if not (yield Call(other.turnstile, "acquire", (STATEMENT_LIMIT / 2,))):
            raise StatementTimeout
        try:
            yield from other.cancel(session, until)
        finally:
            other.turnstile.release()

    def _release(self, grant: Grant) -> Flow[bool]:
        session: S = grant.session
        key = grant.claim.key
        until = time.monotonic() + 2 * STATEMENT_LIMIT
        if not (yield Call(session.turnstile, "acquire", (until - time.monotonic(),))):
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
            session.used_at = time.monotonic()
            session.turnstile.release()
            if (session.waits or session.retired) and not session.held:
                self.sessions.give_back(session)

    def _verify(self, grant: Grant) -> Flow[bool]:
        session: S = grant.session
        until = time.monotonic() + STATEMENT_LIMIT
        if not (yield Call(session.turnstile, "acquire", (STATEMENT_LIMIT,))):
            raise BackendUnavailable(f"The server of alias {self.alias!r} did not answer.")
        try:
            if session.dead is None:
                yield from session.ping(until)
            return session.dead is None
        except (SessionDead, ServerError):
            return False
        except StatementTimeout as error:
            raise self._unavailable(error) from error
        finally:
            session.turnstile.release()

    def _shared_session(self) -> Flow[S]:
        try:
            return (yield from self.sessions.shared(time.monotonic() + STATEMENT_LIMIT))
        except (SessionDead, StatementTimeout) as error:
            raise self._unavailable(error) from error

    def _listing(self, sql: bytes) -> Flow[list[Any]]:
        """All rows of a query on the shared session. ServerError if the server refuses it."""
        until = time.monotonic() + STATEMENT_LIMIT
        session = yield from self._shared_session()
        try:
            if not (yield Call(session.turnstile, "acquire", (STATEMENT_LIMIT,))):
                raise StatementTimeout
            try:
                rows: list[Any] = yield Call(session, "query", (sql, until))
                return rows
            finally:
                session.turnstile.release()
        except (SessionDead, StatementTimeout) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> BackendUnavailable:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        return BackendUnavailable(f"The lock session of alias {self.alias!r} failed: {reason}")

    def tick(self, now: float) -> float | None:
        due = self.sessions.tick(now)
        if due is None:
            self.threads.stop_if_idle()
        return due

    def close(self) -> None:
        self.sessions.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self.sessions.abandon()
        self._hot = {}
