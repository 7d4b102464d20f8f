"""What the endpoints count, what the event stream watches, and what operators need."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from django.db import Error, connections

from django_distlock import BackendUnavailable
from django_distlock.browser.records import BrowserLease, Head, digest_of, holder_of
from django_distlock.storage import dialect
from django_distlock.storage.table import LOCKED, RELEASE_PAUSES
from django_distlock.storage.values import micros

from . import statements
from .queue import forget
from .rows import NameRow, change, marks
from .statements import BROWSER_LOCKS

if TYPE_CHECKING:
    from collections.abc import Iterable

HELD = "lease <> '' AND expires_at > {now}"
ALIVE = "alive_until > {now}"
NO_HEAD = Head("", None)


def held(alias: str, limit: int | None = None) -> list[BrowserLease]:
    """The leases that are held now in a database, the oldest first, at most ``limit``."""
    text = f"{statements.SELECT} WHERE {HELD} ORDER BY since, digest" + ("" if limit is None else f" LIMIT {limit:d}")
    return [NameRow(*row).as_lease() for row in BROWSER_LOCKS.fetch(connections[alias], text, [])]


def held_by(alias: str, principal: str) -> list[BrowserLease]:
    """The leases that the principal holds now, the oldest first."""
    text = f"{statements.SELECT} WHERE principal = %s AND {HELD} ORDER BY since, digest"
    rows = (NameRow(*row) for row in BROWSER_LOCKS.fetch(connections[alias], text, [principal]))
    return [row.as_lease() for row in rows if row.principal == principal]  # a database may fold case


def counts(alias: str, principal: str) -> tuple[int, int]:
    """How many leases the principal holds, and how many live waiting places it has. One statement."""
    text = (
        f"SELECT (SELECT COUNT(*) FROM {statements.TABLE} WHERE principal = %s AND {HELD}), "  # noqa: S608
        f"(SELECT COUNT(*) FROM {statements.TICKETS} WHERE principal = %s AND {ALIVE})"
    )
    ((leases, places),) = BROWSER_LOCKS.fetch(connections[alias], text, [principal, principal])
    return int(leases), int(places)


def names_of(alias: str, principal: str, leases: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Those of the ids that are leases or live waiting places of the principal: their names, and if they are held."""
    holders = {holder_of(lease, principal): lease for lease in leases}
    if not holders:
        return {}
    some = marks(list(holders))
    text = f"""
    SELECT l.holder, l.name, 1 FROM {statements.TABLE} l WHERE l.holder IN ({some}) AND l.{HELD} UNION ALL
    SELECT t.holder, l.name, 0 FROM {statements.TICKETS} t JOIN {statements.TABLE} l ON l.digest = t.digest
    WHERE t.holder IN ({some}) AND t.{ALIVE}
    """  # noqa: S608
    found = BROWSER_LOCKS.fetch(connections[alias], text, [*holders, *holders])
    return {holders[holder]: (name, bool(is_held)) for holder, name, is_held in found}


def heads(alias: str, names: Iterable[str]) -> dict[str, Head]:
    """Who has each name, and who is next. One statement for all names."""
    digests = {digest_of(name): name for name in names}
    found = dict.fromkeys(digests.values(), NO_HEAD)
    if not digests:
        return found
    text = f"""
    SELECT digest, CASE WHEN {HELD} THEN holder ELSE '' END, (SELECT t.holder FROM {statements.TICKETS} t
    WHERE t.digest = {statements.TABLE}.digest AND t.{ALIVE} ORDER BY t.arrived, t.holder LIMIT 1), previous, ended
    FROM {statements.TABLE} WHERE digest IN ({marks(list(digests))})
    """  # noqa: S608
    for digest, *head in BROWSER_LOCKS.fetch(connections[alias], text, list(digests)):
        found[digests[digest]] = Head(*head)
    return found


def break_lease(alias: str, name: str, fence: int) -> BrowserLease | None:
    """End the lease of a name if it still has this fence; its holder learns of it at the next renewal.

    Returns the lease; None if it has ended or changed hands. BackendUnavailable if a request under the lease keeps the
    row for more than a second.
    """
    connection = connections[alias]
    parameters: dict[str, Any] = {"digest": digest_of(name), "fence": fence, "reason": "broken"}
    condition = f"digest = %(digest)s AND fence = %(fence)s AND {HELD}"
    before = BROWSER_LOCKS.fetch(connection, f"{statements.SELECT} WHERE {condition}", parameters)
    if not before:
        return None
    ended = change(connection, statements.DROP, condition, parameters, RELEASE_PAUSES)
    if ended is LOCKED:
        raise BackendUnavailable(f"A request under the browser lock {name!r} is in progress: try again.")
    return NameRow(*before[0]).as_lease() if ended else None


def sweep(alias: str, older_than: float, batch: int = 1000, batches: float = math.inf) -> int:
    """Delete the rows of names that were not held in the last ``older_than`` seconds, and dead tickets.

    Returns their number. A row whose name is made again has a higher fence than ever before. A queue keeps its row.
    """
    deleted = done = 0
    found = batch
    while found == batch and done < batches:
        found, gone = _sweep_rows(alias, older_than, batch)
        deleted, done = deleted + gone, done + 1
    gone = batch
    while gone >= batch and done < batches:
        gone = forget(connections[alias], "alive_until <= {now} - %(age)s", {"age": micros(older_than)}, batch)
        deleted, done = deleted + gone, done + 1
    return deleted


def _sweep_rows(alias: str, older_than: float, batch: int) -> tuple[int, int]:
    """Delete one batch. Returns how many rows were found and how many of them were deleted."""
    connection = connections[alias]
    waiting = f"SELECT 1 FROM {statements.TICKETS} t WHERE t.digest = {statements.TABLE}.digest AND t.{ALIVE}"  # noqa: S608
    over = f"expires_at <= {{now}} - %s AND fence < {{now}} AND NOT EXISTS ({waiting})"
    text = f"SELECT digest FROM {statements.TABLE} WHERE {over} ORDER BY expires_at LIMIT {batch:d}"  # noqa: S608
    age = micros(older_than)
    digests = sorted(digest for (digest,) in BROWSER_LOCKS.fetch(connection, text, [age]))
    if not digests:
        return 0, 0
    delete = f"DELETE FROM {statements.TABLE} WHERE digest IN ({marks(digests)}) AND {over}"  # noqa: S608
    try:
        with connection.cursor() as cursor:
            cursor.execute(dialect.nowait(connection) + BROWSER_LOCKS.text_for(connection, delete), [*digests, age])
            return len(digests), int(cursor.rowcount)
    except Error as error:
        if dialect.contended(error):  # one of them is being acquired: the next sweep comes
            return 0, 0
        raise BROWSER_LOCKS.unavailable() from error
