"""Edit locks in the table of leases: one row for each object, in the database of the object.

Clients choose the ids of leases: each verb is safe to repeat, and an id is good for one holding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from django.db import connections

from django_distlock.leases import rows, upkeep
from django_distlock.leases.records import Claim, Key, Row
from django_distlock.schema import schema_of

from .records import Busy, EditLease, Lost, Owner, Resource
from .signals import edit_broken, edit_taken_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_distlock.leases.records import May

    from .records import LostReason


def alias_for(resource: Resource) -> str:
    """The database that holds the row: that of the object."""
    return resource.database


def claim(resource: Resource, owner: Owner, lease: str, ttl: float, *, idle: float = 0.0) -> EditLease | Busy:
    """Take the row if it is free, or held by the same principal in another tab, which then loses it."""
    return _take(resource, Claim(owner.principal, owner.label, lease, ttl, idle=idle), "own", "other_tab")


def adopt(
    resource: Resource, owner: Owner, lease: str, previous: str, ttl: float, *, idle: float = 0.0
) -> EditLease | Busy:
    """Take the row if the same principal holds it by the lease ``previous``, or if it is free.

    The id of the lease changes, so that a late release of the previous page does not free it.
    """
    claim = Claim(owner.principal, owner.label, lease, ttl, idle=idle)
    return _take(resource, claim, "same", "other_tab", previous)


def takeover(resource: Resource, owner: Owner, lease: str, ttl: float, reason: str) -> EditLease | Busy:
    """Take the row from another principal. Permission and audit are the caller's. Busy only while a save runs."""
    before = read([resource]).get(resource.digest)
    found = _take(resource, Claim(owner.principal, owner.label, lease, ttl), "any", "taken_over")
    if isinstance(found, EditLease):
        edit_taken_over.send_robust(
            sender=EditLease, resource=resource, owner=owner, before=before, lease=found, reason=reason
        )
    return found


def _take(resource: Resource, claim: Claim, may: May, reason: str, former: str = "") -> EditLease | Busy:
    row = rows.take(alias_for(resource), key_of(resource), claim, may, reason=reason, former=former)
    if row is None:
        return Busy(holder=None, saving=True)
    found = lease_of(row, resource)
    if row.held and row.is_of(claim.principal, claim.lease):
        return found
    own = found.owner is not None and found.owner.principal == claim.principal
    return Busy(holder=found, own=own, saving=row.may_take(claim, may, former))


def renew(resource: Resource, lease: str, ttl: float, *, principal: str = "", idle: float = 0.0) -> EditLease | Lost:
    """Prolong the lease; also after it has expired, until another claim takes the row. Never takes it from a holder.

    A lease that was given back is not renewed, nor is one that is reserved after its page was left (adopt it). While a
    save has locked the row the lease is returned as it is, with ``saving``.
    """
    row, prolonged = rows.renew(alias_for(resource), resource.digest, lease, principal, ttl, idle=idle)
    found = None if row is None else lease_of(row, resource)
    if found is not None and row is not None and row.is_of(principal, lease) and not row.page_left:
        return found if prolonged else replace(found, saving=True)
    by = found.owner.label if found is not None and found.owner is not None else ""
    return Lost(reason=_why(row, lease), by=by, row=found)


def _why(row: Row | None, lease: str) -> LostReason:
    """Why the lease is gone."""
    if row is not None and row.previous == lease and row.ended:
        return cast("LostReason", row.ended)
    return "released" if row is not None and row.lease == lease else "expired"


def release(
    resource: Resource, lease: str, reserve: float = 0.0, *, principal: str = "", wrote_by: str | None = None
) -> bool:
    """Free the row, or keep it for at most ``reserve`` seconds so that the next page of the same tab can adopt it.

    ``wrote_by`` counts a write by this label in the same statement. False if the lease is unknown, which changes
    nothing, or if a save lasts longer than a second: then the row is left to expire.
    """
    alias = alias_for(resource)
    return rows.release(alias, resource.digest, lease, principal, reserve=reserve, wrote_by=wrote_by)


def count_write(resource: Resource, label: str) -> bool:
    """Count a write outside a save. False if there is no row, or a save keeps it for more than a second."""
    return rows.count_write(alias_for(resource), resource.digest, label)


def read(resources: Iterable[Resource]) -> dict[str, EditLease]:
    """The rows by digest, without a lock: one SELECT for each database."""
    groups: dict[str, dict[str, Resource]] = {}
    for resource in resources:
        groups.setdefault(alias_for(resource), {})[resource.digest] = resource
    return {
        digest: lease_of(row, members[digest])
        for alias, members in groups.items()
        for digest, row in rows.read(alias, members).items()
    }


def lock(resources: Sequence[Resource]) -> dict[str, EditLease]:
    """Lock the rows until the end of the transaction, in the order of their digests; make those that are missing.

    Errors of the database are not translated: those of contention call for another attempt.
    """
    by_digest = {resource.digest: resource for resource in resources}
    found = rows.lock(alias_for(resources[0]), [key_of(resource) for resource in by_digest.values()])
    return {digest: lease_of(row, by_digest[digest]) for digest, row in found.items()}


def wrote(
    resources: Sequence[Resource],
    label: str,
    *,
    owner: Owner | None = None,
    lease: str = "",
    ttl: float = 0.0,
    deleted: bool = False,
) -> None:
    """Count a write of the locked rows.

    With ``owner`` the lease stays with it, or becomes its lease, for ``ttl`` seconds. ``deleted`` ends the leases,
    because the objects are gone.
    """
    claim = None if owner is None else Claim(owner.principal, label, lease, ttl)
    rows.wrote(alias_for(resources[0]), map(key_of, resources), label, claim=claim, deleted=deleted)


def held(alias: str, model: str | None = None, limit: int | None = None) -> list[EditLease]:
    """The leases that are held now in a database, the oldest first; of one model, at most ``limit``.

    Those of other tenants, whose schemas no connection of this thread works in, are left out.
    """
    schemas = {schema_of(each) for each in connections}
    found = upkeep.held(alias, of_objects=True, model=model, limit=limit if schemas == {""} else None)
    named = [(row, Resource(alias, row.model, row.name, schema=schema)) for row in found for schema in schemas]
    return [lease_of(row, resource) for row, resource in named if resource.digest == row.digest][:limit]


def break_lease(resource: Resource, reason: str = "", fence: int | None = None) -> EditLease | None:
    """End the lease of an object, the one with this fence; its holder learns of it at the next beat.

    Returns the lease; None for a free object, or another fence. BackendUnavailable if a save keeps the row for more
    than a second.
    """
    before = upkeep.break_lease(alias_for(resource), resource.digest, fence)
    if before is None:
        return None
    ended = lease_of(before, resource)
    edit_broken.send_robust(sender=EditLease, resource=resource, before=ended, reason=reason)
    return ended


def sweep(alias: str, older_than: float, **options: Any) -> int:
    """Delete rows without a lease or a write in the last ``older_than`` seconds. Returns their number.

    ``older_than`` has to be at least the lifetime of a rendered form.
    """
    return upkeep.sweep(alias, older_than, of_objects=True, **options)


def key_of(resource: Resource) -> Key:
    return Key(resource.digest, resource.model, resource.pk)


def lease_of(row: Row, resource: Resource) -> EditLease:
    """The row of an object, as the rest of the package sees it."""
    return EditLease(resource=resource, **{name: getattr(row, name) for name in Row.__slots__})
