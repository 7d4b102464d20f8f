"""Browser locks in the table of leases: one row for each name. ``alias`` is that of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django_distlock.leases import queue as line
from django_distlock.leases import rows, upkeep
from django_distlock.leases.rows import NO_END, Claim, Key, holder_of
from django_distlock.storage.statements import query
from django_distlock.storage.values import LONGEST_PRINCIPAL, exact, moment

from .records import NO_QUOTA, BrowserLease, Full, Head, LeaseLost, Quota, Waiting, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django_distlock.leases.rows import Row

    from .records import LostReason

NO_HEAD = Head("", None)


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
    """Take the name, or with ``queue`` a place in its line: see :func:`django_distlock.leases.queue.acquire`.

    The answer has the interval that counts. Choose another id ``lease`` for the next request. Full if the principal has
    as many other leases or places as ``quota`` allows.
    """
    if not 0 < len(principal) <= LONGEST_PRINCIPAL:
        raise ValueError(f"principal must have 1 to {LONGEST_PRINCIPAL} characters.")
    claim = Claim(principal, label, lease, ttl, NO_END if max_hold is None else max_hold)
    most = quota.leases, quota.places
    found = line.acquire(alias, key_of(name), claim, queue=queue, interval=interval, most=most, again=again)
    if found.outcome == "full":
        return Full()
    if found.outcome == "held" and found.row is not None:
        return lease_of(found.row)
    holder = lease_of(found.row) if found.row is not None and found.row.held else None
    return Waiting(
        holder=holder, place=found.place, queued=found.queued, crowded=found.crowded, interval=found.interval
    )


def leave(alias: str, lease: str, *, principal: str) -> None:
    """Give up the waiting place. The lease, if there is one, stays."""
    line.leave(alias, lease, principal)


def renew(
    alias: str, leases: Iterable[tuple[str, str, int]], *, principal: str, ttl: float
) -> dict[str, BrowserLease | LeaseLost]:
    """Prolong leases, each given as (name, lease, fence), by ``ttl``; never past MAX_HOLD, never after their end.

    Returns an answer for each lease id. A row that a protected view has locked is not prolonged, its lease is returned
    as it is. One statement each where an UPDATE returns rows, else two, and one more for a lost one.
    """
    found: dict[str, BrowserLease | LeaseLost] = {}
    for digest, lease, fence in sorted((digest_of(name), lease, fence) for name, lease, fence in leases):
        row, _prolonged = rows.renew(alias, digest, lease, principal, ttl, fence=fence)
        current = row is not None and row.is_of(principal, lease) and row.fence == fence
        if row is not None and row.held and current:
            found[lease] = lease_of(row)
        else:
            found[lease] = LeaseLost(lease=lease, reason=_why(row, lease, current=current))
    return found


def _why(row: Row | None, lease: str, *, current: bool) -> LostReason:
    """Why the lease is gone. The row remembers the last one; of an older one it is only known who came later."""
    if row is None:
        return "expired"
    if current:
        return "max_hold" if row.expires_at >= row.ends_at else "expired"
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


def lock_for_update(alias: str, name: str, lease: str, fence: int, principal: str) -> BrowserLease | None:
    """Lock the row until the end of the caller's transaction, if the lease is current now; None if it is not."""
    row = rows.lock_current(alias, digest_of(name), lease, principal, fence)
    return None if row is None else lease_of(row)


def read(alias: str, names: Iterable[str]) -> dict[str, BrowserLease]:
    """The rows of the names that have one; each may be free or expired: see ``held``."""
    return {row.name: lease_of(row) for row in rows.read(alias, map(digest_of, names)).values()}


def held(alias: str, limit: int | None = None) -> list[BrowserLease]:
    """The leases that are held now in a database, the oldest first, at most ``limit``."""
    return [lease_of(row) for row in upkeep.held(alias, of_objects=False, limit=limit)]


def held_by(alias: str, principal: str) -> list[BrowserLease]:
    """The leases that the principal holds now, the oldest first."""
    return [lease_of(row) for row in upkeep.held(alias, of_objects=False, principal=principal)]


def counts(alias: str, principal: str) -> tuple[int, int]:
    """How many leases the principal holds, and how many live waiting places it has."""
    text = f"SELECT COUNT(*) FROM {line.TICKETS} WHERE principal = %s AND {line.ALIVE}"  # noqa: S608
    ((places,),) = query(alias, text, [exact(principal)])
    return len(held_by(alias, principal)), int(places)


def names_of(alias: str, principal: str, leases: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Those of the ids that are leases or live waiting places of the principal: their names, and if they are held."""
    holders = {holder_of(lease, principal): lease for lease in leases}
    if not holders:
        return {}
    wanted = set(holders.values())
    held = {row.lease: (row.name, True) for row in held_by(alias, principal) if row.lease in wanted}
    return {holders[holder]: (name, False) for holder, name in line.places_of(alias, holders).items()} | held


def heads(alias: str, names: Iterable[str]) -> dict[str, Head]:
    """Who has each name, and who is next. One statement for all names."""
    digests = {digest_of(name): name for name in names}
    found = dict.fromkeys(digests.values(), NO_HEAD)
    for row, first in line.heads(alias, digests):
        holder = holder_of(row.lease, row.principal) if row.held else ""
        found[digests[row.digest]] = Head(holder, first, row.previous, row.ended)
    return found


def break_lease(alias: str, name: str, fence: int) -> BrowserLease | None:
    """End the lease of a name if it still has this fence; its holder learns of it at the next renewal.

    Returns the lease; None if it has ended or changed hands. BackendUnavailable if a request under the lease keeps the
    row for more than a second.
    """
    before = upkeep.break_lease(alias, digest_of(name), fence)
    return None if before is None else lease_of(before)


def sweep(alias: str, older_than: float, **options: Any) -> int:
    """Delete the rows of names that were not held in the last ``older_than`` seconds, and dead tickets."""
    return upkeep.sweep(alias, older_than, of_objects=False, **options)


def key_of(name: str) -> Key:
    return Key(digest_of(name), "", name)


def lease_of(row: Row) -> BrowserLease:
    """The row of a name, as the rest of the package sees it."""
    return BrowserLease(
        name=row.name,
        lease=row.lease,
        principal=row.principal,
        label=row.label,
        fence=row.fence,
        since=moment(row.since),
        age=row.seconds_since(row.since),
        expires_in=row.expires_in,
    )
