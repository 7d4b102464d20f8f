"""Base of the engines whose servers are no databases: their operations are coroutines, which a thread steps."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from django_distlock.concurrency.flow import run

from .base import Backend

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_distlock.keys import LockKey
    from django_distlock.records import Claim, Grant, LockInfo


class RemoteBackend(Backend):
    """Subclasses implement the operations of tasks."""

    supports_break = True
    waits_natively = True
    apart_from_databases = True

    @abstractmethod
    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None: ...

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return run(self.atry_acquire(claim, wait))

    @abstractmethod
    async def arelease(self, grant: Grant) -> bool: ...

    def release(self, grant: Grant) -> bool:
        return run(self.arelease(grant))

    @abstractmethod
    async def averify(self, grant: Grant) -> bool: ...

    def verify(self, grant: Grant) -> bool:
        return run(self.averify(grant))

    @abstractmethod
    def listed(self, keys: frozenset[str] | None) -> list[LockInfo]:
        """The holders of these keys, which are called as by :meth:`listed_as`; None: all holders."""

    def inspect(self) -> Iterable[LockInfo]:
        return self.listed(None)

    def held_among(self, keys: Iterable[LockKey]) -> set[LockKey]:
        listed = {self.listed_as(key): key for key in keys}
        return {listed[info.key] for info in self.listed(frozenset(listed))}
