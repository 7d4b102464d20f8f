"""Owners and leases without an engine, for tests of the registry that stands in front of every engine."""

from __future__ import annotations

from typing import Any

from django_distlock.keys import LockKey, derive_key
from django_distlock.manager.hold import Holding, State
from django_distlock.manager.lock_table import Holdings
from django_distlock.records import Claim, Grant


class Engine:
    """A backend that is never asked."""

    alias = "pure"


ENGINE: Any = Engine()


def key(name: str) -> LockKey:
    return derive_key("", "pure", name)


class World:
    """Owners are strings; a lease is an object."""

    def __init__(self, limit: int = 1000) -> None:
        self.holdings = Holdings()
        self.limit = limit
        self.owners: dict[str, object] = {}

    def arrive(
        self, owner: str, name: str, *, shared: bool = False, may_wait: bool = True, reenter: bool = True
    ) -> Holding | None:
        who = self.owners.setdefault(owner, f"owner {owner}")
        holding = Holding(ENGINE, key(name), who, shared)
        return self.holdings.arrive(holding, may_wait=may_wait, reenter=reenter, limit=self.limit)

    def hold(self, owner: str, name: str, *, shared: bool = False) -> Holding:
        """Arrive at a free lock, and be granted it."""
        holding = self.arrive(owner, name, shared=shared, may_wait=False)
        assert holding is not None
        self.grant(holding)
        return holding

    def grant(self, holding: Holding) -> object:
        assert holding.state is State.CLAIMING
        lease = object()
        self.holdings.establish(holding, Grant(claim=Claim(key=holding.key), acquired_at=0), lease)
        return lease

    def wait(self, owner: str, name: str, *, shared: bool = False) -> Holding:
        holding = self.arrive(owner, name, shared=shared)
        assert holding is not None
        assert holding.state is State.WAITING
        return holding

    def give(self, holding: Holding) -> None:
        for lease in list(holding.leases):
            last = self.holdings.leave(holding, lease)
        assert last
        self.holdings.end(holding)

    @property
    def empty(self) -> bool:
        return not (self.holdings._slots or self.holdings._waiting or self.holdings._total)
