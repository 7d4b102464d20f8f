"""The lease table on database servers: the session, and its statements.

There is one dialect for each family of servers. They differ in the clock and in how one statement takes a lease; the
rest is common SQL. Times are microseconds since 1970 in UTC, by the clock of the server.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError
from django.db.models.functions import Now
from django.db.models.sql import Query

from django_distlock.backends.side_connection import SideConnection
from django_distlock.backends.text import printable, short
from django_distlock.concurrency import sockets
from django_distlock.concurrency.clock import monotonic

from .records import DEAD, GRACE, KEPT, NOWHERE, LiveLease, Look, Statements, Ticket, microseconds, rows_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.records import Claim

# No live waiter is ahead. Parameters: _place().
FIRST = """NOT EXISTS (
    SELECT 1 FROM django_distlock_ticket t WHERE t.digest = %s AND t.seen > {now} - {grace}
    AND (t.arrived < %s OR (t.arrived = %s AND t.token < %s)))"""
# The lease is ours already: the statement is repeated because its reply was lost. Parameters: digest, token.
OURS = """EXISTS (
    SELECT 1 FROM django_distlock_lease o WHERE o.digest = %s AND o.token = %s AND o.expires_at > {now})"""
# The lease is free, expired, or ours. Parameter: token.
MINE = "token IN ('-', %s) OR expires_at <= {now}"
COLUMNS = "(digest, alias, name, token, fence, acquired_at, expires_at, holder)"
INSERT = """
INSERT INTO django_distlock_lease {columns} VALUES (%s, %s, %s, %s, {now}, {now}, {now} + %s, %s)
"""
UPDATE = """
UPDATE django_distlock_lease
SET token = %s, fence = CASE WHEN fence >= {now} THEN fence + 1 ELSE {now} END, acquired_at = {now},
    expires_at = {now} + %s, holder = %s, alias = %s
WHERE digest = %s AND (token = %s OR ((token = '-' OR expires_at <= {now}) AND {first}))
"""
KNOWN = "SELECT 1 FROM django_distlock_lease WHERE digest = %s"
FENCE = "SELECT fence FROM django_distlock_lease WHERE digest = %s AND token = %s AND expires_at > {now}"
GIVE = """
UPDATE django_distlock_lease SET token = '-', expires_at = {now}
WHERE digest = %s AND token = %s AND expires_at > {now}
"""
BREAK = """
UPDATE django_distlock_lease SET token = '-', expires_at = {now}
WHERE digest = %s AND fence = %s AND expires_at > {now}
"""
EXTEND = """
UPDATE django_distlock_lease SET expires_at = {now} + %s WHERE digest = %s AND token = %s AND expires_at > {now}
"""
JOIN = "INSERT INTO django_distlock_ticket (token, digest, arrived, seen, holder) VALUES (%s, %s, {now}, {now}, %s)"
REFRESH = "UPDATE django_distlock_ticket SET seen = {now} WHERE token = %s"
LEAVE = "DELETE FROM django_distlock_ticket WHERE token = %s OR (digest = %s AND seen < {now} - {dead})"
LOOK = """
SELECT l.token, l.fence,
    (SELECT COUNT(*) FROM django_distlock_ticket t JOIN django_distlock_ticket m ON m.token = %s
     WHERE t.digest = %s AND t.seen > {now} - {grace}
     AND (t.arrived < m.arrived OR (t.arrived = m.arrived AND t.token < m.token))),
    (SELECT p.arrived FROM django_distlock_ticket p WHERE p.token = %s)
FROM (SELECT 1 AS one{dual}) q LEFT JOIN django_distlock_lease l
    ON l.digest = %s AND l.expires_at > {now} AND l.token <> '-'
"""
ROWS = """
SELECT l.digest, l.name, l.token, l.fence, l.acquired_at, l.expires_at, l.holder, t.token, t.holder
FROM django_distlock_lease l LEFT JOIN django_distlock_ticket t ON t.digest = l.digest AND t.seen > {now} - {grace}
WHERE l.alias = %s AND l.expires_at > {now} AND l.token <> '-'
ORDER BY l.acquired_at, l.digest, t.arrived, t.token
"""
PRUNE_TICKETS = "DELETE FROM django_distlock_ticket WHERE seen < {now} - {dead}"
LAST_OF_BATCH = """
SELECT MAX(digest) FROM (SELECT digest FROM django_distlock_lease WHERE digest > %s ORDER BY digest {limit}) q
"""
# A fence in the future, after the clock was set back, must be kept: the next one has to be higher.
PRUNE = """
DELETE FROM django_distlock_lease WHERE digest > %s AND digest <= %s AND expires_at < {now} - {kept} AND fence < {now}
"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _place(claim: Claim, place: int) -> tuple[Any, ...]:
    """The parameters of FIRST. Tickets of one microsecond are ordered by their tokens."""
    return claim.key.path, place, place, "" if place == NOWHERE else claim.token


class LeaseSession(SideConnection):
    """A session of this package. Its statements go to the driver's cursor, so that Django does not log them."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        if self.wrapper.vendor == "postgresql":
            self.options["server_side_binding"] = True  # without it statements cannot be prepared
        elif self.wrapper.vendor == "mysql":
            self.options["isolation_level"] = "read committed"  # the server's default would lock gaps of the queue
        self.used_at = monotonic()
        self.cursor: Any = None

    @classmethod
    def connect(cls, database: str) -> LeaseSession:
        """A session that is open. Slow, and deaf to deadlines. Errors are Django's."""
        session = cls(database)
        try:
            session.open()
        except BaseException:
            session.close()
            raise
        return session

    def open(self) -> None:
        super().open()
        raw: Any = self.wrapper.connection
        self.cursor = self.wrapper.create_cursor()
        if hasattr(raw, "prepare_threshold"):  # psycopg 3
            self.cursor.execute("SELECT pg_backend_pid()")
            pooled = self.cursor.fetchone()[0] != raw.info.backend_pid
            # Planning costs more than executing. A pooler that changes the server session loses prepared statements.
            raw.prepare_threshold = None if pooled else 1

    def leave_to_parent(self) -> None:
        """In the child of a fork: never close it, since the driver would say goodbye on the parent's socket."""
        if self._fd >= 0:
            sockets.silence(self._fd)
        _inherited.append(self)


_inherited: list[LeaseSession] = []


class Dialect(Statements[LeaseSession]):
    """Common SQL: up to three statements take a lease, and one before each asks for the clock, as Django spells it."""

    clock: str | None = None

    def __init__(self, alias: str) -> None:
        self._alias = short(alias)
        self._texts: dict[str, str] = {}

    def _text(self, session: LeaseSession, statement: str) -> str:
        if self.clock is None:
            return self._fill(session, statement, str(self._ask_clock(session)))
        text = self._texts.get(statement)
        if text is None:
            text = self._texts[statement] = self._fill(session, statement, self.clock)
        return text

    def _fill(self, session: LeaseSession, statement: str, now: str) -> str:
        """Insert the fragments of this module and its numbers; values are parameters."""
        parts = {
            "now": now,
            "grace": microseconds(GRACE),
            "dead": microseconds(DEAD),
            "kept": microseconds(KEPT),
            "columns": COLUMNS,
            "dual": session.wrapper.features.bare_select_suffix,
        }
        mine = MINE.format(now=now)
        return statement.format(**parts, mine=mine, first=FIRST.format(**parts), ours=OURS.format(**parts))

    def _ask_clock(self, session: LeaseSession) -> int:
        query = Query(None)
        query.add_annotation(Now(), "now", select=True)
        session.cursor.execute(*query.get_compiler(connection=session.wrapper).as_sql())
        now: datetime = session.cursor.fetchone()[0]
        return ((now if now.tzinfo else now.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)

    def change(self, session: LeaseSession, statement: str, *params: Any) -> int:
        """Execute a write; how many rows it changed."""
        session.cursor.execute(self._text(session, statement), params)
        return int(session.cursor.rowcount)

    def ask(self, session: LeaseSession, statement: str, *params: Any) -> list[Any]:
        """Execute a read; its rows."""
        session.cursor.execute(self._text(session, statement), params)
        return list(session.cursor.fetchall())

    def take(self, session: LeaseSession, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        """Take the lease if it is free, expired or ours, and no live waiter is before ``place``; the fence, or None."""
        digest, token = claim.key.path, claim.token
        known = (microseconds(claim.ttl or 0.0), holder, self._alias, digest, token, *_place(claim, place))
        if not self.change(session, UPDATE, token, *known):
            if self.ask(session, KNOWN, digest):
                return None
            try:
                self.change(session, INSERT, *self._values(claim, holder))
            except IntegrityError:  # another process was faster
                return None
        found = self.ask(session, FENCE, digest, token)
        return int(found[0][0]) if found else None

    def _values(self, claim: Claim, holder: str) -> tuple[Any, ...]:
        return (
            claim.key.path,
            self._alias,
            printable(claim.key.name),
            claim.token,
            microseconds(claim.ttl or 0.0),
            holder,
        )

    def enter(self, session: LeaseSession, claim: Claim, holder: str, queue: bool) -> tuple[int | None, Ticket | None]:
        fence = self.take(session, claim, holder)
        return fence, self.join(session, claim, holder) if fence is None and queue else None

    def take_turn(self, session: LeaseSession, claim: Claim, holder: str, place: int) -> int | None:
        fence = self.take(session, claim, holder, place)
        if fence is not None:
            self.leave(session, claim)
        return fence

    def give(self, session: LeaseSession, claim: Claim) -> bool:
        return self.change(session, GIVE, claim.key.path, claim.token) > 0

    def extend(self, session: LeaseSession, claim: Claim, ttl: float) -> bool:
        return self.change(session, EXTEND, microseconds(ttl), claim.key.path, claim.token) > 0

    def holds(self, session: LeaseSession, claim: Claim) -> bool:
        return bool(self.ask(session, FENCE, claim.key.path, claim.token))

    def join(self, session: LeaseSession, claim: Claim, holder: str) -> Ticket:
        """Draw a ticket. Harmless if repeated."""
        with contextlib.suppress(IntegrityError):
            self.change(session, JOIN, claim.token, claim.key.path, holder)
        seen = self.look(session, claim, NOWHERE)
        assert seen.place is not None  # noqa: S101 - it was just written
        return Ticket(seen.place, seen.ahead)

    def look(self, session: LeaseSession, claim: Claim, place: int) -> Look:
        row = self.ask(session, LOOK, claim.token, claim.key.path, claim.token, claim.key.path)[0]
        return Look(row[0], row[1], int(row[2]), row[3])

    def refresh(self, session: LeaseSession, claim: Claim, place: int) -> None:
        self.change(session, REFRESH, claim.token)

    def leave(self, session: LeaseSession, claim: Claim) -> None:
        self.change(session, LEAVE, claim.token, claim.key.path)

    def rows(self, session: LeaseSession) -> list[LiveLease]:
        return rows_of(self.ask(session, ROWS, self._alias))

    def break_lease(self, session: LeaseSession, digest: str, fence: int) -> bool:
        return self.change(session, BREAK, digest, fence) > 0

    def prune(self, session: LeaseSession, after: str | None, limit: int) -> tuple[int, str | None]:
        after = after or ""
        batch = LAST_OF_BATCH.replace("{limit}", session.wrapper.ops.limit_offset_sql(0, limit) or "")
        last = self.ask(session, batch, after)[0][0]
        if last is None:
            self.change(session, PRUNE_TICKETS)
            return 0, None
        return self.change(session, PRUNE, after, last), last


class PostgresDialect(Dialect):
    """One statement takes a lease. ``clock_timestamp()``, since ``now()`` is when the transaction began."""

    clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    TAKE = """
    INSERT INTO django_distlock_lease AS held {columns}
    SELECT %s, %s, %s, %s, {now}, {now}, {now} + %s, %s WHERE {first} OR {ours}
    ON CONFLICT (digest) DO UPDATE SET
        token = EXCLUDED.token, fence = GREATEST(held.fence + 1, EXCLUDED.fence), acquired_at = EXCLUDED.acquired_at,
        expires_at = EXCLUDED.expires_at, holder = EXCLUDED.holder, alias = EXCLUDED.alias
    WHERE held.token = '-' OR held.token = EXCLUDED.token OR held.expires_at <= {now}
    RETURNING fence
    """

    def take(self, session: LeaseSession, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        params = (*self._values(claim, holder), *_place(claim, place), claim.key.path, claim.token)
        found = self.ask(session, self.TAKE, *params)
        return int(found[0][0]) if found else None


class MySQLDialect(Dialect):
    """One statement takes a lease, for MariaDB and MySQL alike.

    MySQL has no RETURNING, and Django's connections count a row that was found as one that was changed. What tells is
    the value that the last LAST_INSERT_ID(expression) of the statement had, which comes with its reply: the fence, or 0
    (https://dev.mysql.com/doc/c-api/8.4/en/mysql-insert-id.html). ``expires_at`` is assigned last, so that the
    condition means the same whether assignments see those before them (the default) or not (MariaDB's
    SIMULTANEOUS_ASSIGNMENT).
    """

    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    TAKE = """
    INSERT INTO django_distlock_lease {columns}
    SELECT %s, %s, %s, %s, LAST_INSERT_ID({now}), {now}, {now} + %s, %s FROM DUAL WHERE {first} OR {ours}
    ON DUPLICATE KEY UPDATE
        fence = IF({mine}, LAST_INSERT_ID(GREATEST(fence + 1, {now})),
                   fence + LAST_INSERT_ID(0)),
        acquired_at = IF({mine}, {now}, acquired_at),
        holder = IF({mine}, %s, holder),
        alias = IF({mine}, %s, alias),
        token = IF({mine}, %s, token),
        expires_at = IF({mine}, {now} + %s, expires_at)
    """

    def take(self, session: LeaseSession, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        token = claim.token
        update = (token, token, token, holder, token, self._alias, token, token, token, microseconds(claim.ttl or 0.0))
        params = (*self._values(claim, holder), *_place(claim, place), claim.key.path, token, *update)
        self.change(session, self.TAKE, *params)
        return int(session.cursor.lastrowid) or None


def dialect_of(connection: BaseDatabaseWrapper) -> type[Dialect]:
    """The dialect for a connection, also for backends that are derived from those of Django."""
    families = {kind.__module__.rpartition(".")[0] for kind in type(connection).__mro__}
    if "django.db.backends.postgresql" in families:
        return PostgresDialect
    if "django.db.backends.mysql" in families:
        return MySQLDialect
    return Dialect
