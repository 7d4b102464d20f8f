"""One dedicated MySQL or MariaDB session: how it is opened, the locks on it, and everything in which the two servers
differ."""

from __future__ import annotations

import math
import re
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import MySQLdb

from django_distlock.backends.sessions.session import (
    GRACE,
    STATEMENT_LIMIT,
    TICK,
    ServerError,
    Session,
    SessionDead,
    StatementTimeout,
)
from django_distlock.concurrency.background import Stragglers
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Call, Flow, drive
from django_distlock.concurrency.parking import Parker
from django_distlock.concurrency.sockets import READY
from django_distlock.exceptions import DeadlockDetected, UnsupportedOperation

from .line import MySQLLine

if TYPE_CHECKING:
    from django_distlock.keys import LockKey

DEADLOCKS = frozenset({1213, 3058})  # MariaDB, MySQL
# KILL QUERY, lock wait timeout, and the limits on a statement's time of MariaDB and of MySQL
INTERRUPTIONS = frozenset({1317, 1205, 1969, 3024})
# MySQL waits for ever if told -1, MariaDB returns NULL at once: for both it is a wait of finite length, repeated.
LONGEST_WAIT = 3600
# The server frees the locks of a session that was silent for its wait_timeout; ours is at least this, seconds.
LEAST_WAIT_TIMEOUT = 600

_stragglers: defaultdict[str, Stragglers] = defaultdict(Stragglers)


def open_session(alias: str, parameters: dict[str, Any], waits: bool, until: float) -> Flow[MySQLSession]:
    """Connect by the monotonic time ``until``. SessionDead with the server's message, StatementTimeout,
    UnsupportedOperation for servers on which GET_LOCK does not work."""
    ours = {key: value for key, value in parameters.items() if key not in ("read_timeout", "write_timeout")}
    conn = yield from _connect(alias, {**ours, "autocommit": True}, until)
    session = MySQLSession(conn, waits)
    try:
        yield from session.prepare(alias, until)
    except BaseException:
        session.close()
        raise
    return session


class _Attempt:
    """The client's connect has no deadline below a second and no asyncio: it runs in a thread of its own, which is left
    to itself when nobody waits any more."""

    def __init__(self, parameters: dict[str, Any], left: float) -> None:
        self.parker = Parker()
        self.outcome: Any = None
        self._guard = threading.Lock()
        self._abandoned = False
        limit = math.ceil(min(left, LONGEST_WAIT)) + 1
        arguments = ({"connect_timeout": limit, **parameters},)
        self.thread = threading.Thread(target=self._run, args=arguments, name="distlock-connect", daemon=True)
        self.thread.start()

    def _run(self, parameters: dict[str, Any]) -> None:
        try:
            outcome = MySQLdb.connect(**parameters)
        except Exception as error:
            outcome = error
        with self._guard:
            self.outcome = outcome
            if self._abandoned:
                self._close()
        self.parker.wake()

    def abandon(self) -> None:
        """Close the connection, if there is one or when it comes."""
        with self._guard:
            self._abandoned = True
            self._close()

    def _close(self) -> None:
        if self.outcome is not None and not isinstance(self.outcome, Exception):
            self.outcome.close()


def _connect(alias: str, parameters: dict[str, Any], until: float) -> Flow[Any]:
    left = max(0.0, until - monotonic())
    if (reason := _stragglers[alias].refuse()) is not None:
        raise SessionDead(reason)
    attempt = _Attempt(parameters, left)
    try:
        if not (yield Call(attempt.parker, "park", (left,))):
            raise StatementTimeout
    except BaseException:
        attempt.abandon()
        _stragglers[alias].add(attempt.thread)
        raise
    if isinstance(attempt.outcome, Exception):
        raise SessionDead(str(attempt.outcome.args[-1])) from attempt.outcome
    return attempt.outcome


class MySQLSession(MySQLLine):
    """The locks: flows, and what can be done at once in this thread."""

    def prepare(self, alias: str, until: float) -> Flow[None]:
        """Refuse what would silently lock nothing, and take our own timeouts."""
        version = self.conn.get_server_info()
        # MySQL's own client library shows MariaDB before 11 as 5.5.5-10.x
        numbers = tuple(int(part) for part in re.findall(r"\d+", version.removeprefix("5.5.5-"))[:3])
        if numbers < ((10, 0, 2) if self.mariadb else (5, 7, 5)):
            raise UnsupportedOperation(
                f"The server of alias {alias!r} is {version}, where a second GET_LOCK frees the first. Named locks "
                "need MySQL 5.7.5 or MariaDB 10.0.2; use leasetable.LeaseTableBackend there."
            )
        limit = b"max_statement_time" if self.mariadb else b"max_execution_time"
        yield Call(
            self,
            "query",
            (
                # of an unsigned and a signed number MySQL makes a decimal, which it does not take
                b"SET SESSION %s = 0, wait_timeout = CAST(GREATEST(@@session.wait_timeout, %d) AS SIGNED)"
                % (limit, LEAST_WAIT_TIMEOUT),
                until,
            ),
        )
        connection = yield Call(self, "execute", (b"SELECT CONNECTION_ID()", until))
        if connection != self.server_id:
            raise UnsupportedOperation(
                f"The lock sessions of alias {alias!r} go through a proxy that hands a server session to several "
                "clients. Set OPTIONS['session_database'] to a database alias that connects directly."
            )
        # not @@wsrep_on, which Oracle's MySQL does not know, and Percona XtraDB Cluster does
        wsrep = yield Call(self, "query", (b"SHOW VARIABLES LIKE 'wsrep_on'", until))
        if wsrep and wsrep[0][1] in ("ON", b"ON"):
            raise UnsupportedOperation(
                f"The server of alias {alias!r} is a Galera node (wsrep_on), which does not share GET_LOCK with its "
                "cluster. Use leasetable.LeaseTableBackend there."
            )

    def lock(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        name = key.text_bytes
        nulls = 0
        while nulls < 3:
            try:
                got = yield Call(
                    self, "execute", (b"SELECT GET_LOCK('%s', 0)" % name, until, b"SELECT RELEASE_LOCK('%s')" % name)
                )
                nulls += got is None
            except ServerError as error:
                if error.code not in INTERRUPTIONS or monotonic() >= until:
                    raise
                got = None
            if got is not None:
                return bool(got == 1)
            yield from self.unlock(key, shared)  # NULL is an error, and only 1 means acquired
        raise ServerError(0, "GET_LOCK returned NULL three times.")

    def lock_now(self, key: LockKey, shared: bool) -> bool:
        return bool(self._query_now(b"SELECT GET_LOCK('%s', 0)" % key.text_bytes)[0][0] == 1)

    def unlock_now(self, key: LockKey, shared: bool) -> bool:
        return bool(self._query_now(b"SELECT RELEASE_LOCK('%s')" % key.text_bytes)[0][0] == 1)

    def wait(self, key: LockKey, shared: bool, until: float) -> Flow[bool]:
        name = key.text_bytes
        got = None
        try:
            got = yield Call(
                self, "wait_for", (self._waiting(name, until), until + GRACE, b"SELECT RELEASE_LOCK('%s')" % name)
            )
        except ServerError as error:
            if error.code in DEADLOCKS:
                raise DeadlockDetected from error
            if error.code not in INTERRUPTIONS:
                raise
        if got is None:
            yield from self._free(name, max(until, monotonic()) + GRACE)
        return bool(got == 1)

    def wait_now(self, key: LockKey, shared: bool, until: float) -> bool:
        try:
            self._send(self._waiting(key.text_bytes, until))
            self._orphan(None)  # until the reply is here, an exception leaves it behind
            if not READY.poll(self.fd, False, until + GRACE):
                self.kill("a wait was cut off")
                raise StatementTimeout
            self.orphaned_at = None
            got = self._receive()[0][0]
        except ServerError:
            got = None
        if got is None:
            drive(self.unlock(key, shared))
        return bool(got == 1)

    def _waiting(self, name: bytes, until: float) -> bytes:
        """MySQL rounds to whole seconds, and counts the time of a statement in milliseconds: there that limit ends the
        wait. Where it does not, the session is dropped at the deadline."""
        seconds = max(0.0, min(until - monotonic(), LONGEST_WAIT))
        if self.mariadb:
            return b"SELECT GET_LOCK('%s', %.4f)" % (name, seconds)
        limit = math.ceil(seconds * 1000)
        return b"SELECT /*+ MAX_EXECUTION_TIME(%d) */ GET_LOCK('%s', %d)" % (limit, name, math.ceil(seconds))

    def unlock(self, key: LockKey, shared: bool) -> Flow[bool]:
        return (yield from self._free(key.text_bytes, monotonic() + STATEMENT_LIMIT + 3 * TICK))

    def _free(self, name: bytes, until: float) -> Flow[bool]:
        """Give the name back. Who ends a wait by KILL QUERY may hit this as well, before or after its effect."""
        interrupted = False
        while True:
            try:
                freed = yield Call(self, "execute", (b"SELECT RELEASE_LOCK('%s')" % name, until))
                return bool(freed == 1) or interrupted
            except ServerError as error:
                if error.code not in INTERRUPTIONS or monotonic() >= until:
                    raise
                interrupted = True

    def ping(self, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"SELECT 1", until))

    def cancel(self, other: Session, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"KILL QUERY %d" % other.server_id, until))

    def clear(self, until: float) -> Flow[None]:
        yield Call(self, "execute", (b"SELECT RELEASE_ALL_LOCKS()", until))
