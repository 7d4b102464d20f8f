"""Browser locks in the table of leases: one row for each name. ``alias`` is that of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django_distlock.leases import rows, upkeep
from django_distlock.leases.queue import acquire, heads, leave, names_of
from django_distlock.leases.records import LeaseLost, Row, digest_of
from django_distlock.storage.statements import query
from django_distlock.storage.values import exact

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_distlock.leases.records import LostReason

__all__ = [
    "acquire",
    "break_lease",
    "heads",
    "held",
    "held_by",
    "leave",
    "lock_for_update",
    "names_of",
    "read",
    "release",
    "renew",
    "sweep",
]


def renew(alias: str, name: str, lease: str, fence: int, *, principal: str, ttl: float) -> Row | LeaseLost:
    """Prolong a lease by ``ttl``; never past MAX_HOLD, never after its end.

    A row that a protected view has locked is not prolonged, its lease is returned as it is. One statement where an
    UPDATE returns rows, else two, and one more for a lost one.
    """
    row, _prolonged = rows.renew(alias, digest_of(name), lease, principal, ttl, fence=fence)
    if row is None:
        return LeaseLost(lease=lease, reason="expired")
    current = row.is_of(principal, lease) and row.fence == fence
    return row if current and row.held else LeaseLost(lease=lease, reason=_why(row, lease, current=current))


def _why(row: Row, lease: str, *, current: bool) -> LostReason:
    """Why the lease is gone. The row remembers the last one; of an older one it is only known who came later."""
    if current:
        return "max_hold" if row.at_its_end else "expired"
    if row.previous == lease and row.ended:
        return cast("LostReason", row.ended)
    return "taken" if row.held else "expired"


def release(alias: str, lease: str, *, principal: str, name: str | None = None) -> bool:
    """Give back the lease and the waiting place; calling again is harmless. False if the lease was not held.

    Two statements with the ``name``, else one more. False also if a protected view of the same tab keeps the row for
    more than a second: then the lease is left to expire.
    """
    leave(alias, lease, principal=principal)
    if name is not None:
        return rows.release(alias, digest_of(name), lease, principal)
    text = f"SELECT digest FROM {rows.TABLE} WHERE principal = %s AND lease = %s AND model = ''"  # noqa: S608
    digests = sorted(digest for (digest,) in query(alias, text, [exact(principal), lease]))
    freed = [rows.release(alias, digest, lease, principal) for digest in digests]
    return any(freed)


def lock_for_update(alias: str, name: str, lease: str, fence: int, principal: str) -> Row | None:
    """Lock the row until the end of the caller's transaction, if the lease is current now; None if it is not."""
    return rows.lock_current(alias, digest_of(name), lease, principal, fence)


def read(alias: str, names: Iterable[str]) -> dict[str, Row]:
    """The rows of the names that have one; each may be free or expired: see ``held``."""
    return {row.name: row for row in rows.read(alias, map(digest_of, names)).values()}


def held(alias: str, limit: int | None = None) -> list[Row]:
    """The leases that are held now in a database, the oldest first, at most ``limit``."""
    return upkeep.held(alias, of_objects=False, limit=limit)


def held_by(alias: str, principal: str) -> list[Row]:
    """The leases that the principal holds now, the oldest first."""
    return upkeep.held(alias, of_objects=False, principal=principal)


def break_lease(alias: str, name: str, fence: int) -> Row | None:
    """End the lease of a name if it still has this fence; its holder learns of it at the next renewal.

    Returns the lease; None if it has ended or changed hands. BackendUnavailable if a request under the lease keeps the
    row for more than a second.
    """
    return upkeep.break_lease(alias, digest_of(name), fence)


def sweep(alias: str, older_than: float, **options: Any) -> int:
    """Delete the rows of names that were not held in the last ``older_than`` seconds, and dead tickets."""
    return upkeep.sweep(alias, older_than, of_objects=False, **options)
