"""Claims and answers in a table. The unique index is the guarantee; every time is by the clock of the database."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import Error, OperationalError, connections

from django_distlock import BackendUnavailable, Lock, LockNotAcquired, advisory_lock
from django_distlock.idempotency.conf import config
from django_distlock.idempotency.records import CLAIMED, FAILED, Answer, Claim, Record

from .base import Storage, TooManyKeys
from .encoding import decode_record, encode_answer, encode_phases

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

TABLE = "django_distlock_idempotency"
# Microseconds since 1970, so that no time zone matters; in a long transaction too the time of now, not of its start.
NOW = {
    "postgresql": "(extract(epoch from clock_timestamp()) * 1000000)::bigint",
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}
COLUMNS = "scope, state, owner, fingerprint, principal, method, route, phases, claimed_at, expires_at, lives_until"
VALUES = "%s, 'claimed', %s, %s, %s, %s, %s, '{{}}', {now}, {now} + %s, {now} + %s"
INSERT = {
    "postgresql": f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({VALUES}) ON CONFLICT DO NOTHING",  # noqa: S608
    "mysql": f"INSERT IGNORE INTO {TABLE} ({COLUMNS}) VALUES ({VALUES})",  # noqa: S608
    "sqlite": f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({VALUES}) ON CONFLICT DO NOTHING",  # noqa: S608
}
# With a quota the row is made only while the principal has fewer keys that live. Of more no more are counted.
ROOM = (
    f"(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {TABLE} WHERE principal = %s AND lives_until > {{now}} "  # noqa: S608
    "LIMIT {quota}) live) < {quota}"
)
INSERT_IF_ROOM = {
    "postgresql": f"INSERT INTO {TABLE} ({COLUMNS}) SELECT {VALUES} WHERE {ROOM} ON CONFLICT DO NOTHING",
    "mysql": f"INSERT IGNORE INTO {TABLE} ({COLUMNS}) SELECT {VALUES} FROM DUAL WHERE {ROOM}",  # noqa: S608
    "sqlite": f"INSERT INTO {TABLE} ({COLUMNS}) SELECT {VALUES} WHERE {ROOM} ON CONFLICT DO NOTHING",
}
LIVE = f"""
SELECT COUNT(*), MIN(lives_until) - {{now}} FROM (
    SELECT lives_until FROM {TABLE} WHERE principal = %s AND lives_until > {{now}} ORDER BY lives_until LIMIT {{quota}}
) live
"""  # noqa: S608
# An INSERT that meets an uncommitted row of the same key waits for that transaction. The lock answers at once, and is
# freed by the end of the transaction whatever that is; both in one statement.
TRY_INSERT = f"""
WITH lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(%s) AS got),
made AS (INSERT INTO {TABLE} ({COLUMNS}) SELECT {VALUES} FROM lock WHERE got{{room}} ON CONFLICT DO NOTHING RETURNING 1)
SELECT got, EXISTS (SELECT 1 FROM made) FROM lock
"""  # noqa: S608
READ = (
    f"SELECT scope, state, owner, fingerprint, expires_at <= {{now}}, facts, body, phases FROM {TABLE} WHERE scope = %s"  # noqa: S608
)
# A snapshot that is older than the winner's commit does not show it: MySQL and MariaDB at REPEATABLE READ.
LOCKING = {"mysql": " LOCK IN SHARE MODE"}
# Where innodb_snapshot_isolation is on (the default from MariaDB 11.6.2), a row that another transaction has written
# after the snapshot of this one ends it with error 1020, and all that the view has written. Keys are compared with what
# is committed: https://mariadb.com/docs/server/server-usage/storage-engines/innodb/innodb-system-variables
COMMITTED = "SET STATEMENT innodb_snapshot_isolation = OFF FOR "
# The releases that have the setting, by series; all series from the last one on.
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

    def claim(self, claim: Claim) -> Record | None:
        for _ in range(ATTEMPTS):
            if self._insert(claim):
                return None
            if (found := self.read(claim.scope)) is not None:
                return found
            self._check_quota(claim)
        raise LockNotAcquired("The key is there, and this transaction does not see it.")

    def _insert(self, claim: Claim) -> bool:
        if claim.quota is None:
            return self._write(INSERT[self.connection.vendor], *_values(claim))
        return self._write(INSERT_IF_ROOM[self.connection.vendor], *_values(claim), *_whose(claim), quota=claim.quota)

    def _check_quota(self, claim: Claim) -> None:
        """Nothing was inserted, and nothing is there: was it for want of room?"""
        if claim.quota is None:
            return
        with self._cursor() as cursor:
            cursor.execute(self._sql(LIVE, quota=claim.quota), _whose(claim))
            live, left = cursor.fetchone()
        if live >= claim.quota:
            raise TooManyKeys(left / 1_000_000)

    def claim_inside(self, claim: Claim, *, last: bool = True) -> Record | None:
        """:meth:`claim` within the caller's transaction, at once: if another transaction is at it, what is there from
        before, or a record that says no more than that. ``last``: who asks does not ask again in this transaction."""
        vendor = self.connection.vendor
        if vendor == "mysql" and not _locked(claim.scope):
            return self._behind(claim) if last else _at_work(claim)
        if vendor != "postgresql":
            return self.claim(claim)
        for _ in range(ATTEMPTS):
            with self._cursor() as cursor:
                room = "" if claim.quota is None else " AND " + self._sql(ROOM, quota=claim.quota)
                cursor.execute(
                    self._sql(TRY_INSERT, room=room), [_number(claim.scope), *_values(claim), *_whose(claim)]
                )
                got, made = cursor.fetchone()
            if not got:
                return self._behind(claim)
            if made:
                return None
            if (found := self.read(claim.scope)) is not None:
                return found
            self._check_quota(claim)
        raise LockNotAcquired("The key is there, and this transaction does not see it.")

    def _behind(self, claim: Claim) -> Record:
        """The other one may be a copy that is being answered, too. Read without a lock, which would wait; on MySQL
        that takes the snapshot of a transaction, which then must not run the view."""
        found = self.read(claim.scope, locking=False)
        return _at_work(claim) if found is None or found.expired or found.state == FAILED else found

    def read(self, scope: str, *, locking: bool = True) -> Record | None:
        lock = LOCKING.get(self.connection.vendor, "") if locking and self.connection.in_atomic_block else ""
        with self._cursor() as cursor:
            cursor.execute(self._sql(READ) + lock, [scope])
            row = cursor.fetchone()
        return None if row is None else read_row(row)

    def is_running(self, scope: str) -> bool:
        """Does a transaction have the key that no other sees yet?"""
        vendor = self.connection.vendor
        if vendor == "postgresql":
            with self._cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_number(scope)])
                return not cursor.fetchone()[0]
        if vendor != "mysql" or (lease := _lock(scope).try_acquire()) is None:
            return vendor == "mysql"
        lease.release()
        return False

    def take_over(self, record: Record, claim: Claim) -> bool:
        return self._write(
            # the phases come first: MySQL evaluates from left to right, and they depend on what was there
            f"UPDATE {TABLE} SET phases = CASE WHEN state = 'completed' OR fingerprint <> %s "  # noqa: S608
            "THEN '{{}}' ELSE phases END, state = 'claimed', owner = %s, fingerprint = %s, expires_at = {now} + %s, "
            "lives_until = {now} + %s, status = NULL, facts = NULL, body = NULL WHERE scope = %s AND owner = %s "
            "AND state = %s AND (expires_at <= {now} OR state = 'failed')",
            claim.fingerprint,
            claim.owner,
            claim.fingerprint,
            micros(claim.claim_ttl),
            micros(claim.ttl),
            record.scope,
            record.owner,
            record.state,
        )

    def hold(self, record: Record, ttl: float) -> bool:
        return self._write(
            f"UPDATE {TABLE} SET state = 'unknown', expires_at = {{now}} + %s, lives_until = {{now}} + %s "  # noqa: S608
            "WHERE scope = %s AND owner = %s AND state = 'claimed' AND expires_at <= {now}",
            micros(ttl),
            micros(ttl),
            record.scope,
            record.owner,
        )

    def complete(self, claim: Claim, answer: Answer) -> bool:
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

    def add_body(self, claim: Claim, answer: Answer) -> bool:
        return self._write(
            f"UPDATE {TABLE} SET facts = %s, body = %s WHERE scope = %s AND owner = %s AND state = 'completed'",  # noqa: S608
            *encode_answer(claim.scope, answer),
            claim.scope,
            claim.owner,
        )

    def release(self, claim: Claim, *, failed: bool = False) -> bool:
        what = f"UPDATE {TABLE} SET state = 'failed'" if failed else f"DELETE FROM {TABLE}"  # noqa: S608
        return self._write(f"{what} WHERE scope = %s AND owner = %s AND state <> 'completed'", claim.scope, claim.owner)

    def renew(self, claim: Claim) -> bool:
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
        """Has another transaction the row, or is it gone? A request under ATOMIC_REQUESTS that has saved a phase has
        its own: who waited for its end would tie up a connection for each renewal."""
        if not self.connection.features.has_select_for_update_skip_locked or self.connection.in_atomic_block:
            return False
        with self._cursor() as cursor:
            cursor.execute(f"SELECT 1 FROM {TABLE} WHERE scope = %s FOR UPDATE SKIP LOCKED", [scope])  # noqa: S608
            return cursor.fetchone() is None

    def save_phases(self, claim: Claim, phases: str) -> bool:
        return self._write(
            f"UPDATE {TABLE} SET phases = %s WHERE scope = %s AND owner = %s",  # noqa: S608
            encode_phases(claim.scope, phases),
            claim.scope,
            claim.owner,
        )

    def close(self) -> None:
        self.connection.close()

    def free(self, scopes: Sequence[str]) -> int:
        """Forget keys whose request has not been answered: an operator knows that nothing runs. How many."""
        marks = ", ".join(["%s"] * len(scopes))
        with self._cursor() as cursor:
            delete = f"DELETE FROM {TABLE} WHERE scope IN ({marks}) AND state <> 'completed'"  # noqa: S608
            cursor.execute(self._sql(delete), list(scopes))
            return int(cursor.rowcount)

    def forget(self, principal: str) -> int:
        """Delete what is stored of a principal, but for what runs now. How many."""
        text = f"DELETE FROM {TABLE} WHERE principal = %s AND (state <> 'claimed' OR expires_at <= {{now}})"  # noqa: S608
        with self._cursor() as cursor:
            cursor.execute(self._sql(text), [principal])
            return int(cursor.rowcount)

    def purge(self, older_than: float = 0, batch: int = 1000, batches: float = math.inf) -> int:
        """Delete what ended to live ``older_than`` seconds ago, in so many batches at most. How many."""
        deleted = done = 0
        found = batch
        while found == batch and done < batches:
            found, gone = self._purge_batch(older_than, batch)
            deleted, done = deleted + gone, done + 1
        return deleted

    def _purge_batch(self, older_than: float, batch: int) -> tuple[int, int]:
        """How many were found, at most ``batch``, and how many of them deleted."""
        over = (
            "lives_until <= {now} - %s AND (state <> 'claimed' OR expires_at <= {now})"  # a view may outlast its record
        )
        find = f"SELECT scope FROM {TABLE} WHERE {over} ORDER BY lives_until LIMIT {batch:d}"  # noqa: S608
        with self._cursor() as cursor:
            cursor.execute(self._sql(find), [micros(older_than)])
            scopes = [scope for (scope,) in cursor.fetchall()]
            if not scopes:
                return 0, 0
            marks = ", ".join(["%s"] * len(scopes))
            delete = f"DELETE FROM {TABLE} WHERE scope IN ({marks}) AND {over}"  # noqa: S608
            cursor.execute(self._sql(delete), [*scopes, micros(older_than)])
            return len(scopes), int(cursor.rowcount)

    def _sql(self, text: str, **parts: Any) -> str:
        return committed(self.connection) + text.format(now=NOW[self.connection.vendor], **parts)

    def _write(self, text: str, *parameters: Any, **parts: Any) -> bool:
        with self._cursor() as cursor:
            cursor.execute(self._sql(text, **parts), parameters)
            return bool(cursor.rowcount > 0)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        try:
            with self.connection.cursor() as cursor:
                yield cursor
        except Error as error:
            raise unavailable(error) from error


def committed(connection: BaseDatabaseWrapper) -> str:
    """What goes before a statement on keys inside a transaction; empty where nothing has to."""
    mysql: Any = connection
    if not connection.in_atomic_block or connection.vendor != "mysql" or not mysql.mysql_is_mariadb:
        return ""
    series, release = mysql.mysql_version[:2], mysql.mysql_version[2]
    has = series > max(HAVE_SETTING) or release >= HAVE_SETTING.get(series, release + 1)
    return COMMITTED if has else ""


def unavailable(error: Error) -> LockNotAcquired | BackendUnavailable:
    """What a storage raises for an error of the database."""
    if _contended(error):
        return LockNotAcquired("The table of idempotency keys is busy.")
    return BackendUnavailable("The table of idempotency keys cannot be used.")


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
    """Is the lock ours now? It is given back by the end of the transaction. Where it cannot be had the INSERT waits for
    whoever is first: the lock only makes the answer come at once."""
    try:
        return _lock(scope).try_acquire() is not None
    except BackendUnavailable:
        return True


def _values(claim: Claim) -> Iterable[Any]:
    return (
        *(claim.scope, claim.owner, claim.fingerprint, claim.principal[:255], claim.method[:10], claim.route[:255]),
        *(micros(claim.claim_ttl), micros(claim.ttl)),
    )


def _whose(claim: Claim) -> list[str]:
    """The parameter of ROOM; none without a quota."""
    return [] if claim.quota is None else [claim.principal[:255]]


def _at_work(claim: Claim) -> Record:
    """Somebody has the key, and nobody sees yet with which data."""
    return Record(scope=claim.scope, state=CLAIMED, owner="", fingerprint=claim.fingerprint)


def micros(seconds: float) -> int:
    return int(seconds * 1_000_000)


def read_row(row: Sequence[Any]) -> Record:
    """The record in a row."""
    scope, state, owner, fingerprint, expired, facts, body, phases = row
    return decode_record(
        scope,
        state,
        owner,
        fingerprint,
        expired=bool(expired),
        facts=facts,
        body=None if body is None else bytes(body),
        phases=phases,
    )
