"""Acquire, first come first served: the row decides in one statement, tickets order those that ask again."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connections

from django_distlock.browser.records import NO_QUOTA, BrowserLease, Full, Quota, Waiting, digest_of, holder_of
from django_distlock.storage import dialect
from django_distlock.storage.table import LOCKED
from django_distlock.storage.values import LONGEST_PRINCIPAL, check_id, micros, shown

from . import statements
from .rows import NameRow, attempted, marks
from .statements import BROWSER_LOCKS, BROWSER_TICKETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.backends.base.base import BaseDatabaseWrapper

# Seconds before the next attempt at a row that should be free for this caller: it changed hands between two statements,
# or another transaction has locked it.
PAUSES = (0.0, 0.002, 0.005, 0.01)
# Added to the life of a ticket of two intervals: for the network, and for timers that are late.
GRACE = 1.0
# Dead tickets of a name that are cleared away by the next waiter: each of them slows the queue down.
MANY = 50
# A lease without MAX_HOLD ends after a hundred years.
NO_END = 100 * 366 * 86400.0


class QueueView(NamedTuple):
    """What a caller that cannot take the name finds. ``leases`` and ``places`` are what its principal has beside it."""

    row: NameRow | None
    place: int
    leases: int
    places: int
    crowded: bool = False


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
) -> BrowserLease | Waiting | Full:
    """Take the name if it is free and no live ticket is ahead; one's own lease is prolonged, with its fence.

    Else, with ``queue``, keep or make a ticket, which lives for two intervals and a second: a waiter that asks later
    than that is at the end. ``interval`` is in seconds, or a function of the place (0: next) that returns them; the
    answer has the interval that counts. Choose another id ``lease`` for the next request. Full if the principal has as
    many other leases or places as ``quota`` allows.

    One statement for a name that is free (two on MySQL and MariaDB), three for a name that was never locked and for a
    waiter; two for a waiter that asks ``again``, which looks first.
    """
    if not 0 < len(principal) <= LONGEST_PRINCIPAL:
        raise ValueError(f"principal must have 1 to {LONGEST_PRINCIPAL} characters.")
    hold = NO_END if max_hold is None else max_hold
    parameters = {
        "digest": digest_of(name),
        "name": name,
        "lease": check_id("lease", lease),
        "holder": holder_of(lease, principal),
        "principal": principal,
        "label": shown(label),
        "ttl": micros(ttl),
        "hold": micros(hold),
        "first": micros(min(ttl, hold)),
        "reason": "released",
    }
    connection = connections[alias]
    found = _tried(connection, parameters, quota, again)
    if not isinstance(found, QueueView):
        return found
    if quota.refuses(found.leases, found.places if queue else 0):
        return Full()
    seconds = interval(found.place) if callable(interval) else interval
    queued = queue and _keep_ticket(connection, parameters, seconds)
    holder = found.row.as_lease() if found.row is not None and found.row.held else None
    crowded = found.crowded or queued is not queue
    return Waiting(holder=holder, place=found.place, queued=queued, crowded=crowded, interval=seconds)


def _tried(
    connection: BaseDatabaseWrapper, parameters: dict[str, Any], quota: Quota, again: bool
) -> BrowserLease | Full | QueueView:
    """Take the name; else what is seen. A row that should be free for the caller is tried again."""
    seen = QueueView(None, 0, 0, 0)
    for pause in (*PAUSES, None):
        taken = None if again else _take(connection, parameters, quota)
        if taken is not None:
            return taken
        seen = _look(connection, parameters)
        row = seen.row
        mine = row is not None and row.held and row.holder == parameters["holder"]
        if row is None:
            if (made := _make(connection, parameters, quota)) is not None:
                return made
        elif mine and not again:  # a request that the lock protects has locked the row
            return row.as_lease()
        elif not mine and (seen.place or row.held):
            return seen
        if pause is not None and not again:
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - not a secret
        again = False
    return seen._replace(crowded=True)


def leave(alias: str, lease: str, *, principal: str) -> None:
    """Give up the waiting place. The lease, if there is one, stays."""
    forget(connections[alias], "holder = %(holder)s", {"holder": holder_of(lease, principal)})


def _take(connection: BaseDatabaseWrapper, parameters: dict[str, Any], quota: Quota) -> BrowserLease | Full | None:
    """The lease, if the row was there and the condition held; its ticket and dead ones are cleared away."""
    returning = f"{statements.READ}, {statements.QUEUE}, {statements.LEASES}"
    condition = f"digest = %(digest)s AND {statements.MAY_TAKE}"
    text = statements.update(connection, statements.HOLD, condition, returning)
    found = attempted(connection, text, parameters, [parameters["digest"]])
    if found is not LOCKED and not dialect.returns_updated(connection) and found:
        select = f"SELECT {returning} FROM {statements.TABLE} WHERE digest = %(digest)s"  # noqa: S608
        found = BROWSER_LOCKS.fetch(connection, select, parameters)
    if found is LOCKED or not found:
        return None
    *columns, queue, leases = found[0]
    row = NameRow(*columns)
    if row.holder != parameters["holder"]:  # MySQL reads it by a second statement; another may have it by then
        return None
    if queue:
        _clear(connection, parameters)
    return _within(connection, parameters, quota, row, leases)


def _within(
    connection: BaseDatabaseWrapper, parameters: dict[str, Any], quota: Quota, row: NameRow, leases: int
) -> BrowserLease | Full:
    """The lease, if the principal may have one more; else it is given back at once.

    The count comes with the row: a statement before it would cost each acquire more.
    """
    if not quota.refuses(leases, 0):
        return row.as_lease()
    condition = f"digest = %(digest)s AND {statements.HOLDER}"
    attempted(connection, statements.update(connection, statements.DROP, condition), parameters, [row.digest])
    return Full()


def _make(connection: BaseDatabaseWrapper, parameters: dict[str, Any], quota: Quota) -> BrowserLease | Full | None:
    """The lease in a new row; None if another caller has made the row."""
    made = attempted(connection, statements.insert(connection), parameters, [parameters["digest"]])
    if made is LOCKED or not made:
        return None
    seen = _look(connection, parameters)
    if seen.row is None or seen.row.holder != parameters["holder"]:
        return None
    return _within(connection, parameters, quota, seen.row, seen.leases)


def _look(connection: BaseDatabaseWrapper, parameters: dict[str, Any]) -> QueueView:
    """The row, and the number of live tickets ahead. Many dead ones are cleared away."""
    columns = ", ".join((statements.READ, statements.PLACE, statements.DEAD, statements.LEASES, statements.PLACES))
    text = f"SELECT {columns} FROM {statements.TABLE} WHERE digest = %(digest)s"  # noqa: S608
    found = BROWSER_LOCKS.fetch(connection, text, parameters)
    if not found:
        return QueueView(None, 0, 0, 0)
    *values, place, dead, leases, places = found[0]
    if dead >= MANY:
        forget(connection, "digest = %(digest)s AND alive_until <= {now}", parameters)
    return QueueView(NameRow(*values), int(place), int(leases), int(places))


def _keep_ticket(connection: BaseDatabaseWrapper, parameters: dict[str, Any], interval: float) -> bool:
    """Make a ticket, or prolong it. False if another transaction keeps it busy."""
    life = {"life": micros(2 * interval + GRACE)}

    def attempt() -> bool:
        BROWSER_TICKETS.fail_if_locked(connection, parameters["holder"])
        with connection.cursor() as cursor:
            cursor.execute(statements.keep_ticket(connection), {**parameters, **life})
        return True

    return BROWSER_TICKETS.patiently(connection, attempt) is not LOCKED


def _clear(connection: BaseDatabaseWrapper, parameters: dict[str, Any]) -> None:
    """Delete the ticket of the caller, and dead ones of the same name."""
    forget(connection, "digest = %(digest)s AND (holder = %(holder)s OR alive_until <= {now})", parameters)


def forget(connection: BaseDatabaseWrapper, condition: str, parameters: dict[str, Any], batch: int = 1000) -> int:
    """Delete at most ``batch`` tickets; those that another transaction has locked stay. Returns their number."""
    table = statements.TICKETS
    chosen = f"SELECT holder FROM {table} WHERE {condition} LIMIT {batch:d}"  # noqa: S608

    def attempt() -> int:
        with connection.cursor() as cursor:
            if connection.vendor == "mysql":  # a DELETE that searches an index locks more than it deletes
                cursor.execute(BROWSER_TICKETS.text_for(connection, chosen), parameters)
                keys = sorted(key for (key,) in cursor.fetchall())
                if not keys:
                    return 0
                text = f"DELETE FROM {table} WHERE holder IN ({marks(keys)})"  # noqa: S608
                cursor.execute(dialect.nowait(connection) + text, keys)
            else:
                skip = " FOR UPDATE SKIP LOCKED" if connection.vendor == "postgresql" else ""
                text = f"DELETE FROM {table} WHERE holder IN ({chosen}{skip})"  # noqa: S608
                cursor.execute(BROWSER_TICKETS.text_for(connection, text), parameters)
            return int(cursor.rowcount)

    gone = BROWSER_TICKETS.patiently(connection, attempt, PAUSES)
    return gone if isinstance(gone, int) else 0
