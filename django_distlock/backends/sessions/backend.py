"""The backend of engines whose locks belong to a session: which session a lock is acquired on, how it is released and
verified, and what happens when a statement is interrupted or finds its session dead.

A claim is noted on its session before the server is asked for it. If a signal or a cancellation ends the call, another
thread finds the claim there, granted or not, and gives it back: :meth:`SessionLockBackend.undo`. A wait that goes wrong
ends its session, which holds nothing else: the server frees what it may have granted.
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
from django_distlock.backends.side_connection import ask, code_of
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.background import CallTimeout, NotStarted
from django_distlock.concurrency.deadline import SILENCE
from django_distlock.concurrency.flow import clean_up, in_task, run
from django_distlock.concurrency.parking import FairLock
from django_distlock.exceptions import BackendUnavailable, DeadlockDetected, UnsupportedOperation
from django_distlock.records import grant_of
from django_distlock.validation import count

from . import exclusion
from .pool import Sessions
from .session import STATEMENT_LIMIT, TURN, ServerError, Session, TurnOver, unavailable
from .watched import SessionDead

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.concurrency.parking import Turn
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Finding, Grant, LockInfo

    from .reply import Reply

S = TypeVar("S", bound=Session)
T = TypeVar("T")

# Sessions of one process and alias on which busy locks are waited for and then held.
WAIT_SESSIONS = 8
# How long a key counts as busy, in seconds, and how many are kept.
BUSY = 1.0
MOST_BUSY = 1000
# A waiter without a place asks at this interval whether the lock is free; seconds.
ASK_EVERY = 0.25
# The default ports of poolers: pgbouncer, Odyssey and PgCat, Supabase in transaction mode; ProxySQL.
POOLER_PORTS = {"postgresql": {"6432", "6543"}, "mysql": {"6033"}}
# Neon, Supabase, and the proxies of Amazon RDS, by the names that they give their poolers.
POOLER_HOSTS = re.compile(r"-pooler\.|\.pooler\.supabase\.com$|\.proxy-[^.]+\.[^.]+\.rds\.amazonaws\.com(\.cn)?$", re.I)


class BusyKeys(dict[bytes, float]):
    """The keys that were busy lately, each with the time until which it counts as busy. Such a key is waited for
    without trying first: under contention a hand-over then costs two statements, like the bare driver's."""

    def add(self, digest: bytes, now: float) -> None:
        if len(self) >= MOST_BUSY:
            self.clear()
        self[digest] = now + BUSY

    def lately(self, digest: bytes, now: float) -> bool:
        """Was the key busy during the last BUSY seconds?"""
        return self.get(digest, -math.inf) >= now


class SessionLockBackend(Backend, Generic[S]):
    """Locks that are held by dedicated sessions."""

    waits_natively = True
    supports_break = True
    #: The vendor of its databases, and their names.
    vendor: ClassVar[str]
    products: ClassVar[str]
    #: The errors of an account that may not end the session of another one, and what it needs.
    not_allowed: ClassVar[frozenset[object]]
    needs_to_break: ClassVar[str]
    patience = None  # the watchdog ends what hangs
    keeps_notes = True
    option_names: ClassVar[frozenset[str]] = frozenset({"database", "session_database", "wait_sessions"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self.database: str = options.get("database", DEFAULT_DB_ALIAS)
        self.session_database: str = options.get("session_database", self.database)
        self.notes_database = self.session_database
        try:
            self.wait_sessions = count("wait_sessions", options.get("wait_sessions", WAIT_SESSIONS))
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: {error}") from error
        self.sessions: Sessions[S] = Sessions(alias, self.open_session, lambda: self.wake_at(clock.now() + TICK))
        self._places = FairLock(self.wait_sessions)
        self._busy = BusyKeys()

    def open_session(self, waits: bool) -> S:
        """Connect, blocking this thread. BackendUnavailable; UnsupportedOperation for a server whose locks exclude
        nobody (R22b)."""
        vendor = connections[self.session_database].vendor
        if vendor != self.vendor:
            raise ImproperlyConfigured(
                f"DISTLOCK[{self.alias!r}]: the database {self.session_database!r} is {vendor}, not {self.products}."
            )
        try:
            return self._connect(waits)
        except (DatabaseError, SessionDead, ServerError, TypeError) as error:  # TypeError: an unknown option
            raise unavailable(self.alias, error) from (error.__cause__ or error)

    @abstractmethod
    def _connect(self, waits: bool) -> S: ...

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
        self._busy.clear()
        self._places = FairLock(self._places.size)

    # acquiring

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return run(self._acquire(claim, wait))

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return await self._acquire(claim, wait)

    async def _acquire(self, claim: Claim, wait: float) -> Grant | None:
        """Try on the shared session; if the lock is busy, wait for it on a session that is lent for that."""
        now, busy = clock.now(), self._busy
        until = max(claim.answer_by or now + wait, now + SILENCE)
        try:
            if wait <= 0 or not (busy and busy.lately(claim.key.digest, now)):
                grant = await self._try(claim, until)
                if grant is not None or wait <= 0:
                    return grant
                busy.add(claim.key.digest, now)
            return await self._queue(claim, now + wait, until)
        except (SessionDead, ServerError) as error:
            raise unavailable(self.alias, error) from (error.__cause__ or error)

    async def _try(self, claim: Claim, until: float) -> Grant | None:
        """Take the lock on the shared session if it is free. If that session is dead, another is opened, twice. An
        answer that leaves open whether it was granted (KILL QUERY) is asked for again."""
        attempts = 3
        while True:
            session = self.sessions.shared_session
            if session is None or session.dead is not None:
                session = await self._opened(self.sessions.shared(until))
            asked = session.used_at = clock.now()
            try:
                granted = await self._atry_on(session, claim) if in_task() else self._try_on(session, claim)
            except SessionDead:
                attempts -= 1
                if not attempts or clock.now() >= until:
                    raise
                continue
            if granted:
                return grant_of((claim, asked, None, None, session))
            if granted is not None:
                return None
            if clock.now() >= until:
                raise ServerError(0, "The server has answered NULL.")

    async def _atry_on(self, session: S, claim: Claim) -> bool | None:
        """:meth:`_try_on` for a task, whose event loop waits for the reply. In a thread if the session is in use."""
        session.claims[id(claim)] = claim
        reply = session.send(session.try_lock(claim))
        if reply is None:
            session.claims.pop(id(claim), None)
            return await self._in_thread(self._try_on, session, claim, undo=lambda _: self.undo(claim))
        await self._arrives(reply, partial(self.undo, claim))
        return self._try_on(session, claim, reply)

    async def _arrives(self, reply: Reply, otherwise: Callable[[], object]) -> None:
        """Wait for ``reply``. If the task goes, the statement was sent all the same: ``otherwise`` is called in a
        thread."""
        try:
            await reply.arrives()
        except asyncio.CancelledError:
            await clean_up(self._finish(otherwise))
            raise
        except BaseException:  # its coroutine is being closed
            leftovers.leave(otherwise)
            raise

    async def _finish(self, function: Callable[[], object]) -> None:
        try:
            await self.threads.short(function)
        except NotStarted:
            leftovers.leave(function)

    def _try_on(self, session: S, claim: Claim, reply: Reply | None = None) -> bool | None:
        """One attempt. None: the server's answer leaves open whether it was granted, and it was given back."""
        session.claims[id(claim)] = claim  # before the question: undo() finds it if this call is cut off
        try:
            granted = session.ask(session.try_lock(claim), reply)
        except ServerError as error:
            if error.code not in session.wait_is_over:
                session.claims.pop(id(claim), None)
                raise
            granted = None
        if granted is None:  # only its release makes sure that it is not held
            if session.shares(claim):  # and would take the lock from another reader if it was not granted
                session.kill("a statement for a shared lock was cancelled")
                raise SessionDead(session.dead)
            session.ask(session.free_lock(claim.key, claim.shared))
        if not granted:
            session.claims.pop(id(claim), None)
        return granted

    async def _opened(self, opening: Awaitable[S]) -> S:
        """The session that is being opened. BackendUnavailable if it is not ready in time."""
        try:
            return await opening
        except (CallTimeout, NotStarted) as error:
            raise BackendUnavailable(f"The server of alias {self.alias!r} did not answer. {error}") from error

    async def _queue(self, claim: Claim, until: float, answer_by: float) -> Grant | None:
        """Wait in the engine's queue; before that, in this process for a place to do so. None at the deadline."""
        place, seconds = self._places.turn(), TURN
        try:
            grant, taken = None, place.arrive()
            while grant is None and (taken or clock.now() < until):
                if not taken:
                    taken = await place.acquire(min(until - clock.now(), ASK_EVERY))
                    grant = await self._try(claim, answer_by)
                if taken and grant is None:
                    try:
                        grant = await self._wait(claim, until, place, clock.now() + seconds)
                        break
                    except TurnOver:
                        taken, seconds = False, 2 * seconds
            return grant
        finally:
            place.release()

    async def _wait(self, claim: Claim, until: float, place: Turn, turn_ends: float) -> Grant | None:
        """Wait on a session that is lent for it; None at the deadline. TurnOver: another caller has got the place."""
        session: S | None = None
        try:
            session = await self.sessions.lend(max(until, clock.now() + SILENCE))
            return await self.threads.long(
                self._wait_on,
                session,
                claim,
                until,
                place,
                turn_ends,
                stop=partial(session.kill, "its caller has gone"),
                undo=lambda _: self.undo(claim),
            )
        except CallTimeout:
            return None  # the server said lately that the lock is busy; the session will be ready for a later wait
        except NotStarted as error:
            if session is not None:
                self.sessions.give_back(session)
            raise BackendUnavailable(f"The server of alias {self.alias!r} did not answer. {error}") from error

    def _wait_on(self, session: S, claim: Claim, until: float, place: Turn, turn_ends: float) -> Grant | None:
        granted = False
        try:
            asked = clock.now()
            if asked < until:
                session.claims[id(claim)] = claim
                answer = session.wait(claim, until, turn_ends, lambda: self._places.give_way(place))
                if answer is None:
                    session.ask(session.free_lock(claim.key, claim.shared))
                granted = bool(answer)
            else:  # opening the session took the whole time: what has become free is not called busy (R5)
                granted = bool(self._try_on(session, claim))
            return grant_of((claim, asked, None, None, session)) if granted else None
        except BaseException as error:
            session.kill("a wait was cut off")
            if isinstance(error, ServerError) and error.code in session.deadlocks:
                raise DeadlockDetected from error
            if not isinstance(error, SessionDead):
                raise
            if clock.now() >= until:
                raise
            return None  # ask_engine() of the manager asks again, on another session
        finally:
            if not granted:
                session.claims.pop(id(claim), None)
                self.sessions.give_back(session)

    def undo(self, claim: Claim) -> None:
        """Give back what ``claim`` may have got; nobody waits for it any more."""
        for session in self.sessions.all():
            if id(claim) in session.claims:
                self._undo_on(session, claim)

    def _undo_on(self, session: S, claim: Claim) -> None:
        # A wait may still run. And of a shared lock the server does not tell how often it has granted it.
        if session.waits or session.shares(claim):
            session.kill("its caller has gone")
            return
        try:
            session.ask(session.free_lock(claim.key, claim.shared))
        except (SessionDead, ServerError):
            session.kill("an interrupted statement could not be undone")
        session.claims.pop(id(claim), None)

    # releasing

    def release(self, grant: Grant, reply: Reply | None = None) -> bool:
        session: S = grant.session
        claim = grant.claim
        freed, refused = False, None
        try:
            freed = bool(session.ask(session.free_lock(claim.key, claim.shared), reply))
        except (SessionDead, ServerError) as error:
            session.kill("a release failed")  # else the session would keep a lock that has no holder
            refused = error if isinstance(error, ServerError) else None
        session.claims.pop(id(claim), None)
        session.used_at = session.heard_at
        if session.waits:
            self.sessions.give_back(session)
        if refused is not None:
            raise unavailable(self.alias, refused) from (refused.__cause__ or refused)
        return freed

    async def arelease(self, grant: Grant) -> bool:
        session, claim, reply = grant.session, grant.claim, None
        if not getattr(session, "waits", True):
            reply = session.send(session.free_lock(claim.key, claim.shared))
        if reply is None:
            return await self._asked(self.release, grant)
        await self._arrives(reply, partial(self.release, grant, reply))
        return self.release(grant, reply)

    async def averify(self, grant: Grant) -> bool:
        return await self._asked(self.verify, grant)

    async def _asked(self, function: Callable[[Grant], bool], grant: Grant) -> bool:
        """In a thread of its own on a session of its own: others do not queue behind one that hangs (R5)."""
        if getattr(grant.session, "waits", False):
            with contextlib.suppress(NotStarted):
                return await self.threads.long(function, grant, stop=lambda: None)
        return await self._in_thread(function, grant)

    def release_again(self, grant: Grant) -> bool:
        self.undo(grant.claim)
        return True

    # verifying

    def alive(self, grant: Grant) -> bool:
        return grant.session.dead is None

    def look(self, grant: Grant) -> bool:
        grant.session.notice_end()
        return grant.session.dead is None

    def verify(self, grant: Grant) -> bool:
        session: S = grant.session
        with contextlib.suppress(ServerError, SessionDead):  # a server that refuses a statement lives
            session.ask(session.ping())
        return session.dead is None

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

    def diagnose(self) -> Iterable[Finding]:
        return exclusion.findings(self.alias, self.open_session, self.supports_shared)

    def _ask(self, sql: bytes) -> list[Any]:
        """The rows of one statement, for an operator, from a session without locks. ServerError if the server refuses
        it."""
        session: S = run(self._opened(self.sessions.lend(clock.now() + STATEMENT_LIMIT)))
        try:
            rows: list[Any] = session.query(sql)
            return rows
        except SessionDead as error:
            raise unavailable(self.alias, error) from error
        finally:
            self.sessions.give_back(session)

    @abstractmethod
    def _end(self, info: LockInfo, connection: BaseDatabaseWrapper) -> bool:
        """End the session that ``info`` shows, if it still holds the lock."""

    def break_lock(self, info: LockInfo) -> bool:
        try:
            return self._ask_beside(partial(self._end, info))
        except BackendUnavailable as error:
            if error.__cause__ is None or code_of(error.__cause__) not in self.not_allowed:
                raise
            raise UnsupportedOperation(
                f"The account of alias {self.alias!r} may not end this session: it belongs to another one. "
                f"{self.needs_to_break}"
            ) from error

    def _ask_beside(self, question: Callable[[BaseDatabaseWrapper], T]) -> T:
        """The result of an operator's question, on a connection that is opened for it: no lock session is begun, and
        behind a pooler in transaction mode it works as well. The cause of a BackendUnavailable is the driver's."""
        try:
            return ask(self.session_database, question)
        except (DatabaseError, UnicodeDecodeError) as error:
            raise unavailable(self.alias, error) from (error.__cause__ or error)
