"""What operators and pages with lists need: every held row, ending a lease, sweeping old rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from django_distlock import BackendUnavailable
from django_distlock.storage.statements import delete, query
from django_distlock.storage.values import exact, micros

from .queue import ALIVE, TICKETS, forget
from .rows import DROP, HELD, READ, TABLE, change, decode, read_one

if TYPE_CHECKING:
    from .records import Resource, Row


def held(
    alias: str,
    *,
    of_objects: bool,
    model: str | None = None,
    principal: str | None = None,
    limit: int | None = None,
) -> list[Row]:
    """The rows of objects or of names that are held now, the oldest first.

    Of one model or one principal, at most ``limit``. BackendUnavailable if the database does not answer.
    """
    text = f"SELECT {READ} FROM {TABLE} WHERE {HELD} AND model {'<>' if of_objects else '='} ''"  # noqa: S608
    parameters: list[Any] = []
    if model is not None:
        text, parameters = f"{text} AND model = %s", [*parameters, model]
    if principal is not None:
        text, parameters = f"{text} AND principal = %s", [*parameters, exact(principal)]
    text += " ORDER BY since, digest" + ("" if limit is None else f" LIMIT {limit:d}")
    return [decode(row) for row in query(alias, text, parameters)]


def break_lease(resource: Resource, fence: int | None = None) -> Row | None:
    """End the lease of a row, if it still has this fence; its holder learns of it at the next beat.

    Returns the row as it was; None if the lease has ended or changed hands. BackendUnavailable if a save, or a request
    under the lease, keeps the row for more than a second.
    """
    before = read_one(resource)
    if before is None or not before.held or fence not in (None, before.fence):
        return None
    parameters = {"digest": resource.digest, "fence": before.fence, "reason": "broken"}
    condition = f"fence = %(fence)s AND {HELD}"
    ended = change(resource, DROP, condition, parameters, lambda row: row.held and row.fence == before.fence)
    if ended is None:
        raise BackendUnavailable(f"{before.model} {before.name}".strip() + ": a request is in progress, try again.")
    return before if ended else None


def sweep(alias: str, older_than: float, *, of_objects: bool, batch: int = 1000, batches: float = math.inf) -> int:
    """Delete the rows of objects, or of names, without a lease or a write in the last ``older_than`` seconds.

    Of names also dead tickets. Returns the number of both. For objects ``older_than`` has to be at least the lifetime
    of a rendered form: one from before the last write has to be refused for as long as it may come back. A row with a
    fence ahead of the clock stays: the next row would begin below it. A queue keeps its row.
    """
    waiting = f"SELECT 1 FROM {TICKETS} t WHERE t.digest = {TABLE}.digest AND t.{ALIVE}"  # noqa: S608
    over = f"""
    model {"<>" if of_objects else "="} '' AND expires_at <= {{now}} - %(age)s AND changed_at <= {{now}} - %(age)s
    AND fence < {{now}} AND NOT EXISTS ({waiting})
    """
    age = {"age": micros(older_than)}
    deleted, done, gone = 0, 0, batch
    while gone >= batch and done < batches:
        gone = delete(alias, TABLE, "digest", over, age, batch)
        deleted, done = deleted + gone, done + 1
    gone = 0 if of_objects else batch
    while gone >= batch and done < batches:
        gone = forget(alias, "alive_until <= {now} - %(age)s", age, batch)
        deleted, done = deleted + gone, done + 1
    return deleted
