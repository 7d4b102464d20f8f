"""ZooKeeper: ephemeral sequential nodes, one session per process, through kazoo."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kazoo.exceptions import ZookeeperError

from django_distlock.backends.holders import holder_json
from django_distlock.backends.remote import RemoteBackend
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import PATIENCE, SILENCE
from django_distlock.concurrency.flow import run
from django_distlock.records import Claim, Finding, Grant, LockInfo

from . import doctor
from .introspection import delete_holder, listed
from .options import NAMES, Settings
from .queue import Contender
from .session import ConnectionBroken, SessionEnded, ZooKeeperSession

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping


T = TypeVar("T")


class ZooKeeperBackend(RemoteBackend):
    """OPTIONS: ``hosts``; ``path`` of the locks (default: "/distlock"); ``session_timeout`` in seconds (default: 10);
    ``auth_data``; ``acl`` (default: all rights, for the creator if there is ``auth_data``, else for everyone); and
    kazoo's options for TLS and SASL.

    ZooKeeper 3.5.3 or newer.
    """

    supports_shared = True
    supports_fencing = True
    supports_semaphore = True
    doubt: ClassVar[str] = "ZooKeeper does not answer and may have ended the session"
    option_names: ClassVar[frozenset[str]] = NAMES

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._settings = Settings(alias, options)
        self._guard = threading.Lock()
        self._session: ZooKeeperSession | None = None

    def _current(self) -> ZooKeeperSession:
        """The session of this process, which stays open until the process ends."""
        session = self._session
        return session if session is not None and session.lives() else self._begin()

    def _begin(self) -> ZooKeeperSession:
        with self._guard:
            old, settings = self._session, self._settings
            if old is not None and old.lives():
                return old
            if old is not None:
                leftovers.leave(old.close)  # else the server might keep its nodes
            session = ZooKeeperSession(self.alias, settings.kazoo, settings.path, lambda when: self.wake_at(when))
            session.start()
            self._session = session
        return session

    # acquire and release

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        asked = clock.now()
        until = asked + wait
        answer_by = max(until, claim.answer_by, asked + SILENCE)
        contender: Contender | None = None

        async def contend(session: ZooKeeperSession) -> Grant | None:
            nonlocal contender
            contender = Contender(session, claim, holder_json(claim.key), self._settings.acl)
            if await contender.acquire(until, answer_by):
                return Grant(claim=claim, acquired_at=asked, fence=contender.czxid, session=contender)
            contender.abandon()
            return None

        try:
            return await self._on_session(contend, answer_by)
        except BaseException:
            if contender is not None:  # it may have been interrupted after the grant
                contender.abandon()
            raise

    async def _on_session(self, work: Callable[[ZooKeeperSession], Coroutine[Any, Any, T]], until: float) -> T:
        """Run ``work`` on the session. If the session ends during that, repeat it on a new one, until ``until``.

        A session may end after a pause of this process or a long restart of the server.
        """
        while True:
            session = self._current()
            try:
                return await work(session)
            except ConnectionBroken:
                continue
            except SessionEnded:
                if not session.reached or clock.now() >= until:
                    raise

    async def arelease(self, grant: Grant) -> bool:
        contender: Contender = grant.session
        session, path = contender.session, contender.path
        until, sent_before = clock.now() + PATIENCE, False
        try:
            if path is None or not session.lives():
                return False
            session.held.pop(path, None)
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

    async def averify(self, grant: Grant) -> bool:
        contender: Contender = grant.session
        path, until = contender.path, clock.now() + PATIENCE
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

    def listed(self, keys: frozenset[str] | None) -> list[LockInfo]:
        return self._look(lambda session, until: listed(session, until, self.alias, keys))

    def break_lock(self, info: LockInfo) -> bool:
        return self._look(lambda session, until: delete_holder(session, until, info.key, info.fence))

    def _look(self, work: Callable[[ZooKeeperSession, float], Coroutine[Any, Any, T]]) -> T:
        until = clock.now() + PATIENCE
        return run(self._on_session(lambda session: work(session, until), until))

    # the keepalive thread

    def tick(self, now: float) -> float | None:
        session = self._session
        if session is None:
            return None
        if session.lives():
            return session.tick(now)
        with self._guard:
            if self._session is session:
                self._session = None
        session.end()
        leftovers.leave(session.close)
        return None

    def close(self) -> None:
        with self._guard:
            session, self._session = self._session, None
        if session is not None:
            session.end()
            session.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        if self._session is not None:
            self._session.abandon()
        self._guard, self._session = threading.Lock(), None
