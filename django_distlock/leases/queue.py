"""Names that browsers lock, first come first served: the row decides, tickets order those that ask again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from django_distlock.storage.dialect import keeps_snapshot
from django_distlock.storage.statements import PAUSES, attempt, delete, marks, query, tries
from django_distlock.storage.values import exact, micros

from .records import NO_END, NO_QUOTA, Full, Head, Quota, Row, Waiting, claim_of, digest_of, holder_of, named
from .rows import FREE, HELD, HOLD, LIVE, READ, TABLE, decode, insert, update_and_read
from .rows import release as release_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .records import Resource

TICKETS = "django_distlock_browserticket"
# Added to the life of a ticket of two intervals: for the network, and for timers that are late.
GRACE = 1.0
# Dead tickets of a name that are cleared away by the next waiter: each of them slows the queue down.
MANY = 50

ALIVE = "alive_until > {now}"
# The live tickets before that of the caller: all of them if the caller has none.
AHEAD = f"""
FROM {TICKETS} t WHERE t.digest = %(digest)s AND t.{ALIVE} AND t.holder <> %(holder)s AND NOT EXISTS (
SELECT 1 FROM {TICKETS} m WHERE m.holder = %(holder)s AND m.digest = t.digest AND m.{ALIVE}
AND (m.arrived < t.arrived OR (m.arrived = t.arrived AND m.holder < t.holder)))
"""  # noqa: S608
PLACE = f"(SELECT COUNT(*) {AHEAD})"
DEAD = f"(SELECT COUNT(*) FROM {TICKETS} d WHERE d.digest = %(digest)s AND d.alive_until <= {{now}})"  # noqa: S608
# Are there tickets of this name, which are to be cleared away?
QUEUE = f"EXISTS (SELECT 1 FROM {TICKETS} q WHERE q.digest = %(digest)s)"  # noqa: S608
# What the principal has beside what it asks for. Leases are counted by their names: a client may use one id for many.
LEASES = f"""
SELECT COUNT(*) AS leases FROM {TABLE} o WHERE o.principal = %(principal)s AND o.digest <> %(digest)s
AND o.model = '' AND o.{HELD}
"""  # noqa: S608
PLACES = f"""
(SELECT COUNT(*) FROM {TICKETS} o WHERE o.principal = %(principal)s AND o.holder <> %(holder)s AND o.{ALIVE})
"""  # noqa: S608
# MySQL reads the table that it updates in a subquery of a subquery only.
ROOM = f"(SELECT leases FROM ({LEASES}) room) < %(most)s"  # noqa: S608
MAY_TAKE = f"({LIVE} OR ({FREE} AND NOT EXISTS (SELECT 1 {AHEAD})))"
# The clock of SQLite counts milliseconds; one transaction writes at a time, so that each ticket can be later than all.
ARRIVED_ON_SQLITE = f"max({{now}}, coalesce((SELECT max(arrived) + 1 FROM {TICKETS} WHERE digest = %(digest)s), 0))"  # noqa: S608


class Seen(NamedTuple):
    """A name as its caller finds it. ``leases`` and ``places`` are what the principal has beside it."""

    row: Row | None = None
    place: int = 0
    leases: int = 0
    places: int = 0


def acquire(
    alias: str,
    name: str,
    *,
    lease: str,
    principal: str,
    label: str,
    ttl: float,
    max_hold: float | None = None,
    queue: bool,
    interval: float | Callable[[int], float],
    quota: Quota = NO_QUOTA,
    again: bool = False,
) -> Row | Waiting | Full:
    """Take the name if it is free and no live ticket is ahead; one's own lease is prolonged, with its fence.

    Else, with ``queue``, keep or make a ticket, which lives for two intervals and a second: a waiter that asks later
    than that is at the end. ``interval`` is in seconds, or a function of the place (0: next) that returns them; the
    answer has the interval that counts. Choose another id ``lease`` for the next request. Full if the principal has as
    many other leases or places as ``quota`` allows.

    One statement for a name that is free (two on MySQL and MariaDB), three for a waiter; two for a waiter that asks
    ``again``, which looks first.
    """
    resource = named(alias, name)
    claim = claim_of(principal, label, lease, ttl, hold=NO_END if max_hold is None else max_hold, reason="released")
    parameters = claim | resource.columns() | {"holder": holder_of(lease, principal), "most": quota.leases}
    seen, crowded = _take_or_see(resource, parameters, quota, again)
    if isinstance(seen, Row):
        return seen
    if quota.refuses(seen.leases, seen.places if queue else 0):
        return Full()
    seconds = interval(seen.place) if callable(interval) else interval
    queued = queue and _keep_ticket(alias, parameters, seconds)
    holder = seen.row if seen.row is not None and seen.row.held else None
    return Waiting(
        holder=holder, place=seen.place, queued=queued, crowded=crowded or queued is not queue, interval=seconds
    )


def _take_or_see(resource: Resource, parameters: dict[str, Any], quota: Quota, again: bool) -> tuple[Row | Seen, bool]:
    """The lease; else what is seen, and True if the row should be free for the caller, and is kept busy."""
    seen, alias = Seen(), resource.database
    if quota.leases is not None and keeps_snapshot(connections[alias]):
        # the leases are counted by a query of its own: the UPDATE would wait for those that a view has locked
        again, parameters = True, {**parameters, "most": None}
    for _ in tries((0.0, *PAUSES[:-1])):  # whoever finds it busy asks again soon
        taken = None if again else _take(alias, parameters)
        if taken is not None:
            return taken, False
        seen = _look(alias, parameters)
        row = seen.row
        mine = row is not None and row.held and row.is_of(parameters["principal"], parameters["lease"])
        if row is None:
            insert(resource)
            continue
        if mine and not again:  # a request that the lock protects has locked the row
            return row, False
        if not mine and (seen.place or row.held or quota.refuses(seen.leases, 0)):
            return seen, False
        again = False  # it has changed hands between two statements, or another transaction has locked it
    return seen, True


def leave(alias: str, lease: str, *, principal: str) -> None:
    """Give up the waiting place. The lease, if there is one, stays."""
    forget(alias, "holder = %(holder)s", {"holder": holder_of(lease, principal)})


def release(alias: str, lease: str, *, principal: str, name: str | None = None) -> bool:
    """Give back the lease and the waiting place; calling again is harmless. False if the lease was not held.

    Two statements with the ``name``, else one more. False also if a protected view of the same tab keeps the row for
    more than a second: then the lease is left to expire.
    """
    leave(alias, lease, principal=principal)
    if name is None:
        text = f"SELECT name FROM {TABLE} WHERE principal = %s AND lease = %s AND model = '' ORDER BY digest"  # noqa: S608
        names = [found for (found,) in query(alias, text, [exact(principal), lease])]
    else:
        names = [name]
    freed = [release_row(named(alias, each), lease, principal=principal) for each in names]
    return any(freed)


def heads(alias: str, names: Iterable[str]) -> dict[str, Head]:
    """Who has each name, and who is next. One statement for all names."""
    digests = {digest_of(name): name for name in names}
    found = dict.fromkeys(digests.values(), Head("", None))
    if not digests:
        return found
    text = f"""
    SELECT digest, CASE WHEN {HELD} THEN lease ELSE '' END, principal,
    (SELECT t.holder FROM {TICKETS} t WHERE t.digest = {TABLE}.digest AND t.{ALIVE}
    ORDER BY t.arrived, t.holder LIMIT 1), previous, ended
    FROM {TABLE} WHERE digest IN ({marks(list(digests))})
    """  # noqa: S608
    for digest, lease, principal, *rest in query(alias, text, list(digests)):
        found[digests[digest]] = Head(holder_of(lease, principal) if lease else "", *rest)
    return found


def names_of(alias: str, principal: str, leases: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Those of the ids that are leases or live waiting places of the principal: their names, and if they are held."""
    holders = {holder_of(lease, principal): lease for lease in leases}
    if not holders:
        return {}
    keys = list(holders)
    text = f"""
    SELECT '', lease, name FROM {TABLE} WHERE principal = %s AND model = '' AND {HELD} UNION ALL
    SELECT t.holder, '', l.name FROM {TICKETS} t JOIN {TABLE} l ON l.digest = t.digest
    WHERE t.holder IN ({marks(keys)}) AND t.{ALIVE}
    """  # noqa: S608
    found = query(alias, text, [exact(principal), *keys])
    return {
        lease: (name, not holder)
        for holder, held, name in found
        if (lease := held or holders[holder]) in holders.values()
    }


def forget(alias: str, condition: str, parameters: dict[str, Any], batch: int = 1000) -> int:
    """Delete at most ``batch`` tickets; those that another transaction has locked stay. Returns their number."""
    return delete(alias, TICKETS, "holder", condition, parameters, batch)


def _take(alias: str, parameters: dict[str, Any]) -> Row | None:
    """The row, if it was there and the condition held; the ticket of the caller and dead ones are cleared away."""
    condition = MAY_TAKE if parameters["most"] is None else f"({LIVE} OR ({MAY_TAKE} AND {ROOM}))"
    found = update_and_read(alias, HOLD, condition, parameters, f"{READ}, {QUEUE}")
    if found is None:
        return None
    row = decode(found[:-1])
    if not row.is_of(parameters["principal"], parameters["lease"]):  # MySQL reads it by a second statement
        return None
    if found[-1]:
        forget(alias, "digest = %(digest)s AND (holder = %(holder)s OR alive_until <= {now})", parameters)
    return row


def _look(alias: str, parameters: dict[str, Any]) -> Seen:
    """The row, and the number of live tickets ahead. Many dead ones are cleared away."""
    columns = ", ".join((READ, PLACE, DEAD, f"({LEASES})", PLACES))
    found = query(alias, f"SELECT {columns} FROM {TABLE} WHERE digest = %(digest)s", parameters)  # noqa: S608
    if not found:
        return Seen()
    *values, place, dead, leases, places = found[0]
    if dead >= MANY:
        forget(alias, "digest = %(digest)s AND alive_until <= {now}", parameters)
    return Seen(decode(values), int(place), int(leases), int(places))


def _keep_ticket(alias: str, parameters: dict[str, Any], interval: float) -> bool:
    """Make a ticket, or prolong it. False if another transaction keeps it busy.

    One that is dead, or was for another name, comes to the end of the queue.
    """
    vendor = connections[alias].vendor
    if vendor == "mysql":
        there, new, clause = "", "VALUES({})", "ON DUPLICATE KEY UPDATE"
    else:
        there, new, clause = f"{TICKETS}.", "excluded.{}", "ON CONFLICT (holder) DO UPDATE SET"
    digest, arrived, until = (new.format(column) for column in ("digest", "arrived", "alive_until"))
    text = f"""
    INSERT INTO {TICKETS} (holder, digest, lease, principal, arrived, alive_until)
    VALUES (%(holder)s, %(digest)s, %(lease)s, %(principal)s,
        {ARRIVED_ON_SQLITE if vendor == "sqlite" else "{now}"}, {{now}} + %(life)s) {clause}
    arrived = CASE WHEN {there}digest = {digest} AND {there}alive_until > {{now}} THEN {there}arrived
        ELSE {arrived} END,
    digest = {digest}, alive_until = {until}
    """  # noqa: S608
    parameters = {**parameters, "life": micros(2 * interval + GRACE)}
    one = f"SELECT holder FROM {TICKETS} WHERE holder = %(holder)s"  # noqa: S608
    return any(attempt(alias, text, parameters, one) is not None for _ in tries(PAUSES))
