"""Claims and answers in a table. Its unique index admits one claim; all times are by the clock of the database."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import Error, connections

from django_distlock import BackendUnavailable, LockNotAcquired
from django_distlock.idempotency.records import CLAIMED, FAILED, KeyClaim, Record
from django_distlock.storage.dialect import contended, insert, nowait, present
from django_distlock.storage.statements import delete, marks, text_for
from django_distlock.storage.values import micros

from .base import Storage, TooManyKeys
from .encoding import record_of, stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

TABLE = "django_distlock_idempotency"
COLUMNS = "scope, state, owner, fingerprint, principal, method, route, phases, claimed_at, expires_at, lives_until"
VALUES = "%s, 'claimed', %s, %s, %s, %s, %s, '{}', {now}, {now} + %s, {now} + %s"
# An INSERT that meets an uncommitted row of the same key waits for that transaction. The advisory lock, in the same
# statement, answers at once; it ends with the transaction.
TRY_INSERT = f"""
WITH lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%s) AS got),
made AS (INSERT INTO {TABLE} ({COLUMNS}) SELECT {VALUES} FROM lock WHERE got ON CONFLICT DO NOTHING RETURNING 1)
SELECT got, EXISTS (SELECT 1 FROM made) FROM lock
"""  # noqa: S608
READ = f"SELECT scope, state, owner, fingerprint, expires_at <= {{now}}, answer, phases FROM {TABLE} WHERE scope = %s"  # noqa: S608
# At REPEATABLE READ of MySQL and MariaDB, a snapshot that is older than the commit of the other request hides its row.
LOCKING = {"mysql": " LOCK IN SHARE MODE"}
MINE = "scope = %s AND owner = %s"
# A view may run longer than the lifetime of its record.
RUNNING = "(state = 'claimed' AND expires_at > {now})"
# The keys that count for the quota of a principal: how many, and how long until the first of them ends.
LIVE = (
    f"SELECT COUNT(*), MIN(lives_until) - {{now}} FROM (SELECT lives_until FROM {TABLE} WHERE principal = %s "  # noqa: S608
    "AND lives_until > {now} ORDER BY lives_until LIMIT %s) live"
)
# Attempts for a key that is freed between the INSERT and the SELECT.
ATTEMPTS = 20
# Seconds between the attempts to insert if MySQL or MariaDB says that a lock is in the way: it may be that of another
# key beside this one, which is over soon.
PAUSES = (0.002, 0.005, 0.01)


class DatabaseStorage(Storage):
    """The table ``django_distlock_idempotency`` in one database."""

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]

    def claim(self, claim: KeyClaim, *, last: bool = True) -> Record | None:
        self._check_quota(claim)
        for _ in range(ATTEMPTS):
            inserted = self._insert(claim, PAUSES if last else ())
            if inserted is None:
                return self._committed_record(claim) if last else _in_flight_record(claim)
            if inserted:
                return None
            if (found := self.read(claim.scope)) is not None:
                return found
        raise LockNotAcquired("The key exists, but this transaction does not see it.")

    def _check_quota(self, claim: KeyClaim) -> None:
        """Raise TooManyKeys if the key is new and the principal has no room for it."""
        if claim.quota is None:
            return
        ((live, left),) = self._query(LIVE, claim.principal[:255], claim.quota)
        if live >= claim.quota and self.read(claim.scope, locking=False) is None:
            raise TooManyKeys(0 if left is None else left / 1_000_000)

    def _insert(self, claim: KeyClaim, pauses: Sequence[float]) -> bool | None:
        """Insert the record unless there is one. None: another transaction has the key."""
        vendor, inside = self.connection.vendor, self.connection.in_atomic_block
        if vendor == "postgresql" and inside:
            number = int.from_bytes(bytes.fromhex(claim.scope)[:8], "big", signed=True)
            ((got, made),) = self._query(TRY_INSERT, number, *_row(claim))
            return made if got else None
        for pause in (*pauses, None) if vendor == "mysql" else (None,):
            try:
                self._fail_if_locked(claim.scope)
                text = insert(self.connection, TABLE, COLUMNS, VALUES)
                return self._write(nowait(self.connection) + text, *_row(claim)) > 0
            except LockNotAcquired as error:
                if vendor == "sqlite" or not (error.__cause__ and contended(error.__cause__) == "locked"):
                    raise
            if pause is not None:
                time.sleep(pause)
        return None

    def _fail_if_locked(self, scope: str) -> None:
        """On Oracle's MySQL, whose INSERT always waits for a lock: fail at once if the row has one.

        At REPEATABLE READ the question would lock the gap between two keys until the view has ended, and other requests
        with it. There a copy waits.
        """
        connection: Any = self.connection
        if connection.vendor != "mysql" or connection.mysql_is_mariadb or not connection.in_atomic_block:
            return
        if (connection.isolation_level or "").startswith("read"):
            self._query(f"SELECT 1 FROM {TABLE} WHERE scope = %s FOR UPDATE NOWAIT", scope)  # noqa: S608

    def _committed_record(self, claim: KeyClaim) -> Record:
        """The committed record, while another transaction has the key; it may be a copy that is being answered.

        Read without a lock, which would wait. On MySQL the read takes the snapshot of this transaction, which then must
        not run the view.
        """
        found = self.read(claim.scope, locking=False)
        return _in_flight_record(claim) if found is None or found.expired or found.state == FAILED else found

    def read(self, scope: str, *, locking: bool = True) -> Record | None:
        lock = LOCKING.get(self.connection.vendor, "") if locking and self.connection.in_atomic_block else ""
        rows = self._query(present(self.connection) + READ + lock, scope)
        return record_of(rows[0]) if rows else None

    def renew(self, claim: KeyClaim) -> bool:
        if self._is_locked(claim.scope):
            found = self.read(claim.scope)
            return found is not None and (found.owner, found.state) == (claim.owner, CLAIMED)
        text = f"UPDATE {TABLE} SET expires_at = {{now}} + %s WHERE {MINE} AND state = 'claimed'"  # noqa: S608
        return self._change(text, micros(claim.claim_ttl), claim.scope, claim.owner) > 0

    def _is_locked(self, scope: str) -> bool:
        """Is the row locked by another transaction, or deleted?

        A request under ATOMIC_REQUESTS that has saved a phase locks its row. Each renewal that waited for the end of
        that transaction would occupy a connection. Not one transaction with the UPDATE: if the server were cut off
        between the two, the row would stay locked, and no other round could renew the claim.
        """
        if not self.connection.features.has_select_for_update_skip_locked or self.connection.in_atomic_block:
            return False
        return not self._query(f"SELECT 1 FROM {TABLE} WHERE scope = %s FOR UPDATE SKIP LOCKED", scope)  # noqa: S608

    def change(
        self, held: KeyClaim | Record, states: Sequence[str], ttl: float, expires: float | None = None, **values: Any
    ) -> bool:
        columns = stored(held.scope, values)
        assignments = [*(f"{name} = %s" for name in columns), "lives_until = {now} + %s"]
        parameters = [*columns.values(), micros(ttl)]
        if expires is not None:
            assignments.append("expires_at = {now} + %s")
            parameters.append(micros(expires))
        free = " AND (expires_at <= {now} OR state = 'failed')" if isinstance(held, Record) else ""
        text = f"UPDATE {TABLE} SET {', '.join(assignments)} WHERE {MINE} AND state IN ({marks(states)}){free}"  # noqa: S608
        return self._change(text, *parameters, held.scope, held.owner, *states) > 0

    def remove(self, held: KeyClaim, states: Sequence[str]) -> bool:
        text = f"DELETE FROM {TABLE} WHERE {MINE} AND state IN ({marks(states)})"  # noqa: S608
        return self._change(text, held.scope, held.owner, *states) > 0

    def free(self, scopes: Sequence[str]) -> int:
        """Delete keys without an answer, except those of running requests. Returns their number."""
        text = f"DELETE FROM {TABLE} WHERE scope IN ({marks(scopes)}) AND state <> 'completed' AND NOT {RUNNING}"  # noqa: S608
        return self._change(text, *scopes) if scopes else 0

    def forget(self, principal: str) -> int:
        """Delete the keys of a principal, except those of running requests. Returns their number."""
        return self._change(f"DELETE FROM {TABLE} WHERE principal = %s AND NOT {RUNNING}", principal)  # noqa: S608

    def purge(self, batch: int = 1000) -> int:
        """Delete at most ``batch`` records whose lifetime is over. Returns their number."""
        return delete(self.alias, TABLE, "scope", f"lives_until <= {{now}} AND NOT {RUNNING}", {}, batch)

    def _query(self, text: str, *parameters: Any) -> list[Any]:
        with self._cursor() as cursor:
            cursor.execute(text_for(self.alias, text), parameters)
            return list(cursor.fetchall())

    def _change(self, text: str, *parameters: Any) -> int:
        """Run a statement that compares with the rows that are committed now, as the other requests see them."""
        return self._write(present(self.connection) + text, *parameters)

    def _write(self, text: str, *parameters: Any) -> int:
        """The number of rows that a statement has changed."""
        with self._cursor() as cursor:
            cursor.execute(text_for(self.alias, text), parameters)
            return int(cursor.rowcount)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """A cursor, whose errors are raised as the exceptions of a storage."""
        try:
            with self.connection.cursor() as cursor:
                yield cursor
        except Error as error:
            if contended(error):
                raise LockNotAcquired("The table of idempotency keys is busy.") from error
            raise BackendUnavailable("The table of idempotency keys cannot be used.") from error


def _row(claim: KeyClaim) -> list[Any]:
    """The parameters of VALUES."""
    texts = [claim.scope, claim.owner, claim.fingerprint, claim.principal[:255], claim.method[:10], claim.route[:255]]
    return [*texts, micros(claim.claim_ttl), micros(claim.ttl)]


def _in_flight_record(claim: KeyClaim) -> Record:
    """A record for a key that another transaction has, whose data cannot be read yet: it says "in flight"."""
    return Record(scope=claim.scope, state=CLAIMED, owner="", fingerprint=claim.fingerprint)
