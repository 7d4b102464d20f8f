"""The operations on the leases of one alias, their SQL, and the store that executes them.

There is one subclass for each family of databases. They differ in the clock and in how one statement takes a lease; the
rest is common. Times are microseconds since 1970 in UTC, by the clock of the database.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from django.db import IntegrityError
from django.db.models.functions import Now
from django.db.models.sql import Query

from django_distlock.backends.text import printable, short
from django_distlock.concurrency.origin import describe_caller
from django_distlock.schema import NOW

from .records import DEAD, GRACE, KEPT, NOWHERE, LiveLease, Look, Ticket, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.concurrency.executor import Threads
    from django_distlock.records import Claim, Grant

    Prepared = tuple[str, Callable[[dict[str, Any]], Any]]

T = TypeVar("T")
P = ParamSpec("P")

# The live waiters ahead of a place. Tickets of one microsecond are ordered by their tokens.
AHEAD = """FROM {ticket} t WHERE t.digest = :digest AND t.seen > {now} - {grace}
    AND t.{arrived} <= :place AND (t.{arrived} < :place OR t.token < :token)"""
# The lease is ours already: the statement is repeated because its reply was lost.
OURS = """EXISTS (
    SELECT 1 FROM {lease} o WHERE o.digest = :digest AND o.token = :token AND o.expires_at > {now})"""
# The lease is free, expired, or ours.
MINE = "token IN ('-', :token) OR expires_at <= {now}"
COLUMNS = "(digest, alias, name, token, fence, acquired_at, expires_at, holder)"
INSERT = """
INSERT INTO {lease} {columns} VALUES (:digest, :alias, :name, :token, {now}, {now}, {now} + :ttl, :holder)
"""
UPDATE = """
UPDATE {lease}
SET token = :token, fence = CASE WHEN fence >= {now} THEN fence + 1 ELSE {now} END, acquired_at = {now},
    expires_at = {now} + :ttl, holder = :holder, alias = :alias
WHERE digest = :digest AND (token = :token OR ((token = '-' OR expires_at <= {now}) AND NOT EXISTS (SELECT 1 {ahead})))
"""
KNOWN = "SELECT 1 FROM {lease} WHERE digest = :digest"
FENCE = "SELECT fence FROM {lease} WHERE digest = :digest AND token = :token AND expires_at > {now}"
GIVE = """
UPDATE {lease} SET token = '-', expires_at = {now} WHERE digest = :digest AND token = :token AND expires_at > {now}
"""
BREAK = """
UPDATE {lease} SET token = '-', expires_at = {now} WHERE digest = :digest AND fence = :fence AND expires_at > {now}
"""
EXTEND = "UPDATE {lease} SET expires_at = {now} + :ttl WHERE digest = :digest AND token = :token AND expires_at > {now}"
JOIN = "INSERT INTO {ticket} (token, digest, arrived, seen, holder) VALUES (:token, :digest, {now}, {now}, :holder)"
REFRESH = "UPDATE {ticket} SET seen = {now} WHERE digest = :digest AND token = :token"
LEAVE = "DELETE FROM {ticket} WHERE digest = :digest AND (token = :token OR seen < {now} - {dead})"
PLACE = """
SELECT p.{arrived},
    (SELECT COUNT(*) FROM {ticket} t WHERE t.digest = p.digest AND t.seen > {now} - {grace}
     AND t.{arrived} <= p.{arrived} AND (t.{arrived} < p.{arrived} OR t.token < p.token))
FROM {ticket} p WHERE p.digest = :digest AND p.token = :token
"""
LOOK = """
SELECT l.token, l.fence, (SELECT COUNT(*) {ahead}),
    (SELECT p.{arrived} FROM {ticket} p WHERE p.digest = :digest AND p.{arrived} = :place AND p.token = :token)
FROM (SELECT 1 AS one{dual}) q LEFT JOIN {lease} l
    ON l.digest = :digest AND l.expires_at > {now} AND l.token <> '-'
"""
ROWS = """
SELECT {hex}, l.name, l.token, l.fence, l.acquired_at, l.expires_at, l.holder, t.token, t.holder
FROM {lease} l LEFT JOIN {ticket} t ON t.digest = l.digest AND t.seen > {now} - {grace}
WHERE l.alias = :alias AND l.expires_at > {now} AND l.token <> '-'
ORDER BY l.acquired_at, l.digest, t.{arrived}, t.token
"""
HELD = "SELECT {hex} FROM {lease} l WHERE {hex} IN ('keys') AND l.expires_at > {now} AND l.token <> '-'"
PRUNE_TICKETS = "DELETE FROM {ticket} WHERE seen < {now} - {dead}"
LAST_OF_BATCH = """
SELECT MAX(digest) FROM (SELECT digest FROM {lease} WHERE digest > :after ORDER BY digest {limit}) q
"""
# A fence in the future, after the clock was set back, must be kept: the next one has to be higher.
PRUNE = """
DELETE FROM {lease} WHERE digest > :after AND digest <= :last AND expires_at < {now} - {kept} AND fence < {now}
"""
PARAMETER = re.compile("(?<!:):([a-z]+)")  # not the second colon of a cast
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CENTURY = 3.2e9  # seconds


def microseconds(seconds: float) -> int:
    """At most a century: sums of it fit into 64 bits and into a datetime."""
    return int(min(seconds, CENTURY) * 1_000_000)


class Holder:
    """The caller, as host:pid:thread or task."""

    def __init__(self) -> None:
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._known: dict[str, str] = {}

    def text(self) -> str:
        name = describe_caller()
        text = self._known.get(name)
        if text is None:
            if len(self._known) >= 1000:
                self._known.clear()
            text = self._known[name] = short(f"{self._process}:{name}")
        return text


class Executor(Protocol):
    """What statements are executed on: a session of a server, or an open file."""

    used_at: float

    def change(self, statement: str, row: Any) -> int: ...
    def ask(self, statement: str, row: Any) -> list[Any]: ...
    def atomically(self, work: Callable[[], T]) -> T: ...


class Statements:
    """Common SQL: up to three statements take a lease. A subclass names the clock in its own SQL, or ``now`` is a
    parameter that is asked for before each statement, as Django spells it."""

    clock: str | None = None
    placeholder = "%s"
    ahead, join_text = AHEAD, JOIN
    # the key of a claim, as the tables have it
    digest: Callable[[Claim], Any] = staticmethod(attrgetter("key.path"))

    def __init__(self, alias: str) -> None:
        self._alias = short(alias)
        # the text of each statement, and what makes the row of its parameters
        self._texts: dict[str, Prepared] = {}

    def fragments(self, session: Any) -> dict[str, str]:
        """What is inserted into the statements beside the clock."""
        return {
            "lease": "django_distlock_lease",
            "ticket": "django_distlock_ticket",
            "arrived": "arrived",
            "hex": "l.digest",
            "dual": session.wrapper.features.bare_select_suffix,
        }

    def now(self, session: Any) -> int:
        query = Query(None)
        query.add_annotation(Now(), "now", select=True)
        session.cursor.execute(*query.get_compiler(connection=session.wrapper).as_sql())
        now: datetime = session.cursor.fetchone()[0]
        return ((now if now.tzinfo else now.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)

    def packed(self, digits: str) -> Any:
        """A key in hexadecimal digits, as the tables have it."""
        return digits

    def hold(self, claim: Claim) -> dict[str, Any]:
        """The parameters of a statement about a claim's own lease or ticket."""
        return {"digest": self.digest(claim), "token": claim.token}

    def limit(self, session: Any, count: int) -> str:
        return session.wrapper.ops.limit_offset_sql(0, count) or ""

    def _prepared(self, session: Executor, statement: str) -> Prepared:
        parts = {
            **self.fragments(session),
            "now": self.clock or ":now",
            "grace": microseconds(GRACE),
            "dead": microseconds(DEAD),
            "kept": microseconds(KEPT),
            "columns": COLUMNS,
        }
        inner = {"ahead": self.ahead.format(**parts), "ours": OURS.format(**parts), "mine": MINE.format(**parts)}
        text = statement.format(**parts, **inner)
        # by a function: a template is parsed by a module that cannot be imported at the end of the interpreter
        sql = PARAMETER.sub(lambda name: self.placeholder.format(name[1]), text)
        prepared = self._texts[statement] = sql, self.row(PARAMETER.findall(text))
        return prepared

    def row(self, names: list[str]) -> Callable[[dict[str, Any]], Any]:
        """What makes the parameters of a statement, for the driver, out of their values."""
        return itemgetter(*names) if len(names) > 1 else lambda values: [values[name] for name in names]

    def change(self, session: Executor, statement: str, values: dict[str, Any]) -> int:
        """Execute a write; how many rows it changed."""
        text, row = self._texts.get(statement) or self._prepared(session, statement)
        if self.clock is None and "now" not in values:
            values["now"] = self.now(session)
        return session.change(text, row(values))

    def ask(self, session: Executor, statement: str, values: dict[str, Any]) -> list[Any]:
        """Execute a read; its rows."""
        text, row = self._texts.get(statement) or self._prepared(session, statement)
        if self.clock is None and "now" not in values:
            values["now"] = self.now(session)
        return session.ask(text, row(values))

    def values(self, claim: Claim, holder: str, place: int) -> dict[str, Any]:
        """The parameters of a statement that takes a lease."""
        return {
            "digest": self.digest(claim),
            "token": claim.token,
            "alias": self._alias,
            "name": printable(claim.key.name),
            "ttl": microseconds(claim.ttl or 0.0),
            "holder": holder,
            "place": place,
        }

    def take(self, session: Executor, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        """Take the lease if it is free, expired or ours, and no live waiter is before ``place``; the fence, or None."""
        values = self.values(claim, holder, place)
        if not self.change(session, UPDATE, values):
            if self.ask(session, KNOWN, values):
                return None
            try:
                self.change(session, INSERT, values)
            except IntegrityError:  # another process was faster
                return None
        found = self.ask(session, FENCE, values)
        return int(found[0][0]) if found else None

    def enter(
        self, session: Executor, claim: Claim, holder: str, queue: bool, address: str | None = None
    ) -> tuple[int | None, Ticket | None]:
        """Take the lease, or else draw a ticket if ``queue``; the fence, and the ticket. ``address`` is that of the
        waiter's socket, if it has one."""
        fence = self.take(session, claim, holder)
        return fence, self.join(session, claim, holder, address) if fence is None and queue else None

    def take_turn(self, session: Executor, claim: Claim, holder: str, place: int) -> int | None:
        """Take the lease if no live waiter is before ``place``, and leave the queue; the fence, or None."""

        def take_and_leave() -> int | None:
            fence = self.take(session, claim, holder, place)
            if fence is not None:
                self.leave(session, claim)
            return fence

        return session.atomically(take_and_leave)

    def give(self, session: Executor, claim: Claim) -> bool:
        """Free the lease; False if the claim does not hold it."""
        return self.change(session, GIVE, self.hold(claim)) > 0

    def release(self, session: Executor, grant: Grant) -> bool:
        """Free the lease of ``grant``; False if that does not hold it."""
        return self.give(session, grant.claim)

    def extend(self, session: Executor, claim: Claim, ttl: float) -> bool:
        """Let the lease live for ``ttl`` seconds from now; False if the claim does not hold it."""
        return self.change(session, EXTEND, {**self.hold(claim), "ttl": microseconds(ttl)}) > 0

    def holds(self, session: Executor, claim: Claim) -> bool:
        """Does the claim hold the lease?"""
        return bool(self.ask(session, FENCE, self.hold(claim)))

    def join(self, session: Executor, claim: Claim, holder: str, address: str | None = None) -> Ticket:
        """Draw a ticket. Harmless if repeated."""
        with contextlib.suppress(IntegrityError):
            self.change(session, self.join_text, {**self.hold(claim), "holder": holder, "address": address})
        place, ahead = self.ask(session, PLACE, self.hold(claim))[0]
        return Ticket(place, int(ahead))

    def look(self, session: Executor, claim: Claim, place: int) -> Look:
        """How the lease and the queue are, without writing."""
        row = self.ask(session, LOOK, {**self.hold(claim), "place": place})[0]
        return Look(row[0], row[1], int(row[2]), row[3])

    def refresh(self, session: Executor, claim: Claim) -> None:
        """Note that the waiter is alive."""
        self.change(session, REFRESH, self.hold(claim))

    def leave(self, session: Executor, claim: Claim) -> None:
        """Delete the ticket, and those of dead waiters."""
        self.change(session, LEAVE, self.hold(claim))

    def rows(self, session: Executor) -> list[LiveLease]:
        """The live leases of this alias."""
        return rows_of(self.ask(session, ROWS, {"alias": self._alias}))

    def held(self, session: Executor, keys: Iterable[str]) -> list[str]:
        """Those of ``keys``, in hexadecimal digits, whose leases are live."""
        text, row = self._texts.get(HELD) or self._prepared(session, HELD)
        values = {"now": self.now(session)} if self.clock is None else {}
        text = text.replace("'keys'", ", ".join(f"'{key}'" for key in keys))
        return [key for (key,) in session.ask(text, row(values))]

    def break_lease(self, session: Executor, digest: str, fence: int) -> bool:
        """Free the lease that was granted with ``fence``; False if it has ended."""
        return self.change(session, BREAK, {"digest": self.packed(digest), "fence": fence}) > 0

    def prune(self, session: Executor, after: Any, limit: int) -> tuple[int, Any]:
        """Delete leases that ended a day ago, among the ``limit`` ones with digests above ``after``; how many, and the
        last digest. It is None at the end of the table, when dead waiters are deleted."""
        after = after or self.packed("")
        batch = LAST_OF_BATCH.replace("{limit}", self.limit(session, limit))
        last = self.ask(session, batch, {"after": after})[0][0]
        if last is None:
            self.change(session, PRUNE_TICKETS, {})
            return 0, None
        return self.change(session, PRUNE, {"after": after, "last": last}), last


class PostgresStatements(Statements):
    """One statement takes a lease."""

    clock = NOW["postgresql"]
    TAKE = """
    INSERT INTO {lease} AS held {columns}
    SELECT :digest, :alias, :name, :token, {now}, {now}, {now} + :ttl, :holder
    WHERE NOT EXISTS (SELECT 1 {ahead}) OR {ours}
    ON CONFLICT (digest) DO UPDATE SET
        token = EXCLUDED.token, fence = GREATEST(held.fence + 1, EXCLUDED.fence), acquired_at = EXCLUDED.acquired_at,
        expires_at = EXCLUDED.expires_at, holder = EXCLUDED.holder, alias = EXCLUDED.alias
    WHERE held.token = '-' OR held.token = EXCLUDED.token OR held.expires_at <= {now}
    RETURNING fence
    """

    def take(self, session: Executor, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        found = self.ask(session, self.TAKE, self.values(claim, holder, place))
        return int(found[0][0]) if found else None


class MySQLStatements(Statements):
    """One statement takes a lease, for MariaDB and MySQL alike.

    MySQL has no RETURNING, and Django's connections count a row that was found as one that was changed. What tells is
    the value that the last LAST_INSERT_ID(expression) of the statement had, which comes with its reply: the fence, or 0
    (https://dev.mysql.com/doc/c-api/8.4/en/mysql-insert-id.html). ``expires_at`` is assigned last, so that the
    condition means the same whether assignments see those before them (the default) or not (MariaDB's
    SIMULTANEOUS_ASSIGNMENT).
    """

    clock = NOW["mysql"]
    TAKE = """
    INSERT INTO {lease} {columns}
    SELECT :digest, :alias, :name, :token, LAST_INSERT_ID({now}), {now}, {now} + :ttl, :holder FROM DUAL
    WHERE NOT EXISTS (SELECT 1 {ahead}) OR {ours}
    ON DUPLICATE KEY UPDATE
        fence = IF({mine}, LAST_INSERT_ID(GREATEST(fence + 1, {now})),
                   fence + LAST_INSERT_ID(0)),
        acquired_at = IF({mine}, {now}, acquired_at),
        holder = IF({mine}, :holder, holder),
        alias = IF({mine}, :alias, alias),
        token = IF({mine}, :token, token),
        expires_at = IF({mine}, {now} + :ttl, expires_at)
    """

    def take(self, session: Any, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        self.change(session, self.TAKE, self.values(claim, holder, place))
        return int(session.cursor.lastrowid) or None


def statements_of(connection: BaseDatabaseWrapper) -> type[Statements]:
    """The statements for a connection to a server, also of backends that are derived from those of Django."""
    families = {kind.__module__.rpartition(".")[0] for kind in type(connection).__mro__}
    if "django.db.backends.postgresql" in families:
        return PostgresStatements
    if "django.db.backends.mysql" in families:
        return MySQLStatements
    return Statements


class Store(ABC):
    """Where the leases are: it has the session and executes the statements on it."""

    session: Any = None

    def __init__(self, statements: Statements, threads: Callable[[], Threads]) -> None:
        self.statements = statements
        self._threads = threads

    @abstractmethod
    async def run(
        self, until: float, operation: Callable[Concatenate[Any, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """Execute one of the statements, again while it is worth while. StoreError at the monotonic time ``until``."""

    @abstractmethod
    def attempt(self, *args: Any) -> tuple[Exception | None, Any]:
        """The error or None, and the result."""

    async def aattempt(self, *args: Any) -> tuple[Exception | None, Any]:
        """:meth:`attempt`, for a task in a thread, since no driver and no checkpoint of SQLite's has an async form."""
        return await self._threads().short(self.attempt, *args)

    @property
    def is_open(self) -> bool:
        """Is there a session to be closed once it is idle?"""
        return self.session is not None

    def watch(self, now: float) -> float | None:
        """End a statement that has no time left; the deadline of the present one."""
        return None

    def close_idle(self) -> None:
        """Close the session unless it is in use."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the session. Leases are rows and stay; the next statement opens another session."""

    @abstractmethod
    def abandon(self) -> None:
        """In the child of a fork: leave the session to the parent."""
