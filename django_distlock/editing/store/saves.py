"""What a save does to the rows, inside its transaction: lock them first, count the write last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock.storage.values import micros, shown

from . import statements
from .rows import alias_for, decode
from .statements import EDIT_LOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.editing.records import EditLease, Owner, Resource


def lock(resources: Sequence[Resource]) -> dict[str, EditLease]:
    """Lock the rows until the end of the transaction, in the order of their digests; make those that are missing.

    One statement where the database returns the rows of an INSERT, else two. Errors of the database are not translated:
    those of contention call for another attempt.
    """
    ordered = sorted(resources, key=lambda resource: resource.digest)
    by_digest = {resource.digest: resource for resource in ordered}
    connection = connections[alias_for(ordered[0])]
    text = statements.upsert_and_lock(connection, len(ordered))
    parameters = [part for resource in ordered for part in (resource.digest, resource.model, resource.pk)]
    returning = connection.features.can_return_rows_from_bulk_insert
    with connection.cursor() as cursor:
        if returning:
            text += EDIT_LOCKS.text_for(connection, f" RETURNING {statements.READ}")
        cursor.execute(text, parameters)
        if not returning:
            marks = ", ".join(["%s"] * len(ordered))
            select = f"{statements.SELECT} WHERE digest IN ({marks}) ORDER BY digest"
            ending = " FOR UPDATE" if connection.features.has_select_for_update else ""
            cursor.execute(EDIT_LOCKS.text_for(connection, select) + ending, list(by_digest))
        return {row[0]: decode(row, by_digest[row[0]]) for row in cursor.fetchall()}


def wrote(
    resources: Sequence[Resource],
    label: str,
    *,
    owner: Owner | None = None,
    lease: str = "",
    ttl: float = 0.0,
    reserve: bool = False,
    deleted: bool = False,
) -> None:
    """Count a write of the locked rows.

    With ``owner`` the lease stays with it, or becomes its lease: for ``ttl`` seconds, ``reserve`` for the next page of
    the tab alone. ``deleted`` ends the leases, because the objects are gone.
    """
    assignments = statements.COUNT
    parameters: dict[str, Any] = {"label": shown(label)}
    if deleted:
        assignments = f"writes = writes + 1, changed_at = {{now}}, changed_by = %(who)s, {statements.DROP}"
        parameters = {"who": shown(label), "reason": "deleted"}
    elif owner is not None:
        assignments = f"{statements.COUNT}, {statements.HOLD}"
        parameters |= {"principal": owner.principal, "tab": owner.tab, "lease": lease, "reason": "saved", "idle": 0}
        parameters |= {"ttl": micros(ttl), "reserved": statements.SAVED if reserve else 0}
    digests = sorted(resource.digest for resource in resources)
    names = {f"digest{number}": digest for number, digest in enumerate(digests)}
    marks = ", ".join(f"%({name})s" for name in names)
    connection = connections[alias_for(resources[0])]
    text = f"UPDATE {statements.TABLE} SET {assignments} WHERE digest IN ({marks})"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(EDIT_LOCKS.text_for(connection, text), {**parameters, **names})
