"""The SQL of browser locks, for PostgreSQL, MySQL, MariaDB and SQLite.

The row of a name decides alone: whether it is free, whose it is, and whether a waiter is ahead is asked in the UPDATE
itself. Tickets only order. Parameters are named; ``{now}`` is the present time of the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock.storage import dialect
from django_distlock.storage.table import LeaseTable

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

TABLE = "django_distlock_browserlock"
TICKETS = "django_distlock_browserticket"
BROWSER_LOCKS = LeaseTable(TABLE, "browser locks")
BROWSER_TICKETS = LeaseTable(TICKETS, "waiting places for browser locks", key="holder")

COLUMNS = "digest, name, lease, holder, principal, label, fence, since, expires_at, ends_at, previous, ended"
READ = f"{COLUMNS}, {{now}}"
SELECT = f"SELECT {READ} FROM {TABLE}"  # noqa: S608

FREE = "(lease = '' OR expires_at <= {now})"
HOLDER = "(holder = %(holder)s AND lease <> '')"
MINE = f"({HOLDER} AND expires_at > {{now}})"
# The live tickets before that of the caller: all of them if the caller has none.
AHEAD = f"""
FROM {TICKETS} t WHERE t.digest = %(digest)s AND t.alive_until > {{now}} AND t.holder <> %(holder)s AND NOT EXISTS (
SELECT 1 FROM {TICKETS} m WHERE m.holder = %(holder)s AND m.digest = t.digest AND m.alive_until > {{now}}
AND (m.arrived < t.arrived OR (m.arrived = t.arrived AND m.holder < t.holder)))
"""  # noqa: S608
MAY_TAKE = f"({MINE} OR ({FREE} AND NOT EXISTS (SELECT 1 {AHEAD})))"
PLACE = f"(SELECT COUNT(*) {AHEAD})"
DEAD = f"(SELECT COUNT(*) FROM {TICKETS} d WHERE d.digest = %(digest)s AND d.alive_until <= {{now}})"  # noqa: S608
# Are there tickets of this name, which are to be cleared away?
QUEUE = f"EXISTS (SELECT 1 FROM {TICKETS} q WHERE q.digest = %(digest)s)"  # noqa: S608
# What the principal has beside what it asks for. Leases are counted by their names: a client may use one id for many.
LEASES = f"""
(SELECT COUNT(*) FROM {TABLE} o WHERE o.principal = %(principal)s AND o.digest <> %(digest)s AND o.lease <> ''
AND o.expires_at > {{now}})
"""  # noqa: S608
PLACES = f"""
(SELECT COUNT(*) FROM {TICKETS} o WHERE o.principal = %(principal)s AND o.holder <> %(holder)s
AND o.alive_until > {{now}})
"""  # noqa: S608
# MySQL assigns from left to right: what is compared comes last. An end by the clock and an end by MAX_HOLD differ in
# what the former holder is told.
HOLD = f"""
previous = CASE WHEN lease = '' OR {MINE} THEN previous ELSE lease END,
ended = CASE WHEN lease = '' OR {MINE} THEN ended WHEN expires_at >= ends_at THEN 'max_hold' ELSE 'expired' END,
fence = CASE WHEN {MINE} THEN fence ELSE fence + 1 END,
since = CASE WHEN {MINE} THEN since ELSE {{now}} END,
ends_at = CASE WHEN {MINE} THEN ends_at ELSE {{now}} + %(hold)s END,
expires_at = CASE
    WHEN {MINE} AND ends_at < {{now}} + %(ttl)s THEN ends_at WHEN {MINE} THEN {{now}} + %(ttl)s
    ELSE {{now}} + %(first)s END,
principal = %(principal)s, label = %(label)s, holder = %(holder)s, lease = %(lease)s
"""
RENEW = """
expires_at = CASE WHEN ends_at < {now} + %(ttl)s THEN ends_at ELSE {now} + %(ttl)s END
"""
# The names go with a lease that was given back.
DROP = """
previous = lease, ended = %(reason)s, principal = '', label = '', holder = '', expires_at = {now}, lease = ''
"""
NEW_ROW = (
    "%(digest)s, %(name)s, %(lease)s, %(holder)s, %(principal)s, %(label)s, {now}, {now}, {now} + %(first)s, "
    "{now} + %(hold)s, '', ''"
)
TICKET = "%(holder)s, %(digest)s, %(lease)s, %(principal)s, {arrived}, {now} + %(life)s"
# The clock of SQLite counts milliseconds; one transaction writes at a time, so that each ticket can be later than all.
ARRIVED_ON_SQLITE = f"max({{now}}, coalesce((SELECT max(arrived) + 1 FROM {TICKETS} WHERE digest = %(digest)s), 0))"  # noqa: S608
TICKET_COLUMNS = "holder, digest, lease, principal, arrived, alive_until"


def update(connection: BaseDatabaseWrapper, assignments: str, condition: str, returning: str = READ) -> str:
    """An UPDATE of the rows with ``condition`` that does not wait for a lock, where one statement can do so.

    The condition holds for the row as it is when it is locked. A row that another transaction has locked is left out on
    PostgreSQL; MariaDB reports an error, see :func:`dialect.nowait`.
    """
    if connection.vendor == "postgresql":
        found = f"SELECT digest FROM {TABLE} WHERE {condition} FOR UPDATE SKIP LOCKED"  # noqa: S608
        text = f"UPDATE {TABLE} SET {assignments} WHERE digest = ANY(ARRAY({found}))"  # noqa: S608
    else:
        text = f"UPDATE {TABLE} SET {assignments} WHERE {condition}"  # noqa: S608
    if dialect.returns_updated(connection):
        text += f" RETURNING {returning}"
    return dialect.nowait(connection) + BROWSER_LOCKS.text_for(connection, text)


def insert(connection: BaseDatabaseWrapper) -> str:
    """An INSERT of a held row, unless the row exists."""
    text = dialect.insert(connection, TABLE, COLUMNS, NEW_ROW)
    return dialect.nowait(connection) + BROWSER_LOCKS.text_for(connection, text)


def keep_ticket(connection: BaseDatabaseWrapper) -> str:
    """Make a ticket, or prolong it. One that is dead, or was for another name, comes to the end of the queue."""
    if connection.vendor == "mysql":
        there, new, clause = "", "VALUES({})", "ON DUPLICATE KEY UPDATE"
    else:
        there, new, clause = f"{TICKETS}.", "excluded.{}", "ON CONFLICT (holder) DO UPDATE SET"
    digest, arrived, until = (new.format(column) for column in ("digest", "arrived", "alive_until"))
    ticket = TICKET.replace("{arrived}", ARRIVED_ON_SQLITE if connection.vendor == "sqlite" else "{now}")
    text = f"""
    INSERT INTO {TICKETS} ({TICKET_COLUMNS}) VALUES ({ticket}) {clause}
    arrived = CASE WHEN {there}digest = {digest} AND {there}alive_until > {{now}} THEN {there}arrived
        ELSE {arrived} END,
    digest = {digest}, alive_until = {until}
    """  # noqa: S608
    return dialect.nowait(connection) + BROWSER_TICKETS.text_for(connection, text)
