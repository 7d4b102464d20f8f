"""The operations on the leases of one alias, and their SQL.

There is one subclass for each family of databases. They differ in the clock and in how one statement takes a lease; the
rest is common. Times are microseconds since 1970 in UTC, by the clock of the database.
"""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import IntegrityError

from django_distlock.backends.text import printable, readable, short
from django_distlock.records import MOST_WAITING, LockInfo
from django_distlock.schema import NOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_distlock.records import Claim

# Seconds without a sign of life after which a waiter is passed over. It keeps its place until it is deleted.
GRACE = 1.0
# Seconds between two signs of life of a waiter.
SIGN_OF_LIFE = 0.3
# Seconds without a sign of life after which a waiter is deleted.
DEAD = 60.0
# Seconds after which a lease that ended may be pruned: by then the clock alone keeps the fence rising.
KEPT = 24 * 3600.0
# The place of a caller without a ticket: behind all tickets.
NOWHERE = 2**62
# Rows that one statement prunes, in a few milliseconds.
BATCH = 1000
# Shown for a waiter whose process did not write who it is.
UNKNOWN = "unknown"

# A waiter that lives. One that was seen in the future died before the clock was set back: others would wait for it as
# long again.
ALIVE = "t.seen BETWEEN {now} - {grace} AND {now} + {grace}"
# The live waiters ahead of a place. Tickets of one microsecond are ordered by their tokens.
AHEAD = """FROM {ticket} t WHERE t.digest = :digest AND {alive}
    AND t.arrived <= :place AND (t.arrived < :place OR t.token < :token)"""
# The lease is ours already: the statement is repeated because its reply was lost.
OURS = """EXISTS (
    SELECT 1 FROM {lease} o WHERE o.digest = :digest AND o.token = :token AND o.expires_at > {now})"""
# The lease is free, expired, or ours.
MINE = "token IN ('-', :token) OR expires_at <= {now}"
COLUMNS = "(digest, alias, name, token, fence, acquired_at, expires_at, holder)"
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
SELECT p.arrived,
    (SELECT COUNT(*) FROM {ticket} t WHERE t.digest = p.digest AND {alive}
     AND t.arrived <= p.arrived AND (t.arrived < p.arrived OR t.token < p.token))
FROM {ticket} p WHERE p.digest = :digest AND p.token = :token
"""
LOOK = """
SELECT l.token, l.fence, (SELECT COUNT(*) {ahead}),
    (SELECT p.arrived FROM {ticket} p WHERE p.digest = :digest AND p.arrived = :place AND p.token = :token)
FROM (SELECT 1 AS one) q LEFT JOIN {lease} l
    ON l.digest = :digest AND l.expires_at > {now} AND l.token <> '-'
"""
ROWS = """
SELECT l.digest, l.name, l.token, l.fence, l.acquired_at, l.expires_at, l.holder, t.token, t.holder
FROM {lease} l LEFT JOIN {ticket} t ON t.digest = l.digest AND {alive}
WHERE l.alias = :alias AND l.expires_at > {now} AND l.token <> '-'
ORDER BY l.acquired_at, l.digest, t.arrived, t.token
"""
HELD = "SELECT l.digest FROM {lease} l WHERE l.digest IN (KEYS) AND l.expires_at > {now} AND l.token <> '-'"
PRUNE_TICKETS = "DELETE FROM {ticket} WHERE seen < {now} - {dead}"
LAST_OF_BATCH = """
SELECT MAX(digest) FROM (SELECT digest FROM {lease} WHERE digest > :after ORDER BY digest LIMIT {batch}) q
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


class Ticket(NamedTuple):
    """A place in the queue, and how many were ahead when it was drawn."""

    place: int
    ahead: int


class Look(NamedTuple):
    """The token and the fence of the live lease, how many waiters are ahead, and the waiter's own place."""

    token: str | None
    fence: int | None
    ahead: int
    place: int | None


class Statements:
    """Common SQL. A subclass names the clock in its own SQL, or ``now`` is a parameter.

    Each operation is executed on ``session``, whose ``cursor`` is a driver's, and may be repeated: what a claim has
    got is known by its token.
    """

    clock: str | None = None
    placeholder, join_text = "%s", JOIN

    def __init__(self, alias: str) -> None:
        self._backend, self._alias = alias, short(alias)
        # the text of each statement, and what makes the row of its parameters
        self._texts: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {}

    def now(self) -> int:
        """The time, where it is a parameter."""
        raise NotImplementedError

    def _prepared(self, statement: str) -> tuple[str, Callable[[dict[str, Any]], Any]]:
        parts: dict[str, object] = {
            "lease": "django_distlock_lease",
            "ticket": "django_distlock_ticket",
            "now": self.clock or ":now",
            "grace": microseconds(GRACE),
            "dead": microseconds(DEAD),
            "kept": microseconds(KEPT),
            "batch": BATCH,
            "columns": COLUMNS,
        }
        parts["alive"] = ALIVE.format(**parts)
        inner = {"ahead": AHEAD.format(**parts), "ours": OURS.format(**parts), "mine": MINE.format(**parts)}
        text = statement.format(**parts, **inner)
        names = PARAMETER.findall(text)
        row = itemgetter(*names) if len(names) > 1 else lambda values: [values[name] for name in names]
        # by a function: a template is parsed by a module that cannot be imported at the end of the interpreter
        prepared = self._texts[statement] = PARAMETER.sub(lambda name: self.placeholder, text), row
        return prepared

    def _execute(self, session: Any, statement: str, values: dict[str, Any]) -> Any:
        text, row = self._texts.get(statement) or self._prepared(statement)
        if self.clock is None and "now" not in values:
            values["now"] = self.now()
        cursor = session.cursor
        cursor.execute(text, row(values))
        return cursor

    def change(self, session: Any, statement: str, values: dict[str, Any]) -> int:
        """Execute a write; how many rows it changed."""
        return int(self._execute(session, statement, values).rowcount)

    def ask(self, session: Any, statement: str, values: dict[str, Any]) -> list[Any]:
        """Execute a read; its rows."""
        return list(self._execute(session, statement, values).fetchall())

    def hold(self, claim: Claim) -> dict[str, Any]:
        """The parameters of a statement about a claim's own lease or ticket."""
        return {"digest": claim.key.path, "token": claim.token}

    def take_values(self, claim: Claim, holder: str, place: int) -> dict[str, Any]:
        """The parameters of a statement that takes a lease."""
        return {
            "digest": claim.key.path,
            "token": claim.token,
            "alias": self._alias,
            "name": printable(claim.key.full_name),
            "ttl": microseconds(claim.ttl or 0.0),
            "holder": holder,
            "place": place,
        }

    def take(self, session: Any, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        """Take the lease if it is free, expired or ours, and no live waiter is before ``place``; the fence, or None."""
        raise NotImplementedError

    def take_turn(self, session: Any, claim: Claim, holder: str, place: int) -> int | None:
        """Take the lease if no live waiter is before ``place``, and leave the queue; the fence, or None."""
        fence = self.take(session, claim, holder, place)
        if fence is not None:
            self.leave(session, claim)
        return fence

    def give(self, session: Any, claim: Claim) -> bool:
        """Free the lease; False if the claim does not hold it."""
        return self.change(session, GIVE, self.hold(claim)) > 0

    def undo(self, session: Any, claim: Claim) -> None:
        """Free the lease, and leave the queue."""
        self.give(session, claim)
        self.leave(session, claim)

    def extend(self, session: Any, claim: Claim, ttl: float) -> bool:
        """Let the lease live for ``ttl`` seconds from now; False if the claim does not hold it."""
        return self.change(session, EXTEND, {**self.hold(claim), "ttl": microseconds(ttl)}) > 0

    def holds(self, session: Any, claim: Claim) -> bool:
        """Does the claim hold the lease?"""
        return bool(self.ask(session, FENCE, self.hold(claim)))

    def join(self, session: Any, claim: Claim, holder: str) -> Ticket:
        """Draw a ticket. Harmless if repeated."""
        with contextlib.suppress(IntegrityError):
            self.change(session, self.join_text, {**self.hold(claim), "holder": holder})
        place, ahead = self.ask(session, PLACE, self.hold(claim))[0]
        return Ticket(place, int(ahead))

    def look(self, session: Any, claim: Claim, place: int) -> Look:
        """How the lease and the queue are, without writing."""
        token, fence, ahead, own_place = self.ask(session, LOOK, {**self.hold(claim), "place": place})[0]
        return Look(token, fence, int(ahead), own_place)

    def refresh(self, session: Any, claim: Claim) -> None:
        """Note that the waiter is alive."""
        self.change(session, REFRESH, self.hold(claim))

    def leave(self, session: Any, claim: Claim) -> None:
        """Delete the ticket, and those of dead waiters."""
        self.change(session, LEAVE, self.hold(claim))

    def break_lease(self, session: Any, digest: str, fence: int) -> bool:
        """Free the lease that was granted with ``fence``; False if it has ended."""
        return self.change(session, BREAK, {"digest": digest, "fence": fence}) > 0

    def prune(self, session: Any, after: Any) -> tuple[int, Any]:
        """Delete leases that ended a day ago, among the BATCH ones with digests above ``after``; how many, and the last
        digest. It is None at the end of the table, when dead waiters are deleted."""
        after = after or ""
        last = self.ask(session, LAST_OF_BATCH, {"after": after})[0][0]
        if last is None:
            self.change(session, PRUNE_TICKETS, {})
            return 0, None
        return self.change(session, PRUNE, {"after": after, "last": last}), last

    def held(self, session: Any, keys: Iterable[str]) -> list[str]:
        """Those of ``keys``, in hexadecimal digits, whose leases are live."""
        statement = HELD.replace("KEYS", ", ".join(f"'{key}'" for key in keys))
        try:
            return [key for (key,) in self.ask(session, statement, {})]
        finally:
            self._texts.pop(statement, None)  # each has other keys

    def rows(self, session: Any) -> list[LockInfo]:
        """The live leases of this alias, each with its waiters."""
        found = []
        for lease, each in groupby(self.ask(session, ROWS, {"alias": self._alias}), key=lambda row: row[:7]):
            digest, name, token, fence, acquired_at, expires_at, holder = lease
            waiting = [who or UNKNOWN for *_, waiter, who in each if waiter is not None]
            found.append(
                LockInfo(
                    backend=self._backend,
                    key=digest,
                    name=readable(name),
                    holder=holder,
                    acquired_at=EPOCH + timedelta(microseconds=acquired_at),
                    expires_at=EPOCH + timedelta(microseconds=expires_at),
                    fence=fence,
                    waiters=len(waiting),
                    waiting=tuple(waiting[:MOST_WAITING]),
                    details={"token": token[:8]},
                )
            )
        return found


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

    def take(self, session: Any, claim: Claim, holder: str, place: int = NOWHERE) -> int | None:
        found = self.ask(session, self.TAKE, self.take_values(claim, holder, place))
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
        self.change(session, self.TAKE, self.take_values(claim, holder, place))
        return int(session.cursor.lastrowid) or None
