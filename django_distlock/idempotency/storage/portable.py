"""Claims and answers in a table of Oracle, SQL Server, CockroachDB or another database, by Django's own queries.

The ORM has no "insert unless it exists", so a duplicate key is an error inside a savepoint. It has no portable
arithmetic with times, so the time of the server is read first. A row then seems younger than it is, never older.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import Error, IntegrityError, transaction
from django.db.models import Case, F, Q, TextField, Value, When
from django.db.models.functions import Now
from django.db.models.sql import Query

from django_distlock.idempotency.records import CLAIMED, COMPLETED, FAILED, UNKNOWN, KeyClaim, Record, StoredResponse
from django_distlock.models import IdempotencyRecord

from .base import TooManyKeys
from .database import DatabaseStorage, micros, read_row, unavailable
from .encoding import encode_answer, encode_phases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.db.models import QuerySet

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
READ = ("scope", "state", "owner", "fingerprint", "expires_at", "facts", "body", "phases")


class PortableStorage(DatabaseStorage):
    """The table by portable queries: twice the statements, since each first reads the time of the server."""

    def claim_inside(self, claim: KeyClaim, *, last: bool = True) -> Record | None:
        """Claim within a transaction. The INSERT waits until another transaction with the key ends, as on SQLite."""
        return self.claim(claim)

    def _insert(self, claim: KeyClaim) -> bool:
        with self._server_time() as now:
            if claim.quota is not None and len(self._ends(claim, now)) >= claim.quota:
                return False
            row = IdempotencyRecord(
                scope=claim.scope,
                state=CLAIMED,
                owner=claim.owner,
                fingerprint=claim.fingerprint,
                principal=claim.principal[:255],
                method=claim.method[:10],
                route=claim.route[:255],
                phases="{}",
                claimed_at=now,
                expires_at=now + micros(claim.claim_ttl),
                lives_until=now + micros(claim.ttl),
            )
            try:
                with transaction.atomic(using=self.alias):
                    self._rows.bulk_create([row])
            except IntegrityError:
                return False
        return True

    def _check_quota(self, claim: KeyClaim) -> None:
        if claim.quota is not None:
            with self._server_time() as now:
                ends = self._ends(claim, now)
            if len(ends) >= claim.quota:
                raise TooManyKeys((ends[0] - now) / 1_000_000)

    def _ends(self, claim: KeyClaim, now: int) -> list[int]:
        """When the unexpired keys of this principal end: the first ones, at most as many as its quota."""
        live = self._rows.filter(principal=claim.principal[:255], lives_until__gt=now).order_by("lives_until")
        return list(live.values_list("lives_until", flat=True)[: claim.quota])

    def read(self, scope: str, *, locking: bool = True) -> Record | None:
        rows = self._rows
        if locking and self.connection.in_atomic_block:  # the snapshot may hide the row of the other request
            rows = rows.select_for_update()
        with self._server_time() as now:
            row = rows.filter(scope=scope).values_list(*READ).first()
        return None if row is None else read_row([*row[:4], row[4] <= now, *row[5:]])

    def is_claimed_elsewhere(self, scope: str) -> bool:
        """False: a copy waits for the transaction that has the key, and needs no waiting page."""
        return False

    def take_over(self, record: Record, claim: KeyClaim) -> bool:
        with self._server_time() as now:
            free = Q(expires_at__lte=now) | Q(state=FAILED)
            kept = When(~Q(state=COMPLETED) & Q(fingerprint=claim.fingerprint), then=F("phases"))
            rows = self._rows.filter(free, scope=record.scope, owner=record.owner, state=record.state)
            return bool(
                rows.update(
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
        with self._server_time() as now:
            rows = self._rows.filter(scope=record.scope, owner=record.owner, state=CLAIMED, expires_at__lte=now)
            return bool(rows.update(state=UNKNOWN, expires_at=now + micros(ttl), lives_until=now + micros(ttl)))

    def complete(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        with self._server_time() as now:
            until = now + micros(claim.ttl)
            facts, body = encode_answer(claim.scope, answer)
            return bool(
                self._mine(claim)
                .exclude(state=COMPLETED)
                .update(
                    state=COMPLETED,
                    status=answer.status,
                    facts=facts,
                    body=body,
                    expires_at=until,
                    lives_until=until,
                )
            )

    def add_body(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        with self._translated_errors():
            rows = self._mine(claim).filter(state=COMPLETED)
            facts, body = encode_answer(claim.scope, answer)
            return bool(rows.update(facts=facts, body=body))

    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        with self._translated_errors():
            rows = self._mine(claim).exclude(state=COMPLETED)
            return bool(rows.update(state=FAILED) if failed else rows.delete()[0])

    def renew(self, claim: KeyClaim) -> bool:
        mine = self._mine(claim).filter(state=CLAIMED)
        # a request that has saved a phase in its transaction locks the row until that ends
        may_be_locked = self.connection.features.has_select_for_update_skip_locked
        with self._server_time() as now, transaction.atomic(using=self.alias):
            if may_be_locked and mine.select_for_update(skip_locked=True).first() is None:
                return mine.exists()
            return bool(mine.update(expires_at=now + micros(claim.claim_ttl)))

    def save_phases(self, claim: KeyClaim, phases: str) -> bool:
        with self._translated_errors():
            return bool(self._mine(claim).update(phases=encode_phases(claim.scope, phases)))

    def free(self, scopes: Sequence[str]) -> int:
        with self._translated_errors():
            return self._rows.filter(scope__in=scopes).exclude(state=COMPLETED).delete()[0]

    def forget(self, principal: str) -> int:
        with self._server_time() as now:
            return self._rows.filter(_runs_no_more(now), principal=principal).delete()[0]

    def _purge_batch(self, older_than: float, batch: int) -> tuple[int, int]:
        with self._server_time() as now:
            over = self._rows.filter(_runs_no_more(now), lives_until__lte=now - micros(older_than))
            scopes = list(over.order_by("lives_until").values_list("scope", flat=True)[:batch])
            return len(scopes), over.filter(scope__in=scopes).delete()[0] if scopes else 0

    @property
    def _rows(self) -> QuerySet[IdempotencyRecord]:
        return IdempotencyRecord.rows.using(self.alias)

    def _mine(self, claim: KeyClaim) -> QuerySet[IdempotencyRecord]:
        return self._rows.filter(scope=claim.scope, owner=claim.owner)

    @contextmanager
    def _server_time(self) -> Iterator[int]:
        """The time of the server, in microseconds since 1970."""
        query = Query(None)
        query.add_annotation(Now(), "now", select=True)
        with self._translated_errors():
            compiler: Any = query.get_compiler(using=self.alias)
            now: datetime = next(iter(compiler.results_iter()))[0]
            yield ((now if now.tzinfo else now.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except Error as error:
            raise unavailable(error) from error


def _runs_no_more(now: int) -> Q:
    """The condition that no request runs: a view may run longer than the lifetime of its record."""
    return ~Q(state=CLAIMED) | Q(expires_at__lte=now)
