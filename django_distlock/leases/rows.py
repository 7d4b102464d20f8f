"""Take, renew, release and lock the row of an object or a name. It decides alone, in the UPDATE itself.

Each verb is safe to repeat: clients choose the ids of their leases. No statement waits for the lock of a row but
those of :func:`lock`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from django.db import connections

from django_distlock.storage import dialect
from django_distlock.storage.statements import PAUSES, RELEASE_PAUSES, attempt, marks, query, text_for, tries
from django_distlock.storage.values import exact, micros, moment, shown

from .records import Busy, Lost, Row, claim_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .records import Holder, LostReason, Resource, Verb

TABLE = "django_distlock_weblease"
COLUMNS = (
    "digest, model, name, lease, principal, label, fence, writes, since, active_at, expires_at, ends_at, page_left, "
    "previous, ended, changed_at, changed_by"
)
READ = """
digest, model, name, lease, principal, label, fence, writes, since, changed_at, {now} - since, {now} - active_at,
expires_at - {now}, expires_at >= ends_at, page_left, previous, ended, changed_by
"""
MOMENTS, SPANS = (8, 9), (10, 11, 12)
ONE = f"SELECT digest FROM {TABLE} WHERE digest = %(digest)s"  # noqa: S608
FREE = "(lease = '' OR expires_at <= {now})"
HELD = "lease <> '' AND expires_at > {now}"
MINE = "(lease = %(lease)s AND lease <> '' AND (%(principal)s = '' OR principal = %(principal)s))"
LIVE = f"({MINE} AND expires_at > {{now}})"
# Which row a caller may have.
MAY: dict[Verb, str] = {
    "claim": f"({FREE} OR principal = %(principal)s)",
    "adopt": f"({FREE} OR (principal = %(principal)s AND lease IN (%(lease)s, %(former)s)))",
    "takeover": "1 = 1",
}
# MySQL assigns from left to right: what is compared comes last. An end by the clock and an end of the longest hold
# differ in what the former holder is told.
HOLD = f"""
previous = CASE WHEN lease IN ('', %(lease)s) THEN previous ELSE lease END,
ended = CASE WHEN lease IN ('', %(lease)s) THEN ended WHEN expires_at > {{now}} THEN %(reason)s
    WHEN expires_at >= ends_at THEN 'max_hold' ELSE 'expired' END,
fence = CASE WHEN {LIVE} THEN fence ELSE fence + 1 END,
since = CASE WHEN {HELD} AND principal = %(principal)s THEN since ELSE {{now}} END,
active_at = {{now}} - %(idle)s, page_left = 0,
ends_at = CASE WHEN {LIVE} THEN ends_at ELSE {{now}} + %(hold)s END,
expires_at = CASE WHEN {LIVE} AND ends_at < {{now}} + %(ttl)s THEN ends_at
    WHEN {LIVE} THEN {{now}} + %(ttl)s ELSE {{now}} + %(first)s END,
principal = %(principal)s, label = %(label)s, lease = %(lease)s
"""
RENEW = """
expires_at = CASE WHEN ends_at < {now} + %(ttl)s THEN ends_at ELSE {now} + %(ttl)s END,
active_at = {now} - %(idle)s, page_left = 0
"""
# The page has gone: its tab has some seconds to come back and adopt the lease.
RESERVE = """
expires_at = CASE WHEN expires_at < {now} + %(ttl)s THEN expires_at ELSE {now} + %(ttl)s END, page_left = 1
"""
# The names of people stay with an expired lease, and go with one that was given back.
DROP = """
previous = lease, ended = %(reason)s, principal = '', label = '', page_left = 0, expires_at = {now}, lease = ''
"""
COUNT = "writes = writes + 1, changed_at = {now}, changed_by = %(label)s"
# Fences and writes begin at the clock: a row that was swept and made again never has the same numbers.
NEW = "%(digest)s, %(model)s, %(name)s, '', '', '', {now}, {now}, {now}, {now}, {now}, {now}, 0, '', '', 0, ''"


def take(
    verb: Verb, resource: Resource, holder: Holder, lease: str, ttl: float, *, idle: float = 0.0, former: str = ""
) -> Row | Busy:
    """Take the row of an object. A takeover is busy only while a save runs; permission and audit are the caller's.

    An adopted row gets the id ``lease`` instead of ``former``, so that a late release of the previous page does not
    free it.
    """
    principal, leases, row = holder.principal, (lease, former), None
    told = "taken_over" if verb == "takeover" else "other_tab"  # to the tab that loses it
    claim = claim_of(principal, holder.label, lease, ttl, idle=idle, reason=told, former=former)
    parameters = claim | resource.columns()
    for _ in tries(PAUSES):
        row = update(resource.database, HOLD, MAY[verb], parameters) or read_one(resource)
        if row is None:
            insert(resource)
        elif row.held and row.is_of(principal, lease):
            return row
        elif not row.may_take(verb, principal, leases):
            return Busy(holder=row, own=row.principal == exact(principal))
        # between two statements another claim may have come or gone
    # it is free for the caller, and another transaction keeps it busy
    return Busy(holder=row, own=row is not None and row.principal == exact(principal), saving=True)


def renew(
    resource: Resource, lease: str, ttl: float, *, principal: str = "", idle: float = 0.0, fence: int | None = None
) -> Row | Lost:
    """Prolong a lease by ``ttl`` seconds, never past its longest hold.

    With its ``fence`` only a lease that has not run out, else also one that has, until another claim takes the row. A
    lease that was given back is not renewed, nor is one whose page was left (adopt it). While another transaction has
    locked the row, it is returned as it is, with ``saving``.
    """
    condition = f"{MINE} AND page_left = 0" if fence is None else f"{LIVE} AND fence = %(fence)s"
    parameters = {**_names(resource, lease, principal), "ttl": micros(ttl), "idle": micros(idle), "fence": fence}
    row = update(resource.database, RENEW, condition, parameters)
    if row is not None and row.is_of(principal, lease):  # MySQL reads it by a second statement
        return row
    row = read_one(resource)
    if row is None:
        return Lost(reason="expired")
    current = row.is_of(principal, lease) and fence in (None, row.fence)
    if current and (row.held if fence is not None else not row.page_left):
        return replace(row, saving=True)
    return Lost(reason=_why(row, lease, current), by=row.label, row=row)


def _why(row: Row, lease: str, current: bool) -> LostReason:
    """Why a lease is gone. The row remembers the last one; of an older one it is only known who came later."""
    if current:
        return "released" if row.page_left else "max_hold" if row.at_its_end else "expired"
    if row.previous == lease and row.ended:
        return cast("LostReason", row.ended)
    return "taken" if row.held and not row.model else "expired"


def release(
    resource: Resource, lease: str, reserve: float | None = None, *, principal: str = "", wrote_by: str | None = None
) -> bool | None:
    """Free the row, or keep it for at most ``reserve`` seconds, for the next page of the same tab alone; 0 lets it run
    out now.

    ``wrote_by`` counts a write by this label in the same statement. False if it is not the caller's, which changes
    nothing; None if another transaction keeps it for more than a second: then the lease is left to expire.
    """
    parameters = {**_names(resource, lease, principal), "ttl": micros(reserve or 0), "reason": "released"}
    assignments = DROP if reserve is None else RESERVE
    if wrote_by is not None:
        assignments, parameters["label"] = f"{COUNT}, {assignments}", shown(wrote_by)
    return change(resource, assignments, MINE, parameters, lambda row: row.is_of(principal, lease))


def count_write(resource: Resource, label: str) -> bool | None:
    """Count a write outside a save. False if there is no row; None if a save keeps it for more than a second."""
    parameters = {"digest": resource.digest, "label": shown(label)}
    return change(resource, COUNT, "1 = 1", parameters, lambda row: True)


def read(resources: Iterable[Resource]) -> dict[str, Row]:
    """The rows by digest, without a lock: one SELECT for each database.

    What was never locked, or not for long, has none.
    """
    groups: dict[str, list[str]] = {}
    for resource in resources:
        groups.setdefault(resource.database, []).append(resource.digest)
    found = {}
    for alias, digests in groups.items():
        rows = query(alias, f"SELECT {READ} FROM {TABLE} WHERE digest IN ({marks(digests)})", digests)  # noqa: S608
        found.update({row[0]: decode(row) for row in rows})
    return found


def read_one(resource: Resource) -> Row | None:
    """The row, without a lock."""
    return read([resource]).get(resource.digest)


def update(alias: str, assignments: str, condition: str, parameters: dict[str, Any]) -> Row | None:
    """The row ``digest`` after an UPDATE; None if the condition does not hold, or another transaction has locked it."""
    found = update_and_read(alias, assignments, condition, parameters, READ)
    return None if found is None else decode(found)


def update_and_read(
    alias: str, assignments: str, condition: str, parameters: dict[str, Any], columns: str
) -> tuple[Any, ...] | None:
    """:func:`update` that returns these columns: in the same statement where the database can, else by a second one."""
    connection = connections[alias]
    if connection.vendor == "postgresql":
        found = f"{ONE} AND {condition} FOR UPDATE SKIP LOCKED"
        text = f"UPDATE {TABLE} SET {assignments} WHERE digest = ({found})"  # noqa: S608
    else:
        text = f"UPDATE {TABLE} SET {assignments} WHERE digest = %(digest)s AND {condition}"  # noqa: S608
    if dialect.returns_updated(connection):
        text += f" RETURNING {columns}"
    rows = attempt(alias, text, parameters, ONE)
    if isinstance(rows, int) and rows:
        rows = query(alias, f"SELECT {columns} FROM {TABLE} WHERE digest = %(digest)s", parameters)  # noqa: S608
    return tuple(rows[0]) if isinstance(rows, list) and rows else None


def change(
    resource: Resource, assignments: str, condition: str, parameters: dict[str, Any], holds: Callable[[Row], bool]
) -> bool | None:
    """Update the row, and ask again for a second while it is locked. ``holds`` is the condition on a row as it is read.

    False if the condition does not hold; None if another transaction keeps the row.
    """
    for _ in tries(RELEASE_PAUSES):
        if update(resource.database, assignments, condition, parameters) is not None:
            return True
        row = read_one(resource)
        if row is None or not holds(row):
            return False
    return None


def insert(resource: Resource) -> None:
    """Make the row, free, unless there is one, or another transaction is making it."""
    text = dialect.insert(connections[resource.database], TABLE, COLUMNS, NEW)
    attempt(resource.database, text, resource.columns(), ONE)


def lock(resources: Sequence[Resource]) -> dict[str, Row]:
    """Lock the rows until the end of the transaction, in the order of their digests; make those that are missing.

    One statement where the database returns the rows of an INSERT, else two. Errors of the database are not translated:
    those of contention call for another attempt.
    """
    alias = resources[0].database
    connection = connections[alias]
    ordered = {resource.digest: resource.columns() for resource in resources}
    digests = sorted(ordered)
    parameters = {f"{name}{n}": value for n, key in enumerate(digests) for name, value in ordered[key].items()}
    rows = ", ".join(f"({NEW.replace(')s', f'{n})s')})" for n in range(len(digests)))
    text = f"INSERT INTO {TABLE} ({COLUMNS}) VALUES {rows} "  # noqa: S608
    if connection.vendor == "mysql":
        text += "ON DUPLICATE KEY UPDATE digest = VALUES(digest)"
    else:
        text += "ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest"
    returning = connection.features.can_return_rows_from_bulk_insert
    with connection.cursor() as cursor:
        cursor.execute(text_for(alias, f"{text} RETURNING {READ}" if returning else text), parameters)
        if not returning:
            select = f"SELECT {READ} FROM {TABLE} WHERE digest IN ({marks(digests)}) ORDER BY digest"  # noqa: S608
            ending = " FOR UPDATE" if connection.features.has_select_for_update else ""
            cursor.execute(text_for(alias, select) + ending, digests)
        return {row[0]: decode(row) for row in cursor.fetchall()}


def wrote(
    resources: Sequence[Resource], holder: Holder, *, lease: str = "", ttl: float = 0.0, deleted: bool = False
) -> None:
    """Count a write of rows that are locked. With a ``lease`` they become it, or stay it, for ``ttl`` seconds.

    ``deleted`` ends the leases, because the objects are gone.
    """
    alias = resources[0].database
    names = {f"digest{number}": digest for number, digest in enumerate(sorted(each.digest for each in resources))}
    parameters: dict[str, Any] = {"label": shown(holder.label), "reason": "deleted"}
    assignments = COUNT
    if deleted:
        assignments = f"{COUNT}, {DROP}"
    elif lease:
        assignments = f"{COUNT}, {HOLD}"
        parameters = claim_of(holder.principal, holder.label, lease, ttl, reason="saved")
    text = f"UPDATE {TABLE} SET {assignments} WHERE digest IN ({marks(names)})"  # noqa: S608
    with connections[alias].cursor() as cursor:
        cursor.execute(text_for(alias, text), {**parameters, **names})


def lock_current(resource: Resource, lease: str, fence: int, principal: str) -> Row | None:
    """Lock the row until the end of the caller's transaction, if the lease is current now; None if it is not.

    While it is locked nobody else gets it, even if the lease runs out. Errors of the database are not translated: one
    of contention says that another request of the same lease has the row. On SQLite an UPDATE locks.
    """
    alias = resource.database
    connection = connections[alias]
    condition = f"digest = %(digest)s AND fence = %(fence)s AND {LIVE}"
    if connection.features.has_select_for_update:
        text = f"{dialect.present(connection)}SELECT {READ} FROM {TABLE} WHERE {condition} FOR UPDATE NOWAIT"  # noqa: S608
    else:
        text = f"UPDATE {TABLE} SET digest = digest WHERE {condition} RETURNING {READ}"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(text_for(alias, text), {**_names(resource, lease, principal), "fence": fence})
        rows = cursor.fetchall()
    return decode(rows[0]) if rows else None


def decode(values: Sequence[Any]) -> Row:
    """The row in the values of :data:`READ`."""
    found: list[Any] = list(values)
    for place in SPANS:
        found[place] /= 1_000_000
    for place in MOMENTS:
        found[place] = moment(found[place]) if found[place] else None
    return Row(*found)


def _names(resource: Resource, lease: str, principal: str) -> dict[str, Any]:
    return {"digest": resource.digest, "lease": lease, "principal": exact(principal)}
