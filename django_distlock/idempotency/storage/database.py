"""Claims and answers in a table. Its unique index admits one claim; all times are by the clock of the database."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import Error, OperationalError, connections
from django.db.models import BigIntegerField, Case, Count, F, Min, Q, TextField, Value, When
from django.db.models.expressions import RawSQL

from django_distlock import BackendUnavailable, Lock, LockNotAcquired, advisory_lock
from django_distlock.idempotency.conf import config
from django_distlock.idempotency.records import CLAIMED, COMPLETED, FAILED, UNKNOWN, KeyClaim, Record, StoredResponse
from django_distlock.schema import NOW

from .base import Storage, TooManyKeys
from .encoding import decode_record, encode_answer, encode_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet

TABLE = "django_distlock_idempotency"
COLUMNS = "scope, state, owner, fingerprint, principal, method, route, phases, claimed_at, expires_at, lives_until"
VALUES = "%s, 'claimed', %s, %s, %s, %s, %s, '{{}}', {now}, {now} + %s, {now} + %s"
# The verb, the table of a SELECT that reads none, and the end of an INSERT that lets an existing row be.
INSERT = {
    "postgresql": ("INSERT", "", " ON CONFLICT DO NOTHING"),
    "mysql": ("INSERT IGNORE", " FROM DUAL", ""),
    "sqlite": ("INSERT", "", " ON CONFLICT DO NOTHING"),
}
# With a quota the row is inserted only while the principal has fewer unexpired keys. At most the quota is counted.
ROOM = (
    f"(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {TABLE} WHERE principal = %s AND lives_until > {{now}} "  # noqa: S608
    "LIMIT {quota}) live) < {quota}"
)
# An INSERT that meets an uncommitted row of the same key waits for that transaction. The advisory lock, in the same
# statement, answers at once; it ends with the transaction.
TRY_INSERT = f"""
WITH lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%s) AS got),
made AS (INSERT INTO {TABLE} ({COLUMNS}) SELECT {VALUES} FROM lock WHERE got{{room}} ON CONFLICT DO NOTHING RETURNING 1)
SELECT got, EXISTS (SELECT 1 FROM made) FROM lock
"""  # noqa: S608
READ = (
    f"SELECT scope, state, owner, fingerprint, expires_at <= {{now}}, facts, body, phases FROM {TABLE} WHERE scope = %s"  # noqa: S608
)
# At REPEATABLE READ of MySQL and MariaDB, a snapshot that is older than the commit of the other request hides its row.
LOCKING = {"mysql": " LOCK IN SHARE MODE"}
# With innodb_snapshot_isolation (on by default from MariaDB 11.6.2), a statement that meets a row newer than the
# snapshot fails with error 1020 and rolls back the transaction of the view. Keys are compared with committed rows:
# https://mariadb.com/docs/server/server-usage/storage-engines/innodb/innodb-system-variables
COMMITTED = "SET STATEMENT innodb_snapshot_isolation = OFF FOR "
# The first releases with the setting, by series. All later series have it.
HAVE_SETTING = {(10, 6): 18, (10, 11): 8, (11, 0): 6, (11, 1): 5, (11, 2): 4, (11, 4): 2}
# SQLSTATE and error numbers of PostgreSQL and MySQL: another transaction was first, try again.
CONTENTION = {"40001", "40P01", "55P03", 1020, 1205, 1213}
# Attempts for a key that is freed between the INSERT and the SELECT.
ATTEMPTS = 20


class DatabaseStorage(Storage):
    """The table ``django_distlock_idempotency`` in one database."""

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]

    def claim(self, claim: KeyClaim) -> Record | None:
        return self._claim(claim, self._insert)

    def claim_inside(self, claim: KeyClaim, *, last: bool = True) -> Record | None:
        """Claim within the caller's transaction, without a wait for another transaction that has the key.

        In that case return the committed record, or a record that only says "in flight". ``last``: the caller does not
        try again in this transaction.
        """
        vendor = self.connection.vendor
        if vendor == "mysql" and not _locked(claim.scope):
            return self._committed_record(claim) if last else _in_flight_record(claim)
        return self._claim(claim, self._try_insert if vendor == "postgresql" else self._insert)

    def _claim(self, claim: KeyClaim, insert: Callable[[KeyClaim], bool | None]) -> Record | None:
        for _ in range(ATTEMPTS):
            inserted = insert(claim)
            if inserted is None:
                return self._committed_record(claim)
            if inserted:
                return None
            if (found := self.read(claim.scope)) is not None:
                return found
            self._check_quota(claim)
        raise LockNotAcquired("The key exists, but this transaction does not see it.")

    def _insert(self, claim: KeyClaim) -> bool:
        verb, dual, end = INSERT[self.connection.vendor]
        source = f"VALUES ({VALUES})" if claim.quota is None else f"SELECT {VALUES}{dual} WHERE {ROOM}"
        return self._write(f"{verb} INTO {TABLE} ({COLUMNS}) {source}{end}", *_values(claim), quota=claim.quota)

    def _try_insert(self, claim: KeyClaim) -> bool | None:
        """Insert unless another transaction of PostgreSQL has the key: then None, at once."""
        room = "" if claim.quota is None else " AND " + self._sql(ROOM, quota=claim.quota)
        with self._cursor() as cursor:
            cursor.execute(self._sql(TRY_INSERT, room=room), [_number(claim.scope), *_values(claim)])
            got, made = cursor.fetchone()
        return bool(made) if got else None

    def _check_quota(self, claim: KeyClaim) -> None:
        """Raise TooManyKeys if the quota is the reason that nothing was inserted."""
        if claim.quota is None:
            return
        with self._queries() as now:
            found = self._live(claim, now).aggregate(live=Count("pk"), left=Min("lives_until") - now)
        if found["live"] >= claim.quota:
            raise TooManyKeys(found["left"] / 1_000_000)

    def _live(self, claim: KeyClaim, now: Any) -> QuerySet[Any]:
        """The unexpired keys of the principal, the first to end first; at most as many as its quota."""
        live = self._rows.filter(principal=claim.principal[:255], lives_until__gt=now)
        return live.order_by("lives_until")[: claim.quota]

    def _committed_record(self, claim: KeyClaim) -> Record:
        """The committed record, while another transaction has the key; it may be a copy that is being answered.

        Read without a lock, which would wait. On MySQL the read takes the snapshot of this transaction, which then must
        not run the view.
        """
        found = self.read(claim.scope, locking=False)
        return _in_flight_record(claim) if found is None or found.expired or found.state == FAILED else found

    def read(self, scope: str, *, locking: bool = True) -> Record | None:
        lock = LOCKING.get(self.connection.vendor, "") if locking and self.connection.in_atomic_block else ""
        with self._cursor() as cursor:
            cursor.execute(self._sql(READ) + lock, [scope])
            row = cursor.fetchone()
        return None if row is None else decode_record(row)

    def is_claimed_elsewhere(self, scope: str) -> bool:
        """Does another transaction, which has not committed, have the key?"""
        vendor = self.connection.vendor
        if vendor == "postgresql":
            with self._cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_number(scope)])
                return not cursor.fetchone()[0]
        if vendor != "mysql" or (lease := _lock(scope).try_acquire()) is None:
            return vendor == "mysql"
        lease.release()
        return False

    def take_over(self, record: Record, claim: KeyClaim) -> bool:
        with self._queries() as now:
            free = Q(expires_at__lte=now) | Q(state=FAILED)
            kept = When(~Q(state=COMPLETED) & Q(fingerprint=claim.fingerprint), then=F("phases"))
            rows = self._rows.filter(free, scope=record.scope, owner=record.owner, state=record.state)
            return bool(
                rows.update(
                    # first: it depends on the old values, and MySQL assigns from left to right
                    phases=Case(kept, default=Value("{}"), output_field=TextField()),
                    state=CLAIMED,
                    owner=claim.owner,
                    fingerprint=claim.fingerprint,
                    expires_at=now + micros(claim.claim_ttl),
                    lives_until=now + micros(claim.ttl),
                    status=None,
                    facts=None,
                    body=None,
                )
            )

    def hold(self, record: Record, ttl: float) -> bool:
        with self._queries() as now:
            rows = self._rows.filter(scope=record.scope, owner=record.owner, state=CLAIMED, expires_at__lte=now)
            return bool(rows.update(state=UNKNOWN, expires_at=now + micros(ttl), lives_until=now + micros(ttl)))

    def complete(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        return self._write(
            f"UPDATE {TABLE} SET state = 'completed', status = %s, facts = %s, body = %s, expires_at = {{now}} + %s, "  # noqa: S608
            "lives_until = {now} + %s WHERE scope = %s AND owner = %s AND state <> 'completed'",
            answer.status,
            *encode_answer(claim.scope, answer),
            micros(claim.ttl),
            micros(claim.ttl),
            claim.scope,
            claim.owner,
        )

    def add_body(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        return self._write(
            f"UPDATE {TABLE} SET facts = %s, body = %s WHERE scope = %s AND owner = %s AND state = 'completed'",  # noqa: S608
            *encode_answer(claim.scope, answer),
            claim.scope,
            claim.owner,
        )

    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        what = f"UPDATE {TABLE} SET state = 'failed'" if failed else f"DELETE FROM {TABLE}"  # noqa: S608
        return self._write(f"{what} WHERE scope = %s AND owner = %s AND state <> 'completed'", claim.scope, claim.owner)

    def renew(self, claim: KeyClaim) -> bool:
        if self._is_locked(claim.scope):
            found = self.read(claim.scope)
            return found is not None and (found.owner, found.state) == (claim.owner, CLAIMED)
        return self._write(
            f"UPDATE {TABLE} SET expires_at = {{now}} + %s WHERE scope = %s AND owner = %s AND state = 'claimed'",  # noqa: S608
            micros(claim.claim_ttl),
            claim.scope,
            claim.owner,
        )

    def _is_locked(self, scope: str) -> bool:
        """Is the row locked by another transaction, or deleted?

        A request under ATOMIC_REQUESTS that has saved a phase locks its row. Each renewal that waited for the end of
        that transaction would occupy a connection. Not one transaction with the UPDATE: if the server were cut off
        between the two, the row would stay locked, and no other round could renew the claim.
        """
        if not self.connection.features.has_select_for_update_skip_locked or self.connection.in_atomic_block:
            return False
        with self._cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {TABLE} WHERE scope = %s FOR UPDATE SKIP LOCKED", [scope])  # noqa: S608
            return cursor.fetchone() is None

    def save_phases(self, claim: KeyClaim, phases: str) -> bool:
        return self._write(
            f"UPDATE {TABLE} SET phases = %s WHERE scope = %s AND owner = %s",  # noqa: S608
            encode_phases(claim.scope, phases),
            claim.scope,
            claim.owner,
        )

    def close(self) -> None:
        self.connection.close()

    def free(self, scopes: Sequence[str]) -> int:
        """Delete keys without an answer, except those of running requests. Returns their number."""
        with self._queries() as now:
            return self._rows.filter(_runs_no_more(now), scope__in=scopes).exclude(state=COMPLETED).delete()[0]

    def forget(self, principal: str) -> int:
        """Delete the keys of a principal, except those of running requests. Returns their number."""
        with self._queries() as now:
            return self._rows.filter(_runs_no_more(now), principal=principal).delete()[0]

    def purge(self, older_than: float = 0, batch: int = 1000, batches: float = math.inf) -> int:
        """Delete the records that expired ``older_than`` seconds ago or earlier, in batches. Returns their number."""
        deleted = done = 0
        found = batch
        while found == batch and done < batches:
            found, gone = self._purge_batch(older_than, batch)
            deleted, done = deleted + gone, done + 1
        return deleted

    def _purge_batch(self, older_than: float, batch: int) -> tuple[int, int]:
        """Delete one batch. Returns how many records were found and how many of them were deleted."""
        with self._queries() as now:
            over = self._rows.filter(_runs_no_more(now), lives_until__lte=now - micros(older_than))
            scopes = list(over.order_by("lives_until").values_list("scope", flat=True)[:batch])
            return len(scopes), over.filter(scope__in=scopes).delete()[0] if scopes else 0

    @property
    def _rows(self) -> QuerySet[Any]:
        from django_distlock.models import IdempotencyRecord  # this package is imported before the models are

        return IdempotencyRecord.rows.using(self.alias)

    @contextmanager
    def _queries(self) -> Iterator[Any]:
        """For queries of the ORM, which take too long for each request; yields the time of the server."""
        prefix = committed(self.connection)

        def prefixed(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
            return execute(prefix + sql, *args)

        with translated_errors(), self.connection.execute_wrapper(prefixed):
            yield RawSQL(NOW[self.connection.vendor], (), output_field=BigIntegerField())  # noqa: S611 - a constant

    def _sql(self, text: str, **parts: Any) -> str:
        return committed(self.connection) + text.format(now=NOW[self.connection.vendor], **parts)

    def _write(self, text: str, *parameters: Any, **parts: Any) -> bool:
        with self._cursor() as cursor:
            cursor.execute(self._sql(text, **parts), parameters)
            return bool(cursor.rowcount > 0)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with translated_errors(), self.connection.cursor() as cursor:
            yield cursor


def committed(connection: BaseDatabaseWrapper) -> str:
    """The prefix of a statement on keys inside a transaction; empty if none is needed."""
    mysql: Any = connection
    if not connection.in_atomic_block or connection.vendor != "mysql" or not mysql.mysql_is_mariadb:
        return ""
    series, release = mysql.mysql_version[:2], mysql.mysql_version[2]
    has = series > max(HAVE_SETTING) or release >= HAVE_SETTING.get(series, release + 1)
    return COMMITTED if has else ""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise the exceptions of a storage for errors of the database."""
    try:
        yield
    except Error as error:
        if _contended(error):
            raise LockNotAcquired("The table of idempotency keys is busy.") from error
        raise BackendUnavailable("The table of idempotency keys cannot be used.") from error


def _contended(error: Error) -> bool:
    cause = error.__cause__
    codes = {getattr(cause, "sqlstate", None), *(error.args[:1])}
    return bool(codes & CONTENTION) or (isinstance(error, OperationalError) and "database is locked" in str(error))


def _number(scope: str) -> int:
    """The key of PostgreSQL's advisory lock."""
    return int.from_bytes(bytes.fromhex(scope)[:8], "big", signed=True)


def _lock(scope: str) -> Lock:
    return advisory_lock(f"idempotency:{scope}", using=config().lock)


def _locked(scope: str) -> bool:
    """Acquire the named lock until the end of the transaction; False if another transaction has it.

    True also if the lock server is down: the lock only avoids that the INSERT waits for the other transaction.
    """
    try:
        return _lock(scope).try_acquire() is not None
    except BackendUnavailable:
        return True


def _values(claim: KeyClaim) -> Iterable[Any]:
    """The parameters of VALUES, and of ROOM if there is a quota."""
    principal = claim.principal[:255]
    return (
        *(claim.scope, claim.owner, claim.fingerprint, principal, claim.method[:10], claim.route[:255]),
        *(micros(claim.claim_ttl), micros(claim.ttl)),
        *(() if claim.quota is None else (principal,)),
    )


def _runs_no_more(now: Any) -> Q:
    """The condition that no request runs: a view may run longer than the lifetime of its record."""
    return ~Q(state=CLAIMED) | Q(expires_at__lte=now)


def _in_flight_record(claim: KeyClaim) -> Record:
    """A record for a key that another transaction has, whose data cannot be read yet: it says "in flight"."""
    return Record(scope=claim.scope, state=CLAIMED, owner="", fingerprint=claim.fingerprint)


def micros(seconds: float) -> int:
    return int(seconds * 1_000_000)
