"""django-distlock through its public face, as a project would use it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

from django.db import connections, transaction

from benchmarks.entries.base import LOCK_NAMES, AsyncEntry, Entry

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def close_backends() -> None:
    """Close the lock sessions of this process now instead of after their idle time."""
    from django_distlock.manager.registry import registry

    registry.close()


class Ours(Entry):
    """``with advisory_lock(name, using=alias)``, written where it is used, so that making the Lock is timed too."""

    ours = True
    label = "django-distlock"
    alias: ClassVar[str]

    def open(self) -> None:
        """Import the package (not before: the peers run without it) and take the lock once."""
        from django_distlock import advisory_lock

        self.advisory_lock = advisory_lock
        with advisory_lock(self.name, using=self.alias):
            pass

    def close(self) -> None:
        """Close the lock sessions and what the transactions used."""
        close_backends()
        connections.close_all()

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the lock outside any transaction."""
        with self.advisory_lock(self.name, using=self.alias):
            body()


class OursReused(Ours):
    """One Lock made once and used again, as a decorator or a module-level constant does."""

    label = "django-distlock, one Lock reused"
    contended = False

    def open(self) -> None:
        """Make the Lock once."""
        super().open()
        self.lock = self.advisory_lock(self.name, using=self.alias)

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the same Lock object again."""
        with self.lock:
            body()


class OursInAtomic(Ours):
    """Lock inside a transaction that is already open; its BEGIN and COMMIT surround the slice and are not timed."""

    label = "django-distlock in atomic()"
    contended = False
    database: ClassVar[str]

    def around(self) -> AbstractContextManager[object]:
        """Open the transaction for the whole slice."""
        self.names = itertools.cycle(LOCK_NAMES)
        return transaction.atomic(using=self.database)

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the next of the names until the commit."""
        with self.advisory_lock(next(self.names), using=self.alias):
            body()


class OursWholeTransaction(Ours):
    """BEGIN, lock, COMMIT: what a transaction that protects itself costs as a whole."""

    label = "django-distlock, whole atomic()"
    database: ClassVar[str]

    def cycle(self, body: Callable[[], object]) -> None:
        """Hold the lock until the commit."""
        with transaction.atomic(using=self.database), self.advisory_lock(self.name, using=self.alias):
            body()


class OursAsync(AsyncEntry):
    """``async with advisory_lock(name, using=alias)`` in one task."""

    ours = True
    label = "django-distlock, asyncio"
    alias: ClassVar[str]

    def open(self) -> None:
        """Make the loop and take the lock once on it."""
        from django_distlock import advisory_lock

        super().open()
        self.advisory_lock = advisory_lock
        self.runner.run(self.acycle(bool))

    def close(self) -> None:
        """Close the lock sessions before the loop that they belong to."""
        close_backends()
        super().close()

    async def acycle(self, body: Callable[[], object]) -> None:
        """Hold the lock in the running task."""
        async with self.advisory_lock(self.name, using=self.alias):
            body()
