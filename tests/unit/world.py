"""Owners and leases without an engine, for tests of the registry that stands in front of every engine."""

from __future__ import annotations

from typing import Any

from django_distlock.keys import LockKey, derive_key
from django_distlock.manager.lock_table import Hold, LockTable, State
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
        self.lock_table = LockTable()
        self.limit = limit
        self.owners: dict[str, object] = {}

    def arrive(
        self, owner: str, name: str, *, shared: bool = False, may_wait: bool = True, reenter: bool = True
    ) -> Hold | None:
        who = self.owners.setdefault(owner, f"owner {owner}")
        hold = Hold(ENGINE, key(name), who, shared)
        return self.lock_table.arrive(hold, may_wait=may_wait, reenter=reenter, limit=self.limit)

    def hold(self, owner: str, name: str, *, shared: bool = False) -> Hold:
        """Arrive at a free lock, and be granted it."""
        hold = self.arrive(owner, name, shared=shared, may_wait=False)
        assert hold is not None
        self.grant(hold)
        return hold

    def grant(self, hold: Hold) -> object:
        assert hold.state is State.CLAIMING
        lease = object()
        self.lock_table.establish(hold, Grant(claim=Claim(key=hold.key), acquired_at=0), lease)
        return lease

    def wait(self, owner: str, name: str, *, shared: bool = False) -> Hold:
        hold = self.arrive(owner, name, shared=shared)
        assert hold is not None
        assert hold.state is State.WAITING
        return hold

    def give(self, hold: Hold) -> None:
        for lease in list(hold.leases):
            last = self.lock_table.leave(hold, lease)
        assert last
        self.lock_table.end(hold)

    @property
    def empty(self) -> bool:
        return not (self.lock_table._slots or self.lock_table._waiting or self.lock_table._total)
