"""Claim, adopt, renew, take over, release and read. Each is safe to repeat: clients choose the ids of their leases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db import connections

from django_distlock.editing.conf import config
from django_distlock.editing.records import Busy, EditLease, Lost, Owner, Resource
from django_distlock.editing.signals import edit_taken_over
from django_distlock.storage import dialect
from django_distlock.storage.table import LOCKED, PAUSES, RELEASE_PAUSES
from django_distlock.storage.values import check_id, micros, moment, shown

from . import statements
from .statements import EDIT_LOCKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

# Attempts at a row that changes hands between two statements.
ATTEMPTS = 5


def alias_for(resource: Resource) -> str:
    """The database that holds the row: that of the object, unless ``DATABASE`` names another."""
    return config().database or resource.database


def claim(resource: Resource, owner: Owner, lease: str, ttl: float, *, idle: float = 0.0) -> EditLease | Busy:
    """Take the row if it is free, or held by the same principal in another tab, which then loses it.

    A lease id is good for one holding: choose another one for the next claim.
    """
    return _take(resource, owner, lease, ttl, statements.CLAIM, "other_tab", idle=idle)


def adopt(
    resource: Resource, owner: Owner, lease: str, previous: str, ttl: float, *, idle: float = 0.0
) -> EditLease | Busy:
    """Take the row if the same principal holds it by the lease ``previous``, or if it is free.

    The id of the lease changes, so that a late release of the previous page does not free it.
    """
    return _take(resource, owner, lease, ttl, statements.ADOPT, "other_tab", idle=idle, former=previous or lease)


def takeover(resource: Resource, owner: Owner, lease: str, ttl: float, reason: str) -> EditLease | Busy:
    """Take the row from another principal. Permission and audit are the caller's. Busy only while a save runs."""
    before = read([resource]).get(resource.digest)
    found = _take(resource, owner, lease, ttl, statements.TAKEOVER, "taken_over")
    if isinstance(found, EditLease):
        edit_taken_over.send_robust(
            sender=EditLease, resource=resource, owner=owner, before=before, lease=found, reason=reason
        )
    return found


def renew(resource: Resource, lease: str, ttl: float, *, principal: str = "", idle: float = 0.0) -> EditLease | Lost:
    """Prolong the lease; also after it has expired, until another claim takes the row. Never takes it from a holder.

    A lease that was given back is not renewed, nor is one that is reserved after its page was left (adopt it). While a
    save has locked the row the lease is returned as it is, with ``saving``.
    """
    parameters = _parameters(resource, lease=lease, principal=principal, ttl=micros(ttl), idle=micros(idle))
    text = f"{statements.MINE} AND reserved <> {statements.LEFT}"
    found = update_row(resource, statements.RENEW, text, parameters)
    if isinstance(found, EditLease) and found.lease == lease:
        return found
    row = read([resource]).get(resource.digest)
    if row is not None and row.lease == lease and not row.reserved and found is LOCKED:
        return replace(row, saving=True)
    return Lost(reason=_why(row, lease), by=_by(row), row=row)


def release(
    resource: Resource, lease: str, reserve: float = 0.0, *, principal: str = "", wrote_by: str | None = None
) -> bool:
    """Free the row, or keep it for at most ``reserve`` seconds so that the next page of the same tab can adopt it.

    ``wrote_by`` counts a write by this label in the same statement. False if the lease is unknown, which changes
    nothing, or if a save lasts longer than a second: then the row is left to expire.
    """
    parameters = _parameters(
        resource,
        lease=lease,
        principal=principal,
        ttl=micros(reserve),
        reason="released",
        reserved=statements.LEFT,
        label=shown(wrote_by or ""),
    )
    assignments = statements.RESERVE if reserve else statements.DROP
    if wrote_by is not None:
        assignments = f"{statements.COUNT}, {assignments}"
    return isinstance(update_row(resource, assignments, statements.MINE, parameters, RELEASE_PAUSES), EditLease)


def count_write(resource: Resource, label: str) -> bool:
    """Count a write outside a save. False if there is no row, or a save keeps it for more than a second."""
    parameters = _parameters(resource, label=shown(label))
    return isinstance(update_row(resource, statements.COUNT, "1 = 1", parameters, RELEASE_PAUSES), EditLease)


def read(resources: Iterable[Resource]) -> dict[str, EditLease]:
    """The rows by digest, without a lock: one SELECT for each database."""
    groups: dict[str, dict[str, Resource]] = {}
    for resource in resources:
        groups.setdefault(alias_for(resource), {})[resource.digest] = resource
    found: dict[str, EditLease] = {}
    for alias, members in groups.items():
        marks = ", ".join(["%s"] * len(members))
        rows = EDIT_LOCKS.fetch(connections[alias], f"{statements.SELECT} WHERE digest IN ({marks})", list(members))
        found.update({row[0]: decode(row, members[row[0]]) for row in rows})
    return found


def _take(
    resource: Resource, owner: Owner, lease: str, ttl: float, condition: str, reason: str, **more: Any
) -> EditLease | Busy:
    parameters = _parameters(
        resource,
        **{"lease": check_id("lease", lease), "reason": reason, "idle": 0, "reserved": 0, "former": "", **more},
    )
    parameters |= {"principal": owner.principal, "tab": owner.tab, "label": shown(owner.label), "ttl": micros(ttl)}
    parameters["idle"] = micros(parameters["idle"])
    connection = connections[alias_for(resource)]
    for _ in range(ATTEMPTS):
        found = update_row(resource, statements.HOLD, condition, parameters)
        row = found if isinstance(found, EditLease) else read([resource]).get(resource.digest)
        if found is None and row is None:
            found = EDIT_LOCKS.patiently(connection, lambda: _insert(resource, parameters), PAUSES[:1])
            row = found if isinstance(found, EditLease) else None
        if found is not LOCKED and row is not None and row.held and row.is_of(owner.principal, lease):
            return row
        # between two statements another claim may have come or gone: what is free now, or one's own, is asked for again
        if found is LOCKED or (row is not None and not _may_take(row, condition, parameters)):
            break
    own = row is not None and row.owner is not None and row.owner.principal == owner.principal
    busy = found is LOCKED or row is None or _may_take(row, condition, parameters)
    return Busy(holder=row, own=own, saving=busy)


def _may_take(row: EditLease, condition: str, parameters: dict[str, Any]) -> bool:
    """Does the row, as it was read, fulfil the condition of the verb?"""
    if not row.held or row.owner is None or condition == statements.TAKEOVER:
        return True
    own = row.owner.principal == parameters["principal"]
    return own and (condition == statements.CLAIM or row.lease in (parameters["lease"], parameters["former"]))


def update_row(
    resource: Resource,
    assignments: str,
    condition: str,
    parameters: dict[str, Any],
    pauses: Sequence[float] = PAUSES,
) -> EditLease | object | None:
    """The row after the update; None if the condition does not hold, LOCKED if another transaction keeps the row."""
    connection = connections[alias_for(resource)]

    def attempt() -> EditLease | object | None:
        EDIT_LOCKS.fail_if_locked(connection, resource.digest)
        text = dialect.nowait(connection) + statements.update(connection, assignments, condition)
        with connection.cursor() as cursor:
            cursor.execute(text, parameters)
            if not dialect.returns_updated(connection):
                return _read_one(connection, resource) if cursor.rowcount else None
            rows = cursor.fetchall()  # all of them: on SQLite the statement ends with the last one
        if rows:
            return decode(rows[0], resource)
        return LOCKED if connection.vendor == "postgresql" and _holds(connection, condition, parameters) else None

    return EDIT_LOCKS.patiently(connection, attempt, pauses)


def _insert(resource: Resource, parameters: dict[str, Any]) -> EditLease | object | None:
    """The new row; LOCKED if the row exists by now, or is being inserted: look again."""
    connection = connections[alias_for(resource)]
    EDIT_LOCKS.fail_if_locked(connection, resource.digest)
    with connection.cursor() as cursor:
        cursor.execute(dialect.nowait(connection) + statements.insert(connection), parameters)
        made = cursor.rowcount
    row = _read_one(connection, resource)
    return row if made and row is not None and row.lease == parameters["lease"] else None


def _holds(connection: BaseDatabaseWrapper, condition: str, parameters: dict[str, Any]) -> bool:
    """Does a row that SKIP LOCKED has not returned fulfil the condition? Then it is locked, or was a moment ago."""
    text = f"SELECT 1 FROM {statements.TABLE} WHERE digest = %(digest)s AND {condition}"  # noqa: S608
    return bool(EDIT_LOCKS.fetch(connection, text, parameters))


def _read_one(connection: BaseDatabaseWrapper, resource: Resource) -> EditLease | None:
    rows = EDIT_LOCKS.fetch(connection, f"{statements.SELECT} WHERE digest = %s", [resource.digest])
    return decode(rows[0], resource) if rows else None


def decode(row: Sequence[Any], resource: Resource) -> EditLease:
    """The lease in a row of :data:`statements.READ`."""
    (_, _, _, lease, principal, tab, label, fence, writes, since, seen, active, expires, reserved) = row[:14]
    previous, ended, changed_at, changed_by, now = row[14:]
    return EditLease(
        resource=resource,
        owner=Owner(principal=principal, tab=tab, label=label) if lease else None,
        lease=lease,
        fence=fence,
        writes=writes,
        since=moment(since),
        seen=moment(seen),
        age=max(0.0, (now - since) / 1_000_000),
        idle=max(0.0, (now - active) / 1_000_000),
        expires_in=(expires - now) / 1_000_000 if lease else 0.0,
        reserved=bool(reserved),
        changed_by=changed_by,
        changed_at=moment(changed_at) if changed_at else None,
        previous=previous,
        ended=ended,
    )


def _why(row: EditLease | None, lease: str) -> Any:
    """Why the lease is gone."""
    if row is None:
        return "expired"
    if row.previous == lease and row.ended:
        return row.ended
    return "released" if row.lease == lease else "expired"


def _by(row: EditLease | None) -> str:
    return row.owner.label if row is not None and row.owner is not None else ""


def _parameters(resource: Resource, **more: Any) -> dict[str, Any]:
    return {"digest": resource.digest, "model": resource.model, "pk": resource.pk, **more}
