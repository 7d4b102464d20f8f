"""PostgreSQL's advisory locks (https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS).

Outside a transaction a lock belongs to a dedicated session; inside ``atomic()`` it is taken on the caller's own
connection and dies with the transaction it protects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock.backends.sessions.backend import SessionLockBackend
from django_distlock.exceptions import UnsupportedOperation

from . import doctor, introspection

try:
    from .session import PostgresSession, open_session
    from .transaction import TransactionLocks
except ImportError as error:
    raise ImproperlyConfigured(
        "The PostgreSQL lock backend needs psycopg 3: pip install 'django-distlock[postgres]'."
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.backends.sessions.reply import Reply
    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Finding, Grant, LockInfo


class AdvisoryBackend(SessionLockBackend[PostgresSession]):
    """OPTIONS: ``database`` (the alias whose transaction counts), ``session_database`` (the alias whose parameters the
    dedicated sessions use; a direct one behind a pooler), ``wait_sessions`` (default 8)."""

    vendor, products = "postgresql", "PostgreSQL"
    not_allowed = frozenset({introspection.INSUFFICIENT_PRIVILEGE})
    needs_to_break = (
        "Grant it pg_signal_backend, or membership in the other role; a superuser's session only a superuser may end."
    )
    supports_shared = True
    supports_transaction_scope = True

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._transactions = TransactionLocks(alias, self._busy)

    # A claim in a transaction is on no lock session, so undo() finds nothing: the end of the transaction frees it.

    def _connect(self, waits: bool) -> PostgresSession:
        return open_session(self.alias, self.session_database, waits)

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        if claim.scope == "transaction":
            return self._transactions.acquire(connections[self.database], claim, wait)
        return super().try_acquire(claim, wait)

    def release(self, grant: Grant, reply: Reply | None = None) -> bool:
        # the end of its transaction frees it
        return True if grant.claim.scope == "transaction" else super().release(grant, reply)

    def release_again(self, grant: Grant) -> bool:
        return True if grant.claim.scope == "transaction" else super().release_again(grant)

    def verify(self, grant: Grant) -> bool:
        if grant.claim.scope != "transaction":
            return super().verify(grant)
        if grant.session.connection is connections[self.database]:
            # PostgreSQL counts it once more, which changes nothing: the end of the transaction frees all of it
            return self.try_acquire(grant.claim._replace(answer_by=0.0)) is not None
        return self.look(grant)  # asked by another thread, and the connection is its owner's

    def in_doubt(self, grant: Grant) -> bool:
        # the error has freed the locks of the transaction, except those from before a savepoint
        return grant.claim.scope == "transaction" and grant.session.aborted

    def still_held(self, connection: BaseDatabaseWrapper, keys: Iterable[LockKey]) -> set[LockKey]:
        """Those of ``keys`` that the transaction of ``connection`` holds."""
        return self._transactions.still_held(connection, keys)

    # for operators

    def listed_as(self, key: LockKey) -> str:
        return str(key.number)

    def server_session(self, grant: Grant) -> int:
        if grant.claim.scope != "transaction":
            return super().server_session(grant)
        raw = grant.session.raw
        return 0 if raw.closed else int(raw.info.backend_pid)

    def inspect(self) -> Iterable[LockInfo]:
        # described afterwards: the time of the statements is for the server
        return introspection.listed(self.alias, *self._ask_beside(introspection.rows))

    def _held_statement(self, keys: Iterable[str]) -> bytes:
        return introspection.HELD.replace("{keys}", ", ".join(keys)).encode()

    def diagnose(self) -> Iterable[Finding]:
        yield from super().diagnose()
        yield from doctor.findings(self._ask, self.wait_sessions)

    def break_lock(self, info: LockInfo) -> bool:
        if info.holder == introspection.PREPARED:
            raise UnsupportedOperation(
                f"The lock {info.key} of alias {self.alias!r} belongs to a prepared transaction "
                "(pg_prepared_xacts), which has no session to be ended. COMMIT PREPARED or ROLLBACK PREPARED ends it."
            )
        return super().break_lock(info)

    def _end(self, info: LockInfo, connection: BaseDatabaseWrapper) -> bool:
        return introspection.end(info, connection)
