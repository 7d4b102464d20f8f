"""A row as it is read, and the attempts to change rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django_distlock.browser.records import BrowserLease
from django_distlock.storage.table import LOCKED, PAUSES
from django_distlock.storage.values import moment

from . import statements
from .statements import BROWSER_LOCKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper


class NameRow(NamedTuple):
    """A row of :data:`statements.READ`: times in microseconds, ``now`` is the time at which it was read."""

    digest: str
    name: str
    lease: str
    holder: str
    principal: str
    label: str
    fence: int
    since: int
    expires_at: int
    ends_at: int
    previous: str
    ended: str
    now: int

    @property
    def held(self) -> bool:
        return bool(self.lease) and self.expires_at > self.now

    def as_lease(self, expires_in: float | None = None) -> BrowserLease:
        """The lease of the row; it expires as the row says, or in ``expires_in`` seconds."""
        rest = (self.expires_at - self.now) / 1_000_000 if self.lease else 0.0
        return BrowserLease(
            name=self.name,
            lease=self.lease,
            principal=self.principal,
            label=self.label,
            fence=self.fence,
            since=moment(self.since),
            age=max(0.0, (self.now - self.since) / 1_000_000),
            expires_in=rest if expires_in is None else expires_in,
        )


def read_rows(connection: BaseDatabaseWrapper, digests: Iterable[str]) -> dict[str, NameRow]:
    """The rows by digest, without a lock. Names that were never locked, or not for long, have none."""
    keys = list(digests)
    if not keys:
        return {}
    text = f"{statements.SELECT} WHERE digest IN ({marks(keys)})"
    return {row[0]: NameRow(*row) for row in BROWSER_LOCKS.fetch(connection, text, keys)}


def change(
    connection: BaseDatabaseWrapper,
    assignments: str,
    condition: str,
    parameters: dict[str, Any],
    pauses: Sequence[float] = PAUSES,
) -> list[str] | object:
    """Change the rows with ``condition``, the name of a lease or of a holder in it; return their digests.

    LOCKED if another transaction kept the only one.
    """

    def attempt() -> list[str] | object:
        with connection.cursor() as cursor:
            if connection.vendor == "mysql":
                return _change_on_mysql(connection, cursor, assignments, condition, parameters)
            cursor.execute(statements.update(connection, assignments, condition, "digest"), parameters)
            found = [digest for (digest,) in cursor.fetchall()]
        if not found and connection.vendor == "postgresql" and _exists(connection, condition, parameters):
            return LOCKED
        return found

    return BROWSER_LOCKS.patiently(connection, attempt, pauses)


def _change_on_mysql(
    connection: BaseDatabaseWrapper, cursor: Any, assignments: str, condition: str, parameters: dict[str, Any]
) -> list[str]:
    """Find the rows without a lock first: an UPDATE that searches an index locks more than it changes."""
    select = f"SELECT digest FROM {statements.TABLE} WHERE {condition}"  # noqa: S608
    cursor.execute(BROWSER_LOCKS.text_for(connection, select), parameters)
    changed = []
    for (digest,) in cursor.fetchall():
        BROWSER_LOCKS.fail_if_locked(connection, digest)
        one = f"digest = %(one)s AND {condition}"
        cursor.execute(statements.update(connection, assignments, one), {**parameters, "one": digest})
        if cursor.rowcount:
            changed.append(digest)
    return changed


def _exists(connection: BaseDatabaseWrapper, condition: str, parameters: dict[str, Any]) -> bool:
    """Does a row that SKIP LOCKED has not returned fulfil the condition? Then it is locked, or was a moment ago."""
    text = f"SELECT 1 FROM {statements.TABLE} WHERE {condition}"  # noqa: S608
    return bool(BROWSER_LOCKS.fetch(connection, text, parameters))


def marks(values: Sequence[object]) -> str:
    """Placeholders for an IN."""
    return ", ".join(["%s"] * len(values))


def attempted(connection: BaseDatabaseWrapper, text: str, parameters: dict[str, Any], digests: Iterable[str]) -> Any:
    """Run a statement on the rows ``digests`` once; no error breaks the transaction of the caller.

    Returns its rows, the number of changed ones for a statement that returns none, or LOCKED.
    """

    def attempt() -> Any:
        for digest in digests:
            BROWSER_LOCKS.fail_if_locked(connection, digest)
        with connection.cursor() as cursor:
            cursor.execute(text, parameters)
            return cursor.rowcount if cursor.description is None else cursor.fetchall()

    return BROWSER_LOCKS.patiently(connection, attempt, ())
