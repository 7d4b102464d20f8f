"""ZooKeeper: ephemeral sequential nodes, one session per process, through kazoo."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from kazoo.exceptions import NoNodeError, ZookeeperError

from django_distlock.backends.base import Backend
from django_distlock.backends.query import Chosen, LockQuery, Mine, chosen
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, arun, run
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Claim, Finding, Grant, LockInfo

from . import doctor
from .introspection import find, listed
from .nodes import Facts
from .options import NAMES, Settings
from .queue import Place
from .session import Dropped, Late, Over, Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A caller that does not wait still grants the server this long to answer; seconds.
LEAST_PATIENCE = 0.5
# With less time than this, because the rest was spent behind other callers of this process, a server that does not
# answer is not yet called unreachable; seconds.
CHANCE = 0.1
# So long may a release or a look by an operator take; seconds.
PATIENCE = 2.0
# A session without a lock is closed after this time; seconds.
IDLE = 5.0
# A lock that is held for longer is watched, so that its holder learns if an operator breaks it; seconds.
WATCHED = 0.25


def _delete(path: str, kazoo: Any) -> Any:
    return kazoo.delete_async(path)


class ZooKeeperBackend(Backend):
    """OPTIONS: ``hosts``; ``path`` of the locks (default: "/distlock"); ``session_timeout`` in seconds (default: 10);
    ``auth_data``; ``acl`` (default: all rights to the creator if there is ``auth_data``, else to everybody); and what
    kazoo takes for TLS and SASL.

    ZooKeeper 3.5.3 or newer.
    """

    supports_shared = True
    supports_fencing = True
    supports_semaphore = True
    supports_break = True
    waits_natively = True
    apart_from_databases = True
    doubt: ClassVar[str] = "there is no word from ZooKeeper, which may end the session"
    option_names: ClassVar[frozenset[str]] = NAMES

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._settings = Settings(alias, options)
        self._after_fork()

    def _after_fork(self) -> None:
        self._guard = threading.Lock()
        self._session: Session | None = None
        self._facts = Facts()
        # the nodes above locks, and when they were used: what this process has not used for a while it deletes
        self._parents: dict[str, float] = {}

    def _enter(self) -> Session:
        """The session, which stays open until ``flows`` is counted down again."""
        with self._guard:
            session = self._session
            if session is None or not session.lives():
                if session is not None:
                    session.client.close(wait=False)
                name = f"distlock-{self.alias}-zookeeper"
                session = self._session = Session(
                    name, self._settings.kazoo, self._settings.path, lambda when: self.wake_at(when)
                )
                session.client.start()
            session.flows += 1
            session.used_at = monotonic()
        return session

    def _leave(self, session: Session) -> None:
        with self._guard:
            session.flows -= 1
            session.used_at = monotonic()

    # acquire and release

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return run(self._acquire(claim, wait))

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return await arun(self._acquire(claim, wait))

    def _acquire(self, claim: Claim, wait: float) -> Flow[Grant | None]:
        asked = monotonic()
        until = asked + wait
        answer_by = max(until, claim.answer_by or asked + LEAST_PATIENCE)
        while True:
            session = self._enter()
            try:
                place = Place(session, claim, self._facts.data(claim, time.time()), self._settings.acl)
                if not (yield from place.take(until, answer_by)):
                    return None
                self._parents[place.parent] = monotonic()
                return Grant(claim=claim, acquired_at=asked, fence=place.czxid, session=place)
            except Over as over:
                # one that ended under us, by an idle time, a pause of this process or a restart of the server, is
                # followed by a new one
                if not session.reached or monotonic() >= answer_by:
                    raise self._unavailable(over.__cause__) from over.__cause__
            except Late as late:
                if wait > 0 and answer_by - asked < CHANCE and not session.in_doubt():
                    return None  # the time was spent behind others of this process: the server had none to answer
                raise self._unavailable(None) from late
            except ZookeeperError as error:
                raise self._unavailable(error) from error
            finally:
                self._leave(session)

    def _unavailable(self, error: BaseException | None) -> BackendUnavailable:
        said = f": {type(error).__name__} {error}".rstrip() if error is not None else " in time"
        verb = "failed" if error is not None else "did not answer"
        return BackendUnavailable(f"ZooKeeper (alias {self.alias!r}) {verb}{said}.")

    def release(self, grant: Grant) -> bool:
        return run(self._release(grant))

    async def arelease(self, grant: Grant) -> bool:
        return await arun(self._release(grant))

    def _release(self, grant: Grant) -> Flow[bool]:
        place: Place = grant.session
        session, path = place.session, place.path
        session.held.discard(place)
        if path is None or not session.lives():
            return False
        until, sent_before = monotonic() + PATIENCE, False
        try:
            while True:
                try:
                    (answer,) = yield from session.ask(until, lambda kazoo: kazoo.delete_async(path))
                except Dropped:
                    sent_before = True  # and perhaps done
                    continue
                break
        except Over:
            return False
        except Late as late:
            place.abandon()
            raise self._unavailable(None) from late
        except BaseException:
            place.abandon()
            raise
        if isinstance(answer, ZookeeperError) and not isinstance(answer, NoNodeError):
            place.abandon()
            raise self._unavailable(answer) from answer
        place.path = None
        return answer is True or (sent_before and not place.broken)

    # what is known, and what the server knows

    def alive(self, grant: Grant) -> bool:
        place: Place = grant.session
        return not place.broken and place.session.lives()

    def in_doubt(self, grant: Grant) -> bool:
        session: Session = grant.session.session
        return session.in_doubt()

    def verify(self, grant: Grant) -> bool:
        return run(self._verify(grant))

    async def averify(self, grant: Grant) -> bool:
        return await arun(self._verify(grant))

    def _verify(self, grant: Grant) -> Flow[bool]:
        place: Place = grant.session
        path, until = place.path, monotonic() + PATIENCE
        while path is not None and self.alive(grant):
            try:
                (stat,) = yield from place.session.ask(until, lambda kazoo: kazoo.exists_async(path))
            except Dropped:
                continue
            except Over:
                return False
            except Late as late:
                raise self._unavailable(None) from late
            return bool(stat is not None and stat.czxid == place.czxid)
        return False

    def diagnose(self) -> Iterable[Finding]:
        list(self.inspect())  # so that there is a session
        return doctor.findings(self.alias, self._settings, self._session)

    def inspect(self) -> Iterable[LockInfo]:
        return self._listed(None)

    def select(self, query: LockQuery, mine: Sequence[Mine] = (), known: Sequence[str] = ()) -> Chosen | None:
        """Only where it is known which nodes to look at."""
        return None if query.keys is None else chosen(self._listed(query.keys), query, datetime.now(UTC))

    def _listed(self, keys: frozenset[str] | None) -> list[LockInfo]:
        return run(self._asked(lambda session, until: listed(session, until, self.alias, keys)))

    def break_lock(self, info: LockInfo) -> bool:
        return bool(run(self._asked(lambda session, until: find(session, until, info.key, info.fence))))

    def _asked(self, question: Any) -> Flow[Any]:
        until = monotonic() + PATIENCE
        while True:
            session = self._enter()
            try:
                return (yield from question(session, until))
            except Dropped:
                continue
            except Over as over:
                if not session.reached or monotonic() >= until:
                    raise self._unavailable(over.__cause__) from over.__cause__
            except Late as late:
                raise self._unavailable(None) from late
            except ZookeeperError as error:
                raise self._unavailable(error) from error
            finally:
                self._leave(session)

    # the keepalive thread

    def tick(self, now: float) -> float | None:
        session = self._session
        if session is None:
            return None
        if session.lives() and not self._retire(session, now):
            self._watch_held(session)
            self._delete_parents(session, now - IDLE)
            return session.lost_at if session.state is not Session.CONNECTING else now + IDLE
        with self._guard:
            if self._session is session:
                self._session = None
        session.end()
        session.client.close(wait=False)
        return None

    def _retire(self, session: Session, now: float) -> bool:
        """Nobody has used it for long: nobody gets it any more."""
        with self._guard:
            if self._session is not session or not session.idle or now - session.used_at < IDLE:
                return False
            self._session = None
        self._delete_parents(session, now)
        return True

    def _watch_held(self, session: Session) -> None:
        if session.state is not Session.CONNECTED:
            return
        long_ago = monotonic() - WATCHED
        for place in list(session.held):
            if not place.watched and place.since < long_ago:
                place.watch()

    def _delete_parents(self, session: Session, unused_since: float) -> None:
        """Those that are empty: the server refuses to delete the others, and does all this by itself in a minute."""
        if session.state is not Session.CONNECTED:
            return
        used = {place.parent for place in list(session.held)}
        for path, used_at in list(self._parents.items()):
            if used_at <= unused_since and path not in used:
                self._parents.pop(path, None)
                session.send(partial(_delete, path))

    def close(self) -> None:
        with self._guard:
            session, self._session = self._session, None
        if session is not None:
            self._delete_parents(session, monotonic())
            session.end()
            session.client.close(wait=True)
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        if self._session is not None:
            self._session.client.abandon()
        self._after_fork()
