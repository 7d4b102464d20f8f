"""PostgreSQL's advisory locks (https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS).

Outside a transaction a lock belongs to a dedicated session; inside ``atomic()`` it is taken on the caller's own
connection and dies with the transaction it protects.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock.backends.sessions.backend import SessionLockBackend
from django_distlock.backends.sessions.session import SessionDead, unavailable
from django_distlock.concurrency.flow import run
from django_distlock.exceptions import BackendUnavailable, UnsupportedOperation

from . import doctor, introspection

try:
    from .connect import open_session
    from .session import PostgresSession
    from .transaction import TransactionLocks
except ImportError as error:
    raise ImproperlyConfigured(
        "The PostgreSQL lock backend needs psycopg 3: pip install 'django-distlock[postgres]'."
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Finding, Grant, LockInfo


class AdvisoryBackend(SessionLockBackend[PostgresSession]):
    """OPTIONS: ``database`` (the alias whose transaction counts), ``session_database`` (the alias whose parameters the
    dedicated sessions use; a direct one behind a pooler), ``wait_sessions`` (default 8)."""

    supports_shared = True
    supports_transaction_scope = True

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._transactions = TransactionLocks(alias, self.session_database, self._busy)

    async def _open(self, waits: bool, until: float) -> PostgresSession:
        connection = connections[self.session_database]
        if connection.vendor != "postgresql":
            raise ImproperlyConfigured(
                f"DISTLOCK[{self.alias!r}]: the database {self.session_database!r} is {connection.vendor}, "
                "not PostgreSQL."
            )
        try:
            return await open_session(self.alias, connection.get_connection_params(), waits, until)
        except SessionDead as error:
            raise unavailable(self.alias, error) from error

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        if claim.scope == "transaction":
            if asyncio._get_running_loop() is None:
                return self._transactions.acquire(connections[self.database], claim, wait)
            # DJANGO_ALLOW_ASYNC_UNSAFE: the transaction may be on a connection of another thread
            claim = claim._replace(scope="session")
        return super().try_acquire(claim, wait)

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        if claim.scope == "transaction":  # Django's connections are not for tasks
            claim = claim._replace(scope="session")
        return await super().atry_acquire(claim, wait)

    def release(self, grant: Grant) -> bool:
        # the end of its transaction frees it
        return True if grant.claim.scope == "transaction" else super().release(grant)

    def release_again(self, grant: Grant) -> bool:
        return True if grant.claim.scope == "transaction" else super().release_again(grant)

    async def arelease(self, grant: Grant) -> bool:
        if grant.claim.scope == "transaction":
            return True
        return await super().arelease(grant)

    def verify(self, grant: Grant) -> bool:
        if grant.claim.scope != "transaction":
            return run(self._verify(grant))
        if grant.session.connection is connections[self.database]:
            return self.try_acquire(grant.claim._replace(answer_by=0.0)) is not None
        return self.look(grant)  # asked by another thread, and the connection is its owner's

    async def averify(self, grant: Grant) -> bool:
        return self.look(grant) if grant.claim.scope == "transaction" else await self._verify(grant)

    def in_doubt(self, grant: Grant) -> bool:
        # the error has freed the locks of the transaction, except those from before a savepoint
        return grant.claim.scope == "transaction" and grant.session.aborted

    def still_held(self, connection: BaseDatabaseWrapper, keys: Iterable[LockKey]) -> set[LockKey]:
        """Those of ``keys`` that the transaction of ``connection`` holds."""
        return self._transactions.still_held(connection, keys)

    def after_fork(self) -> None:
        super().after_fork()
        self._transactions.after_fork()

    # for operators

    def listed_as(self, key: LockKey) -> str:
        return str(key.number)

    def server_session(self, grant: Grant) -> int:
        if grant.claim.scope != "transaction":
            return super().server_session(grant)
        raw = grant.session.raw
        return 0 if raw.closed else int(raw.info.backend_pid)

    def inspect(self) -> Iterable[LockInfo]:
        return self._ask_beside(partial(introspection.listed, self.alias))

    def _held_statement(self, keys: Iterable[str]) -> bytes:
        return introspection.HELD.replace("{keys}", ", ".join(keys)).encode()

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self._ask, int(self.options.get("wait_sessions", 8)))

    def break_lock(self, info: LockInfo) -> bool:
        if info.holder == introspection.PREPARED:
            raise UnsupportedOperation(
                f"The lock {info.key} of alias {self.alias!r} belongs to a prepared transaction "
                "(pg_prepared_xacts), which has no session to be ended. COMMIT PREPARED or ROLLBACK PREPARED ends it."
            )
        try:
            return self._ask_beside(partial(introspection.end, info))
        except BackendUnavailable as error:
            if getattr(error.__cause__, "sqlstate", None) != introspection.INSUFFICIENT_PRIVILEGE:
                raise
            raise UnsupportedOperation(
                f"The role of alias {self.alias!r} may not end this session: it belongs to another role. Grant it "
                "pg_signal_backend, or membership in that role; a superuser's session only a superuser may end."
            ) from error
