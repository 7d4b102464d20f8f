"""What a holder does: renew a batch, release, and lock the row in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.db import connections

from django_distlock.browser.records import BrowserLease, LeaseLost, digest_of, holder_of
from django_distlock.storage.dialect import present, returns_updated
from django_distlock.storage.table import LOCKED, RELEASE_PAUSES
from django_distlock.storage.values import micros

from . import statements
from .queue import leave
from .rows import NameRow, attempted, change, read_rows
from .statements import BROWSER_LOCKS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.browser.records import LostReason


def renew(
    alias: str, leases: Iterable[tuple[str, str, int]], *, principal: str, ttl: float
) -> dict[str, BrowserLease | LeaseLost]:
    """Prolong leases, each given as (name, lease, fence), by ``ttl``; never past MAX_HOLD, never after their end.

    Returns an answer for each lease id. A row that a protected view has locked is not prolonged, its lease is returned
    as it is. One statement where an UPDATE returns rows, else two, and one more if some are lost.
    """
    asked = {digest_of(name): (lease, fence) for name, lease, fence in leases}
    if not asked:
        return {}
    connection = connections[alias]
    rows = _prolong(connection, asked, principal, ttl)
    rows |= read_rows(connection, [digest for digest in asked if digest not in rows])
    return {
        lease: _answer(rows.get(digest), lease, holder_of(lease, principal), fence)
        for digest, (lease, fence) in asked.items()
    }


def _prolong(
    connection: BaseDatabaseWrapper, asked: dict[str, tuple[str, int]], principal: str, ttl: float
) -> dict[str, NameRow]:
    """The rows that were prolonged; none where an UPDATE does not return them."""
    parameters: dict[str, Any] = {"ttl": micros(ttl)}
    each = []
    for number, (digest, (lease, fence)) in enumerate(sorted(asked.items())):
        parameters |= {f"d{number}": digest, f"h{number}": holder_of(lease, principal), f"f{number}": fence}
        each.append(f"(digest = %(d{number})s AND holder = %(h{number})s AND fence = %(f{number})s)")
    condition = f"({' OR '.join(each)}) AND lease <> '' AND expires_at > {{now}}"
    found = attempted(connection, statements.update(connection, statements.RENEW, condition), parameters, asked)
    if found is LOCKED and len(asked) > 1:  # MariaDB: one of them is locked, the others must not suffer
        return {
            digest: row
            for key, value in asked.items()
            for digest, row in _prolong(connection, {key: value}, principal, ttl).items()
        }
    if found is LOCKED or not returns_updated(connection):
        return {}
    return {row[0]: NameRow(*row) for row in found}


def _answer(row: NameRow | None, lease: str, holder: str, fence: int) -> BrowserLease | LeaseLost:
    if row is not None and row.held and row.holder == holder and row.fence == fence:
        return row.as_lease()
    return LeaseLost(lease=lease, reason=_why(row, lease, holder, fence))


def _why(row: NameRow | None, lease: str, holder: str, fence: int) -> LostReason:
    """Why the lease is gone. The row remembers the last one; of an older one it is only known who came later."""
    if row is None:
        return "expired"
    if row.holder == holder and row.fence == fence:
        return "max_hold" if row.expires_at >= row.ends_at else "expired"
    if row.previous == lease and row.ended:
        return cast("LostReason", row.ended)
    return "taken" if row.held else "expired"


def release(alias: str, lease: str, *, principal: str) -> bool:
    """Give back the lease and the waiting place; calling again is harmless. False if the lease was not held.

    Two statements. False also if a protected view of the same tab keeps the row for more than a second: then the lease
    is left to expire.
    """
    leave(alias, lease, principal=principal)
    parameters = {"holder": holder_of(lease, principal), "reason": "released"}
    freed = change(connections[alias], statements.DROP, statements.HOLDER, parameters, RELEASE_PAUSES)
    return bool(freed) and freed is not LOCKED


def lock_for_update(alias: str, name: str, lease: str, fence: int, principal: str) -> BrowserLease | None:
    """Lock the row until the end of the caller's transaction, if the lease is current now; None if it is not.

    While it is locked the name passes to no one, even if the lease runs out. Errors of the database are not translated:
    one of contention says that another request of the same lease has the row, and calls for another attempt. On SQLite
    the row is locked by an UPDATE.
    """
    connection = connections[alias]
    parameters: dict[str, Any] = {"digest": digest_of(name), "holder": holder_of(lease, principal), "fence": fence}
    condition = f"digest = %(digest)s AND fence = %(fence)s AND {statements.MINE}"
    if connection.features.has_select_for_update:
        text = f"{present(connection)}{statements.SELECT} WHERE {condition} FOR UPDATE NOWAIT"
    else:
        text = f"UPDATE {statements.TABLE} SET digest = digest WHERE {condition} RETURNING {statements.READ}"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(BROWSER_LOCKS.text_for(connection, text), parameters)
        rows = cursor.fetchall()
    return NameRow(*rows[0]).as_lease() if rows else None


def read(alias: str, names: Iterable[str]) -> dict[str, BrowserLease]:
    """The rows of the names that have one; each may be free or expired: see ``held``."""
    return {row.name: row.as_lease() for row in read_rows(connections[alias], map(digest_of, names)).values()}
