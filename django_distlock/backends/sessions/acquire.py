"""How a lock of a session is acquired: which session it is asked for on, and what happens when a statement is
interrupted, times out, or finds the session dead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from django_distlock.backends.base import Backend
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.deadline import LEAST_PATIENCE
from django_distlock.concurrency.flow import Flow, Step, run
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Grant
from django_distlock.validation import count

from . import exclusion
from .pool import Sessions
from .session import GRACE, STATEMENT_LIMIT, TICK, ServerError, Session, SessionDead, StatementTimeout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_distlock.records import Claim

S = TypeVar("S", bound=Session)

# Sessions of one process and alias on which busy locks are waited for and then held.
WAIT_SESSIONS = 8
# A name that was busy is waited for without trying first, for this many seconds: under contention a hand-over then
# costs two statements, like the bare driver's.
HOT = 1.0
HOT_NAMES = 1000
# A server that has replied to any of our sessions within this time does not hang; seconds.
SILENCE = 0.25
# After so many seconds a cancel that was not followed is sent again.
CANCEL_AGAIN = 0.1


class SessionAcquire(Backend, Generic[S]):
    """The acquiring half of :class:`~django_distlock.backends.sessions.backend.SessionLockBackend`."""

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self.database: str = options.get("database", DEFAULT_DB_ALIAS)
        self.session_database: str = options.get("session_database", self.database)
        try:
            wait_sessions = count("wait_sessions", options.get("wait_sessions", WAIT_SESSIONS))
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: {error}") from error
        self.sessions: Sessions[S] = Sessions(
            self._connect,
            wait_sessions,
            lambda: self.wake_at(monotonic() + TICK),
        )
        self._hot: dict[bytes, float] = {}
        # when it was proven that the server excludes: for this process, and for its children
        self._proven_at = 0.0

    def _connect(self, waits: bool, until: float) -> Flow[S]:
        """Open a session by the monotonic time ``until``; BackendUnavailable, StatementTimeout. The first one proves
        that the server excludes (R22b): UnsupportedOperation."""
        session = yield from self._open(waits, until)
        if not self._proven_at:
            try:
                yield from exclusion.prove(
                    self.alias, session, lambda until: self._open(False, until), self.supports_shared, until
                )
            except BaseException:
                session.close()
                raise
            self._proven_at = monotonic()
        return session

    def _open(self, waits: bool, until: float) -> Flow[S]:
        raise NotImplementedError

    def acquire_fast(self, claim: Claim, wait: float) -> Grant | None:
        asked = monotonic()
        hot = bool(self._hot) and self._is_hot(claim.key.digest, asked)
        if not hot and wait <= STATEMENT_LIMIT + 2 * TICK:
            return None  # the watchdog, which alone ends a blocking call, would come too late for the deadline
        session = self.sessions.ready_to_wait() if hot else self.sessions.ready()
        if session is None:
            return None
        grant: Grant | None = None
        try:
            if hot:
                taken = session.wait_now(claim.key, claim.shared, asked + wait)
            else:
                taken = session.lock_now(claim.key, claim.shared)
            if taken:
                session.note(claim.key)
                grant = Grant(claim=claim, acquired_at=asked, session=session)
            return grant
        except (SessionDead, ServerError, StatementTimeout):
            return None  # asked again, with the care of _acquire
        except BaseException:
            run(self._stop_waiting(session) if hot else self._undo_try(session, claim))
            raise
        finally:
            session.turnstile.release()
            if hot and grant is None:
                self.sessions.give_back(session)

    def _acquire(self, claim: Claim, wait: float) -> Flow[Grant | None]:
        now = monotonic()
        until = max(claim.answer_by or now + max(wait, LEAST_PATIENCE), now + GRACE)
        digest = claim.key.digest
        try:
            if wait <= 0 or not self._is_hot(digest, now):
                grant = yield from self._try(claim, until)
                if grant is not None or wait <= 0:
                    return grant
                self._heat(digest, now)
            return (yield from self._wait(claim, now + wait, until))
        except StatementTimeout as error:
            if self.sessions.heard_since(monotonic() - SILENCE):
                return None  # the server is well: all the time was spent behind others of this process
            seconds = monotonic() - now
            raise BackendUnavailable(
                f"The server of alias {self.alias!r} did not answer within {seconds:.2f} s."
            ) from error
        except (SessionDead, ServerError) as error:
            raise self._unavailable(error) from (error.__cause__ or error)

    def _heat(self, digest: bytes, now: float) -> None:
        """It was busy just now."""
        if len(self._hot) >= HOT_NAMES:
            self._hot.clear()
        self._hot[digest] = now + HOT

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
            proven_at = self._proven_at
            session = yield from self.sessions.shared(until)
            if self._proven_at != proven_at:  # that may have taken the caller's time
                until = max(until, monotonic() + LEAST_PATIENCE)
            entered: list[bool] = []
            try:
                if not (
                    yield Step(
                        session.turnstile.acquire, session.turnstile.aacquire, (max(0.0, until - monotonic()),), entered
                    )
                ):
                    raise StatementTimeout
                if session.dead is None:
                    limit = monotonic() + STATEMENT_LIMIT
                    return (yield from self._try_on(session, claim, min(until, limit)))
            except SessionDead:
                if not attempts:
                    raise
            finally:
                if any(entered):
                    session.turnstile.release()
            if not attempts:
                raise SessionDead(session.dead)

    def _try_on(self, session: S, claim: Claim, until: float) -> Flow[Grant | None]:
        asked = monotonic()
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

    def _wait(self, claim: Claim, until: float, answer_by: float) -> Flow[Grant | None]:
        """In the engine's queue, on a session of our own; None at the deadline, or if all such sessions are taken."""
        try:
            # a wait of a millisecond is too short to connect in: let the session come for the next one
            session = yield from self.sessions.lend(max(until, monotonic() + GRACE))
        except StatementTimeout:
            return None
        if session is None:
            return (yield from self._try(claim, answer_by))
        asked = monotonic()
        entered: list[bool] = []
        granted = False
        if asked >= until:
            self.sessions.give_back(session)
            return None
        try:
            yield Step(session.turnstile.acquire, session.turnstile.aacquire, (math.inf,), entered)
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
            if entered:
                yield from self._stop_waiting(session)
            raise
        finally:
            if entered:
                session.turnstile.release()
            if not granted:
                self.sessions.give_back(session)

    def _wait_on(self, session: S, claim: Claim, until: float) -> Flow[bool]:
        return (yield from session.wait(claim.key, claim.shared, until))

    def _stop_waiting(self, session: S) -> Flow[None]:
        """The wait was interrupted. Have the server end it: closing the socket would leave the waiter in the queue for
        a while, and perhaps get it the lock."""
        until = monotonic() + STATEMENT_LIMIT / 2
        try:
            while True:
                yield from self._cancel(session)
                try:
                    yield from session.settle(min(until, monotonic() + CANCEL_AGAIN))
                    break
                except StatementTimeout:  # the server had not begun to wait when it was cancelled
                    if monotonic() >= until:
                        raise
            yield from session.clear(until)
        except Exception:
            session.kill("a wait was cancelled")

    def _cancel(self, session: S) -> Flow[None]:
        until = monotonic() + STATEMENT_LIMIT / 2
        other = yield from self.sessions.shared(until)
        entered: list[bool] = []
        try:
            if not (yield Step(other.turnstile.acquire, other.turnstile.aacquire, (STATEMENT_LIMIT / 2,), entered)):
                raise StatementTimeout
            yield from other.cancel(session, until)
        finally:
            if any(entered):
                other.turnstile.release()

    def _unavailable(self, error: BaseException) -> BackendUnavailable:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        return BackendUnavailable(f"The lock session of alias {self.alias!r} failed: {reason}")
