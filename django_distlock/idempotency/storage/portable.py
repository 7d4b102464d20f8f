"""Claims and answers in a table of Oracle, SQL Server, CockroachDB or another database, by Django's own queries.

The ORM has no "insert unless it exists", so a duplicate key is an error inside a savepoint. It has no portable
arithmetic with times, so the time of the server is read first. A row then seems younger than it is, never older.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.db.models.sql import Query

from django_distlock.idempotency.records import CLAIMED, COMPLETED, FAILED, KeyClaim, Record, StoredResponse
from django_distlock.models import IdempotencyRecord

from .database import DatabaseStorage, micros, translated_errors
from .encoding import decode_record, encode_answer, encode_phases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import QuerySet

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
READ = ("scope", "state", "owner", "fingerprint", "expires_at", "facts", "body", "phases")


class PortableStorage(DatabaseStorage):
    """The table by portable queries: twice the statements, since each first reads the time of the server."""

    def _insert(self, claim: KeyClaim) -> bool:
        with self._queries() as now:
            if claim.quota is not None and self._live(claim, now).count() >= claim.quota:
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

    def read(self, scope: str, *, locking: bool = True) -> Record | None:
        rows = self._rows
        if locking and self.connection.in_atomic_block:  # the snapshot may hide the row of the other request
            rows = rows.select_for_update()
        with self._queries() as now:
            row = rows.filter(scope=scope).values_list(*READ).first()
        return None if row is None else decode_record([*row[:4], row[4] <= now, *row[5:]])

    def complete(self, claim: KeyClaim, answer: StoredResponse) -> bool:
        with self._queries() as now:
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
        with translated_errors():
            rows = self._mine(claim).filter(state=COMPLETED)
            facts, body = encode_answer(claim.scope, answer)
            return bool(rows.update(facts=facts, body=body))

    def release(self, claim: KeyClaim, *, failed: bool = False) -> bool:
        with translated_errors():
            rows = self._mine(claim).exclude(state=COMPLETED)
            return bool(rows.update(state=FAILED) if failed else rows.delete()[0])

    def renew(self, claim: KeyClaim) -> bool:
        mine = self._mine(claim).filter(state=CLAIMED)
        # a request that has saved a phase in its transaction locks the row until that ends
        may_be_locked = self.connection.features.has_select_for_update_skip_locked
        with self._queries() as now, transaction.atomic(using=self.alias):
            if may_be_locked and mine.select_for_update(skip_locked=True).first() is None:
                return mine.exists()
            return bool(mine.update(expires_at=now + micros(claim.claim_ttl)))

    def save_phases(self, claim: KeyClaim, phases: str) -> bool:
        with translated_errors():
            return bool(self._mine(claim).update(phases=encode_phases(claim.scope, phases)))

    def _mine(self, claim: KeyClaim) -> QuerySet[IdempotencyRecord]:
        return self._rows.filter(scope=claim.scope, owner=claim.owner)

    @contextmanager
    def _queries(self) -> Iterator[int]:
        query = Query(None)
        query.add_annotation(Now(), "now", select=True)
        with translated_errors():
            compiler: Any = query.get_compiler(using=self.alias)
            now: datetime = next(iter(compiler.results_iter()))[0]
            yield ((now if now.tzinfo else now.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
