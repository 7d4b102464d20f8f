"""What operators and pages with lists need: every held row, ending a lease, sweeping old rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from django.db import Error, connections

from django_distlock import BackendUnavailable
from django_distlock.editing.records import EditLease, Resource
from django_distlock.editing.signals import edit_broken
from django_distlock.schema import schema_of
from django_distlock.storage.dialect import contended, nowait
from django_distlock.storage.table import LOCKED, RELEASE_PAUSES
from django_distlock.storage.values import micros

from . import statements
from .rows import decode, read, update_row
from .statements import EDIT_LOCKS

if TYPE_CHECKING:
    from collections.abc import Iterable

HELD = "lease <> '' AND expires_at > {now}"


def held(alias: str, model: str | None = None, limit: int | None = None) -> list[EditLease]:
    """The leases that are held now in a database, the oldest first; of one model, at most ``limit``.

    Those of other tenants, whose schemas no connection of this thread works in, are left out.
    """
    text = f"{statements.SELECT} WHERE {HELD}"
    parameters: list[Any] = []
    if model is not None:
        text, parameters = f"{text} AND model = %s", [model]
    schemas = {schema_of(each) for each in connections}
    text += " ORDER BY since, digest" + ("" if limit is None or schemas != {""} else f" LIMIT {limit:d}")
    rows = EDIT_LOCKS.fetch(connections[alias], text, parameters)
    named = [(row, Resource(alias, row[1], row[2], schema=schema)) for row in rows for schema in schemas]
    return [decode(row, resource) for row, resource in named if resource.digest == row[0]][:limit]


def held_by(principal: str, alias: str, digests: Iterable[str] = ()) -> int:
    """How many objects the principal holds in a database, those in ``digests`` not counted."""
    others = list(digests)
    text = f"SELECT COUNT(*) FROM {statements.TABLE} WHERE principal = %s AND {HELD}"  # noqa: S608
    if others:
        text += f" AND digest NOT IN ({', '.join(['%s'] * len(others))})"
    rows = EDIT_LOCKS.fetch(connections[alias], text, [principal, *others])
    return int(rows[0][0])


def break_lease(resource: Resource, reason: str = "") -> EditLease | None:
    """End the lease of an object; its holder learns of it at the next beat. Returns the lease; None for a free object.

    BackendUnavailable if a save keeps the row for more than a second.
    """
    before = read([resource]).get(resource.digest)
    if before is None or not before.held:
        return None
    parameters = {"digest": resource.digest, "lease": before.lease, "principal": "", "reason": "broken"}
    ended = update_row(resource, statements.DROP, statements.MINE, parameters, RELEASE_PAUSES)
    if ended is LOCKED:
        raise BackendUnavailable(f"{resource.model} {resource.pk} is being saved: try again.")
    if ended is None:  # released, or taken over
        return None
    edit_broken.send_robust(sender=EditLease, resource=resource, before=before, reason=reason)
    return before


def sweep(alias: str, older_than: float, batch: int = 1000, batches: float = math.inf) -> int:
    """Delete rows without a lease or a write in the last ``older_than`` seconds. Returns their number.

    ``older_than`` has to be at least the lifetime of a rendered form.
    """
    deleted = done = 0
    found = batch
    while found == batch and done < batches:
        found, gone = _sweep_batch(alias, older_than, batch)
        deleted, done = deleted + gone, done + 1
    return deleted


def _sweep_batch(alias: str, older_than: float, batch: int) -> tuple[int, int]:
    """Delete one batch. Returns how many rows were found and how many of them were deleted."""
    # a form that was rendered before the last write has to be refused for as long as it may come back
    over = "expires_at <= {now} - %s AND changed_at <= {now} - %s"
    age = [micros(older_than)] * 2
    text = f"SELECT digest FROM {statements.TABLE} WHERE {over} ORDER BY expires_at LIMIT {batch:d}"  # noqa: S608
    digests = [digest for (digest,) in EDIT_LOCKS.fetch(connections[alias], text, age)]
    if not digests:
        return 0, 0
    marks = ", ".join(["%s"] * len(digests))
    delete = f"DELETE FROM {statements.TABLE} WHERE digest IN ({marks}) AND {over}"  # noqa: S608
    text = nowait(connections[alias]) + delete
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(EDIT_LOCKS.text_for(connections[alias], text), [*sorted(digests), *age])
            return len(digests), int(cursor.rowcount)
    except Error as error:
        if contended(error):  # a save has one of them: the next sweep comes
            return 0, 0
        raise EDIT_LOCKS.unavailable() from error
