"""The backend of engines whose locks belong to a session: which session a lock is acquired on, how it is released and
verified, and what happens when a statement is interrupted, times out, or finds its session dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from django.core.checks import CheckMessage, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from django_distlock.backends.base import TICK, Backend
from django_distlock.backends.side_connection import ask
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import LEAST_PATIENCE
from django_distlock.concurrency.flow import clean_up, finished, run
from django_distlock.concurrency.parking import Turn
from django_distlock.concurrency.places import TURN, Place, Places
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Grant, grant_of
from django_distlock.validation import count

from . import exclusion
from .pool import LOCKS_PER_SESSION, Sessions
from .session import (
    GRACE,
    STATEMENT_LIMIT,
    ServerError,
    Session,
    SessionDead,
    StatementTimeout,
    TurnOver,
    locked,
    unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.keys import LockKey
    from django_distlock.records import Claim

S = TypeVar("S", bound=Session)
T = TypeVar("T")

# Sessions of one process and alias on which busy locks are waited for and then held.
WAIT_SESSIONS = 8
# How long a key counts as busy, in seconds, and how many are kept.
BUSY = 1.0
MOST_BUSY = 1000
# A server that has replied to any of our sessions within this time does not hang; seconds.
SILENCE = 0.25
# A cancel that had no effect is sent again after this time; seconds.
CANCEL_AGAIN = 0.1
# A waiter without a place asks at this interval whether the lock is free; seconds.
ASK_EVERY = 0.25
# A session that is not open after this time has met a server that hangs, or a dead network; seconds.
CONNECT_LIMIT = 10.0
# Blocking calls are for callers with more time than this: the watchdog alone ends one that hangs; seconds.
FAST_WAIT = STATEMENT_LIMIT + 2 * TICK
# The default ports of poolers: pgbouncer, Odyssey and PgCat, Supabase in transaction mode; ProxySQL.
POOLER_PORTS = {"postgresql": {"6432", "6543"}, "mysql": {"6033"}}
# Neon, Supabase, and the proxies of Amazon RDS, by the names that they give their poolers.
POOLER_HOSTS = re.compile(r"-pooler\.|\.pooler\.supabase\.com$|\.proxy-[^.]+\.[^.]+\.rds\.amazonaws\.com(\.cn)?$", re.I)


class BusyKeys:
    """The keys that were busy during the last BUSY seconds. Such a key is waited for without trying first: under
    contention a hand-over then costs two statements, like the bare driver's."""

    def __init__(self) -> None:
        self.until: dict[bytes, float] = {}

    def add(self, digest: bytes, now: float) -> None:
        if len(self.until) >= MOST_BUSY:
            self.until.clear()
        self.until[digest] = now + BUSY

    def lately(self, digest: bytes, now: float) -> bool:
        """Was the key busy during the last BUSY seconds?"""
        until = self.until.get(digest)
        if until is None or until >= now:
            return until is not None
        self.until.pop(digest, None)
        return False


class SessionLockBackend(Backend, Generic[S]):
    """Locks that are held by dedicated sessions."""

    waits_natively = True
    supports_break = True
    keeps_notes = True
    option_names: ClassVar[frozenset[str]] = frozenset({"database", "session_database", "wait_sessions"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self.database: str = options.get("database", DEFAULT_DB_ALIAS)
        self.session_database: str = options.get("session_database", self.database)
        self.notes_database = self.session_database
        try:
            wait_sessions = count("wait_sessions", options.get("wait_sessions", WAIT_SESSIONS))
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: {error}") from error
        self.sessions: Sessions[S] = Sessions(self._connect, lambda: self.wake_at(clock.now() + TICK))
        self._places = Places(wait_sessions)
        self._busy = BusyKeys()
        # when it was proven that the server excludes: for this process, and for its children
        self._proven_at = 0.0

    # sessions

    @abstractmethod
    async def _open(self, waits: bool, until: float) -> S:
        """Open a session by the monotonic time ``until``. BackendUnavailable, StatementTimeout."""

    async def _connect(self, waits: bool, until: float) -> S:
        """:meth:`_open`; the first session of a process proves that the server excludes (R22b):
        UnsupportedOperation."""
        until = min(until, clock.now() + CONNECT_LIMIT)
        session = await self._open(waits, until)
        if not self._proven_at:
            try:
                await exclusion.prove(
                    self.alias, session, lambda until: self._open(False, until), self.supports_shared, until
                )
            except BaseException:
                session.close()
                raise
            self._proven_at = clock.now()
        return session

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
        self._busy.until = {}
        self._places = Places(self._places.size)

    # acquiring

    def _acquire_at_once(self, claim: Claim, wait: float, granted: list[Grant]) -> bool:
        """Take the lock in this thread by blocking calls of the driver, on an open session. False: nothing is held, and
        :meth:`_acquire` goes on. ``granted`` takes the grant in the moment in which it is counted."""
        key, shared, asked = claim.key, claim.shared, clock.now()
        busy_until = self._busy.until
        if wait > 0 and busy_until and busy_until.get(key.digest, 0.0) >= asked:  # lately(), without its call
            return self._wait_at_once(claim, wait, asked, granted)
        session = self.sessions.open_shared
        if session is None or wait <= FAST_WAIT or session.dead is not None:
            return False
        turn, busy = Turn(session.mutex), False
        if not turn.try_acquire():
            return False
        try:
            try:
                held = session.held
                if session.dead is None and session.orphaned_at is None and len(held) < LOCKS_PER_SESSION:
                    grant = grant_of((claim, asked, None, None, session))  # before it is counted: see granted
                    if session.lock_fast(key, shared):
                        held[key.digest] = held.get(key.digest, 0) + 1
                        granted.append(grant)
                        return True
                    busy = True
            except (SessionDead, ServerError, StatementTimeout):
                pass  # _acquire asks again, and handles these
            except BaseException:
                granted.clear()
                run(self._undo_try(session, claim))
                raise
            finally:
                turn.release()
        except BaseException:
            turn.release()  # again: see locked()
            raise
        if not busy:
            return False
        self._busy.add(key.digest, asked)
        return self._wait_at_once(claim, wait, asked, granted)

    def _wait_at_once(self, claim: Claim, wait: float, asked: float, granted: list[Grant]) -> bool:
        """:meth:`_acquire_at_once` for a key that was busy lately: wait for it, on a session of its own."""
        place = Place()
        try:
            return self._places.take(place) and self._wait_at_place(claim, wait, asked, granted)
        finally:
            self._places.leave(place)

    def _wait_at_place(self, claim: Claim, wait: float, asked: float, granted: list[Grant]) -> bool:
        ready = self.sessions.ready_to_wait()
        if ready is None:
            return False
        session, turn = ready
        session.wanted, session.turn_ends = self._places.wanted, asked + TURN
        try:
            try:
                if session.wait_fast(claim.key, claim.shared, asked + wait):
                    session.held[claim.key.digest] += 1
                    granted.append(grant_of((claim, asked, None, None, session)))
                return bool(granted)
            except (SessionDead, ServerError):
                return False  # _acquire asks again, and handles these
            except StatementTimeout:
                session.kill("a wait was cut off")
                return False
            except BaseException as error:
                granted.clear()
                session.held.clear()
                run(self._stop_waiting(session))
                if not isinstance(error, TurnOver):
                    raise
                return False
            finally:
                session.turn_ends = math.inf
                turn.release()
                if not granted:
                    self.sessions.give_back(session)
        except BaseException:
            turn.release()  # again: see locked()
            raise

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        granted: list[Grant] = []
        began = clock.now()
        try:
            if self._acquire_at_once(claim, wait, granted):
                return granted[0]
            return run(self._acquire(claim, max(0.0, wait - (clock.now() - began)), granted))
        except BaseException:
            self._release_later(granted)
            raise

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        granted: list[Grant] = []
        try:
            return await self._acquire(claim, wait, granted)
        except BaseException:
            self._release_later(granted)
            raise

    def _release_later(self, granted: list[Grant]) -> None:
        """Give back what an exception has kept from the caller: in another thread, because after
        a KeyboardInterrupt this one must not wait."""
        for grant in granted:
            leftovers.leave(partial(self.release, grant))

    async def _acquire(self, claim: Claim, wait: float, granted: list[Grant]) -> Grant | None:
        """``granted`` takes the grant in the moment in which it is counted on its session."""
        now = clock.now()
        until = max(claim.answer_by or now + max(wait, LEAST_PATIENCE), now + GRACE)
        digest = claim.key.digest
        try:
            if wait <= 0 or not self._busy.lately(digest, now):
                grant = await self._try(claim, until, granted)
                if grant is not None or wait <= 0:
                    return grant
                self._busy.add(digest, now)
            return await self._queue(claim, now + wait, until, granted)
        except StatementTimeout as error:
            if self.sessions.heard_since(clock.now() - SILENCE):
                return None  # the server is well: all the time was spent behind others of this process
            seconds = clock.now() - now
            raise BackendUnavailable(
                f"The server of alias {self.alias!r} did not answer within {seconds:.2f} s."
            ) from error
        except (SessionDead, ServerError) as error:
            raise unavailable(self.alias, error) from (error.__cause__ or error)

    async def _try(self, claim: Claim, until: float, granted: list[Grant]) -> Grant | None:
        """Take the lock on the shared session if it is free. If that session is dead, another is opened, twice."""
        attempts = 3
        while True:
            attempts -= 1
            proven_at = self._proven_at
            session = self.sessions.usable() or await self.sessions.shared(until)
            if self._proven_at != proven_at:  # the proof may have taken the caller's time
                until = max(until, clock.now() + LEAST_PATIENCE)
            try:
                return await locked(session.mutex, until - clock.now(), self._try_on, session, claim, until, granted)
            except SessionDead:
                if not attempts:
                    raise

    async def _try_on(self, session: S, claim: Claim, until: float, granted: list[Grant]) -> Grant | None:
        if session.dead is not None:
            raise SessionDead(session.dead)
        asked = clock.now()
        try:
            grant = Grant(claim=claim, acquired_at=asked, session=session)  # before it is counted: see granted
            if not await session.lock(claim.key, claim.shared, min(until, asked + STATEMENT_LIMIT)):
                return None
            session.held[claim.key.digest] += 1
            granted.append(grant)
            return grant
        except (SessionDead, ServerError, StatementTimeout, GeneratorExit):
            raise  # nothing was granted, or the session cleans up when the reply comes
        except BaseException:
            granted.clear()
            await clean_up(self._undo_try(session, claim))
            raise

    async def _undo_try(self, session: S, claim: Claim) -> None:
        """Release what an interrupted attempt may have been granted (R7)."""
        if claim.shared and session.held.get(claim.key.digest):
            self.sessions.retire(session)  # perhaps one reader too many: the server does not tell the count
            return
        session.held.pop(claim.key.digest, None)
        try:
            await session.unlock(claim.key, claim.shared)
        except (SessionDead, ServerError, StatementTimeout):
            session.kill("an interrupted statement could not be undone")

    async def _queue(self, claim: Claim, until: float, answer_by: float, granted: list[Grant]) -> Grant | None:
        """Wait in the engine's queue; before that, in this process for a place to do so. None at the deadline."""
        place, seconds = Place(), TURN
        try:
            grant, taken = None, self._places.take(place)
            while grant is None and (taken or clock.now() < until):
                if not taken:
                    taken = await self._places.enter(place, min(until - clock.now(), ASK_EVERY))
                    grant = await self._try(claim, answer_by, granted)
                if taken and grant is None:
                    try:
                        grant = await self._wait(claim, until, clock.now() + seconds, granted)
                        break
                    except TurnOver:
                        self._places.leave(place)
                        taken, seconds = False, 2 * seconds
            self._places.leave(place)
        except BaseException:
            leftovers.now_or_later(self._places.leave, place)
            raise
        return grant

    async def _wait(self, claim: Claim, until: float, turn_ends: float, granted: list[Grant]) -> Grant | None:
        """Wait on a session that is lent for it; None at the deadline. TurnOver: others want the place."""
        try:
            # a wait of a millisecond is too short to connect in: let the session come for the next one
            session = await self.sessions.lend(max(until, clock.now() + GRACE))
        except StatementTimeout:
            return None
        session.wanted, session.turn_ends = self._places.wanted, turn_ends
        grant: Grant | None = None
        try:
            if clock.now() < until:
                grant = await locked(session.mutex, math.inf, self._wait_on, session, claim, until, granted)
            return grant
        finally:
            session.turn_ends = math.inf
            if grant is None:
                if session.held:
                    session.kill("a wait was interrupted")
                leftovers.now_or_later(self.sessions.give_back, session)

    async def _wait_on(self, session: S, claim: Claim, until: float, granted: list[Grant]) -> Grant | None:
        asked = clock.now()
        try:
            grant = Grant(claim=claim, acquired_at=asked, session=session)
            if not await session.wait(claim.key, claim.shared, until):
                return None
            session.held[claim.key.digest] += 1
            granted.append(grant)
            return grant
        except SessionDead:
            return None  # the caller asks again, on another session
        except StatementTimeout:
            session.kill("a wait was cut off")
            return None
        except GeneratorExit:
            session.kill("a wait was cut off")
            raise
        except ServerError:
            session.kill("a wait failed")
            raise
        except BaseException:
            granted.clear()
            session.held.clear()
            await clean_up(self._stop_waiting(session))
            raise

    async def _stop_waiting(self, session: S) -> None:
        """Have the server end an interrupted wait. If the socket were closed instead, the waiter would stay in the
        queue for a while, and might get the lock."""
        session.turn_ends = math.inf
        until = clock.now() + STATEMENT_LIMIT / 2
        try:
            while True:
                other = await self.sessions.shared(clock.now() + STATEMENT_LIMIT / 2)
                await locked(other.mutex, STATEMENT_LIMIT / 2, other.cancel, session, clock.now() + STATEMENT_LIMIT / 2)
                try:
                    await session.settle(min(until, clock.now() + CANCEL_AGAIN))
                    break
                except StatementTimeout:  # the server had not begun to wait when it was cancelled
                    if clock.now() >= until:
                        raise
            await session.clear(until)
        except BaseException as error:
            session.kill("a wait was cancelled")
            if not isinstance(error, Exception):
                raise

    # releasing

    def _release_at_once(self, grant: Grant) -> bool:
        """Release in this thread by a blocking call of the driver. False: :meth:`_release` is to do it."""
        claim = grant.claim
        session: S = grant.session
        if session.dead is not None or session.orphaned_at is not None:
            return False
        turn = Turn(session.mutex)
        if not turn.try_acquire():
            return False
        freed = False
        try:
            freed = session.unlock_fast(claim.key, claim.shared)
        except (SessionDead, ServerError):
            return False  # _release asks again, and handles these
        finally:
            if freed:
                self._count_release(session, claim.key.digest)
            turn.release()
        if (session.waits or session.retired) and not session.held:
            self.sessions.give_back(session)
        return freed

    def release(self, grant: Grant) -> bool:
        return self._release_at_once(grant) or run(self._release(grant))

    def release_again(self, grant: Grant) -> bool:
        if grant.claim.shared:
            # the server counts the shares of a session: a second unlock could be that of another reader
            grant.session.kill("the release of a shared lock was interrupted")
            return True
        return self.release(grant)

    async def arelease(self, grant: Grant) -> bool:
        turn = grant.session.mutex.try_turn()
        if turn is not None:
            if grant.session.orphaned_at is None:
                return await self._release(grant, turn)  # sent at once: cancelled, it is a release
            turn.release()
        return bool(await finished(self._release(grant)))

    async def _release(self, grant: Grant, turn: Turn | None = None) -> bool:
        """``turn``: the one that has the session's mutex already."""
        session: S = grant.session
        key = grant.claim.key
        entered = turn is not None
        turn = turn or session.mutex.turn()
        try:
            entered = entered or await turn.acquire(2 * STATEMENT_LIMIT)
            if entered and session.orphaned_at is not None and session.dead is None:
                # the unlock is sent at once after that, and raises what is suppressed again
                with contextlib.suppress(SessionDead, ServerError, StatementTimeout):
                    await session.settle(clock.now() + STATEMENT_LIMIT)
        except BaseException as error:
            turn.release()
            if isinstance(error, (GeneratorExit, asyncio.CancelledError)):  # the event loop ends: nothing goes on here
                leftovers.leave(partial(self.release, grant))
            raise
        if not entered:
            session.kill("a release could not get through")  # rather lost than held without a holder
            raise BackendUnavailable(f"The server of alias {self.alias!r} did not answer to a release.")
        try:
            if session.dead is not None:
                return False
            return await session.unlock(key, grant.claim.shared)
        except SessionDead:
            return False
        except (ServerError, StatementTimeout) as error:
            session.kill("a release failed")
            raise unavailable(self.alias, error) from error
        finally:
            self._count_release(session, key.digest)
            turn.release()
            if (session.waits or session.retired) and not session.held:
                self.sessions.give_back(session)

    def _count_release(self, session: S, digest: bytes) -> None:
        session.used_at = session.replied_at
        held = session.held
        if held.get(digest, 0) > 1:
            held[digest] -= 1
        else:
            held.pop(digest, None)

    # verifying

    def alive(self, grant: Grant) -> bool:
        return grant.session.dead is None

    def look(self, grant: Grant) -> bool:
        grant.session.notice_end()
        return grant.session.dead is None

    def verify(self, grant: Grant) -> bool:
        return run(self._verify(grant))

    async def averify(self, grant: Grant) -> bool:
        return await self._verify(grant)

    async def _verify(self, grant: Grant) -> bool:
        session: S = grant.session
        try:
            await locked(session.mutex, STATEMENT_LIMIT, self._ping, session, clock.now() + STATEMENT_LIMIT)
        except StatementTimeout as error:
            raise BackendUnavailable(f"The server of alias {self.alias!r} did not answer.") from error
        return session.dead is None

    async def _ping(self, session: S, until: float) -> None:
        if session.dead is None:
            with contextlib.suppress(ServerError, SessionDead):  # a server that refuses a statement lives
                await session.ping(until)

    # for operators

    @abstractmethod
    def _held_statement(self, keys: Iterable[str]) -> bytes:
        """The statement that returns those of ``keys``, as listed, that are held; a row for each."""

    def held_among(self, keys: Iterable[LockKey]) -> set[LockKey]:
        listed = {self.listed_as(key): key for key in keys}
        try:
            rows = self._ask(self._held_statement(listed))
        except ServerError as error:
            raise unavailable(self.alias, error) from error
        return {listed[key.decode() if isinstance(key, bytes) else key] for (key,) in rows}

    def server_session(self, grant: Grant) -> int:
        return int(grant.session.server_id)

    def check(self) -> list[CheckMessage]:
        """Warn of an alias that looks like a pooler; no connection is opened. A pooler that hands one server session
        to several clients is refused at the first lock."""
        alias = self.session_database
        parameters = connections.settings[alias]
        ports = POOLER_PORTS.get(connections[alias].vendor, set())
        if str(parameters.get("PORT")) in ports:
            why = f"its port is {parameters['PORT']}"
        elif POOLER_HOSTS.search(str(parameters.get("HOST", ""))):
            why = f"its host is {parameters['HOST']}"
        elif parameters.get("DISABLE_SERVER_SIDE_CURSORS"):
            why = "DISABLE_SERVER_SIDE_CURSORS is set"
        else:
            return []
        return [
            Warning(
                f"DISTLOCK[{self.alias!r}]: the lock sessions use the database {alias!r}, which looks like a pooler: "
                f"{why}. In transaction mode locks outside of atomic() are refused.",
                hint="Set OPTIONS['session_database'] to a database alias that connects directly. A pooler in session "
                "mode does no harm: silence this check then.",
                id="distlock.W005",
            )
        ]

    async def _aside(self, work: Callable[[S], Awaitable[T]]) -> T:
        """Do ``work`` for an operator, on a session without locks. ServerError if the server refuses."""
        try:
            return await self.sessions.aside(work, clock.now() + STATEMENT_LIMIT)
        except (SessionDead, StatementTimeout) as error:
            raise unavailable(self.alias, error) from error

    def _ask(self, sql: bytes) -> list[Any]:
        """The rows of one statement, for an operator."""
        rows: list[Any] = run(self._aside(lambda session: session.query(sql, clock.now() + STATEMENT_LIMIT)))
        return rows

    def _ask_beside(self, question: Callable[[BaseDatabaseWrapper], T]) -> T:
        """The result of an operator's question, on a connection that is opened for it: no lock session is begun, and
        behind a pooler in transaction mode it works as well. The cause of a BackendUnavailable is the driver's."""
        try:
            return ask(self.session_database, question)
        except (DatabaseError, UnicodeDecodeError) as error:
            raise unavailable(self.alias, error) from (error.__cause__ or error)
