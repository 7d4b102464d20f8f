"""ZooKeeper: ephemeral sequential nodes, one session per process, through kazoo."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kazoo.exceptions import ZookeeperError

from django_distlock.backends.base import Backend
from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import run
from django_distlock.records import Claim, Finding, Grant, LockInfo

from . import doctor
from .introspection import delete_holder, deletion, listed
from .nodes import NodeData
from .options import NAMES, Settings
from .queue import Contender
from .session import ConnectionBroken, NoAnswer, SessionEnded, ZooKeeperSession

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from django_distlock.keys import LockKey

T = TypeVar("T")

# A server may take this long to answer a caller that does not wait; seconds.
MIN_ANSWER_TIMEOUT = 0.5
# A server is called unreachable only if the caller had at least this time for it, and did not spend its timeout waiting
# for other callers of this process; seconds.
MIN_TIME_TO_JUDGE = 0.1
# A release, a listing and a break may take this long; seconds.
REQUEST_TIMEOUT = 2.0
# A session without a lock is closed after this time; seconds.
IDLE_TIMEOUT = 5.0
# A lock that is held for longer is watched, so that its holder learns if an operator breaks it; seconds.
WATCH_AFTER = 0.25


class ZooKeeperBackend(Backend):
    """OPTIONS: ``hosts``; ``path`` of the locks (default: "/distlock"); ``session_timeout`` in seconds (default: 10);
    ``auth_data``; ``acl`` (default: all rights, for the creator if there is ``auth_data``, else for everyone); and
    kazoo's options for TLS and SASL.

    ZooKeeper 3.5.3 or newer.
    """

    supports_shared = True
    supports_fencing = True
    supports_semaphore = True
    supports_break = True
    waits_natively = True
    apart_from_databases = True
    doubt: ClassVar[str] = "ZooKeeper does not answer and may have ended the session"
    option_names: ClassVar[frozenset[str]] = NAMES

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._settings = Settings(alias, options)
        self._after_fork()

    def _after_fork(self) -> None:
        self._guard = threading.Lock()
        self._session: ZooKeeperSession | None = None
        self._node_data = NodeData()
        # the nodes above the locks, with the time of their last use: unused ones are deleted
        self._parents: dict[str, float] = {}

    def _enter(self, work: object) -> ZooKeeperSession:
        """Return the session, which stays open until :meth:`_leave`."""
        with self._guard:
            session = self._session
            if session is None or not session.lives():
                if session is not None:
                    session.close(wait=False)
                settings = self._settings
                session = self._session = ZooKeeperSession(
                    self.alias, settings.kazoo, settings.path, lambda when: self.wake_at(when)
                )
                self._start(session)
            session.used_by.add(work)
            session.used_at = clock.now()
        return session

    def _start(self, session: ZooKeeperSession) -> None:
        try:
            session.start()
        except BaseException as error:  # at the limit of threads or of open files
            self._session = None
            session.end()
            session.close(wait=False)
            if isinstance(error, Exception):
                raise SessionEnded(session.failure(error)) from error
            raise

    def _leave(self, session: ZooKeeperSession, work: object) -> None:
        with self._guard:
            session.used_by.discard(work)
            session.used_at = clock.now()

    # acquire and release

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return run(self._acquire(claim, wait))

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return await self._acquire(claim, wait)

    async def _acquire(self, claim: Claim, wait: float) -> Grant | None:
        if claim.limit and not self._settings.writable:
            raise self.unsupported("have a semaphore whose nodes nobody may write to: OPTIONS['acl'] must allow it")
        asked = clock.now()
        until = asked + wait
        answer_by = max(until, claim.answer_by or asked + MIN_ANSWER_TIMEOUT)
        contender: Contender | None = None

        async def contend(session: ZooKeeperSession) -> Grant | None:
            nonlocal contender
            contender = Contender(session, claim, self._node_data.of(claim, time.time()), self._settings.acl)
            try:
                if not await contender.acquire(until, answer_by):
                    return None
            except NoAnswer:
                if wait > 0 and answer_by - asked < MIN_TIME_TO_JUDGE and not session.in_doubt():
                    return None
                raise
            self._parents[contender.parent] = clock.now()
            return Grant(claim=claim, acquired_at=asked, fence=contender.czxid, session=contender)

        try:
            return await self._on_session(contend, answer_by)
        except BaseException:
            if contender is not None:  # it may have been interrupted after the grant
                contender.abandon()
            raise

    async def _on_session(self, work: Callable[[ZooKeeperSession], Coroutine[Any, Any, T]], until: float) -> T:
        """Run ``work`` on the session. If the session ends during that, repeat it on a new one, until ``until``.

        A session may end after an idle time, a pause of this process or a restart of the server.
        """
        while True:
            session = self._enter(work)
            try:
                return await work(session)
            except ConnectionBroken:
                continue
            except SessionEnded:
                if not session.reached or clock.now() >= until:
                    raise
            finally:
                self._leave(session, work)

    def release(self, grant: Grant) -> bool:
        return run(self._release(grant))

    async def arelease(self, grant: Grant) -> bool:
        return await self._release(grant)

    async def _release(self, grant: Grant) -> bool:
        contender: Contender = grant.session
        session, path = contender.session, contender.path
        until, sent_before = clock.now() + REQUEST_TIMEOUT, False
        try:
            session.used_at = clock.now()  # first: unused for long, it would be closed before the answer comes
            session.held.discard(contender)
            if path is None or not session.lives():
                return False
            while True:
                try:
                    deleted = await self._delete(session, path, contender.marks, until)
                    break
                except ConnectionBroken:
                    sent_before = True  # and perhaps executed
            contender.path = None
            return deleted or (sent_before and not contender.broken)
        except SessionEnded:
            return False
        finally:
            if contender.path is not None:
                contender.abandon()

    @staticmethod
    async def _delete(session: ZooKeeperSession, path: str, marked: bool, until: float) -> bool:
        """Delete the node of a held lock. Returns False if it no longer exists."""
        if marked:
            (results,) = await session.ask(until, lambda kazoo: session.release_node(path))
            if results is not None and not any(isinstance(each, ZookeeperError) for each in results):
                return True
            # the node has gone, or the ``acl`` gives no right to write to it: the deletion alone tells
        (deleted,) = await session.ask(until, lambda kazoo: kazoo.delete_async(path))
        return deleted is not None

    # whether it is held

    def alive(self, grant: Grant) -> bool:
        contender: Contender = grant.session
        return not contender.broken and contender.session.lives()

    def in_doubt(self, grant: Grant) -> bool:
        session: ZooKeeperSession = grant.session.session
        return session.in_doubt()

    def verify(self, grant: Grant) -> bool:
        return run(self._verify(grant))

    async def averify(self, grant: Grant) -> bool:
        return await self._verify(grant)

    async def _verify(self, grant: Grant) -> bool:
        contender: Contender = grant.session
        path, until = contender.path, clock.now() + REQUEST_TIMEOUT
        while path is not None and self.alive(grant):
            try:
                (stat,) = await contender.session.ask(until, lambda kazoo: kazoo.exists_async(path))
            except ConnectionBroken:
                continue
            except SessionEnded:
                return False
            return bool(stat is not None and stat.czxid == contender.czxid)
        return False

    # for operators

    def diagnose(self) -> Iterable[Finding]:
        list(self.inspect())  # which begins a session
        return doctor.findings(self.alias, self._settings, self._session)

    def inspect(self) -> Iterable[LockInfo]:
        return self._listed(None)

    def held_among(self, keys: Iterable[LockKey]) -> set[LockKey]:
        listed = {self.listed_as(key): key for key in keys}
        return {listed[info.key] for info in self._listed(frozenset(listed))}

    def _listed(self, keys: frozenset[str] | None) -> list[LockInfo]:
        return self._look(lambda session, until: listed(session, until, self.alias, keys))

    def break_lock(self, info: LockInfo) -> bool:
        return self._look(lambda session, until: delete_holder(session, until, info.key, info.fence))

    def _look(self, work: Callable[[ZooKeeperSession, float], Coroutine[Any, Any, T]]) -> T:
        until = clock.now() + REQUEST_TIMEOUT
        return run(self._on_session(lambda session: work(session, until), until))

    # the keepalive thread

    def tick(self, now: float) -> float | None:
        session = self._session
        if session is None:
            return None
        if session.lives() and not self._retire(session, now):
            self._watch_held(session)
            self._delete_parents(session, now - IDLE_TIMEOUT)
            return session.lost_at if session.state is not ZooKeeperSession.CONNECTING else now + IDLE_TIMEOUT
        with self._guard:
            if self._session is session:
                self._session = None
        session.end()
        session.close(wait=False)
        return None

    def _retire(self, session: ZooKeeperSession, now: float) -> bool:
        """Retire the session after IDLE_TIMEOUT without use."""
        with self._guard:
            if self._session is not session or not session.idle or now - session.used_at < IDLE_TIMEOUT:
                return False
            self._session = None
        self._delete_parents(session, now)
        return True

    def _watch_held(self, session: ZooKeeperSession) -> None:
        if session.state is not ZooKeeperSession.CONNECTED:
            return
        long_ago = clock.now() - WATCH_AFTER
        for contender in list(session.held):
            if not contender.watched and contender.since < long_ago:
                contender.watch()

    def _delete_parents(self, session: ZooKeeperSession, unused_since: float) -> None:
        """Delete the empty nodes above locks: the server refuses to delete the others.

        The server would delete these containers by itself within a minute.
        """
        if session.state is not ZooKeeperSession.CONNECTED:
            return
        used = {contender.parent for contender in list(session.held)}
        for path, used_at in list(self._parents.items()):
            if used_at <= unused_since and path not in used:
                self._parents.pop(path, None)
                session.send(partial(deletion, path))

    def close(self) -> None:
        with self._guard:
            session, self._session = self._session, None
        if session is not None:
            self._delete_parents(session, clock.now())
            session.end()
            session.close(wait=True)
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        if self._session is not None:
            self._session.abandon()
        self._after_fork()
