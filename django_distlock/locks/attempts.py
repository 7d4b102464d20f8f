"""An attempt at several locks that fails leaves nothing held, inside a transaction too (R7).

Elsewhere what was taken is simply released. But inside a transaction a release waits for its end (R11), which is right
for a lock under which something may have been written, and wrong for one that its caller never got.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from django_distlock.exceptions import BackendUnavailable
from django_distlock.manager.open_transactions import open_transactions
from django_distlock.manager.registry import registry
from django_distlock.manager.transactions import on_own_connection, unbind

from .lease import Lease, release_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.concurrency.flow import Flow

    from .lock import Lock


class Attempt:
    """The leases taken so far, and the savepoint before the first of them where they belong to the transaction."""

    def __init__(self, locks: Sequence[Lock]) -> None:
        self.taken: list[Lease] = []
        self._connection: Any = None
        self._savepoint: str | None = None
        opened = open_transactions()
        if len(locks) < 2 or not opened:
            return
        if any(on_own_connection(registry.entry(lock.using).backend, opened) for lock in locks):
            with contextlib.suppress(DatabaseError):  # the first lock will fail in the same way, and say so
                self._savepoint = opened[0].savepoint()
                self._connection = opened[0]

    def succeed(self) -> None:
        """All are taken: they stay with the transaction."""
        if self._savepoint is not None:
            try:
                self._connection.savepoint_commit(self._savepoint)
            except DatabaseError as error:
                raise BackendUnavailable("The transaction that shall hold the locks has failed.") from error

    def abandon(self) -> Flow[None]:
        """As if nothing had been asked for."""
        for lease in self.taken:
            holding = lease._holding
            # what this context held or kept before is not this attempt's
            holding.abandoned = not holding.kept and holding.leases == {lease} and holding.scope == "session"
            if holding.abandoned:
                unbind(holding)
        yield from release_all(self.taken, False)
        if self._savepoint is not None:
            with contextlib.suppress(DatabaseError):  # then the transaction is over, and its locks with it
                self._connection.savepoint_rollback(self._savepoint)
                self._connection.savepoint_commit(self._savepoint)
