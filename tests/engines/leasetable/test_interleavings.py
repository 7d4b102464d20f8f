"""Two clients with four steps each, in all 70 orders that there are."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tests.conftest import PATIENCE
from tests.engines.leasetable.conftest import TTL, Stores, everywhere

# For each order, whose step is which.
ORDERS = [[int(at not in first) for at in range(8)] for first in combinations(range(8), 4)]


class Queueing:
    """A client that asks for the lease in a thread of its own, where it may have to wait."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.client = stores.client()
        self.waiting: Any = None
        self.grant: Any = None

    def granted(self, last: int) -> int:
        self.grant = self.waiting.result(PATIENCE)
        self.waiting = None
        assert self.grant.fence > last
        return int(self.grant.fence)

    def step(self, other: Queueing, last: int) -> int:
        """Give back what is held, which is then the other one's if it waits; or ask, and wait. The last fence."""
        if self.grant is not None:
            assert self.client.release(self.grant)
            self.grant = None
            return other.granted(last) if other.waiting is not None else last
        if self.waiting is None:
            self.waiting = self.stores.waits(self.client, self.stores.claim())
            if other.grant is None:
                return self.granted(last)
        assert not self.waiting.done()
        return last


def test_queueing(stores: Stores) -> None:
    """One holder at a time, fences that rise, what is given back goes to the waiter, nothing left."""
    assert len(ORDERS) == 70
    clients = [Queueing(stores), Queueing(stores)]
    last, waited = 0, 0
    for order in ORDERS:
        for who in order:
            last = clients[who].step(clients[1 - who], last)
            waited += clients[who].waiting is not None
        while holding := [client for client in clients if client.grant is not None]:
            holding[0].step(clients[1 - clients.index(holding[0])], last)
        assert stores.tickets() == 0
        assert list(clients[0].client.inspect()) == []
    assert waited > 50, "they did meet"


class Working:
    """Takes a lease, works for more than half the TTL, extends, releases. Whoever the other one delays has lost it.

    ``owner`` is what the lease should be: who has it, until when."""

    owner: tuple[Any, float] = (None, 0.0)
    now = 0.0

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.client = stores.client()
        self.grant: Any = None

    def is_ours(self) -> bool:
        return Working.owner[0] is self and Working.now < Working.owner[1]

    def take(self) -> bool:
        free = Working.now >= Working.owner[1]
        self.grant = self.client.try_acquire(self.stores.claim())
        assert (self.grant is not None) == free
        if free:
            Working.owner = self, Working.now + TTL
        return free

    def work(self) -> bool:
        self.stores.shift(0.6 * TTL)
        Working.now += 0.6 * TTL
        return True

    def extend(self) -> bool | None:
        if self.grant is None:
            return None
        ours = self.is_ours()
        assert (self.client.extend(self.grant, TTL) is not None) == ours
        if ours:
            Working.owner = self, Working.now + TTL
        return ours

    def release(self) -> bool | None:
        if self.grant is None:
            return None
        ours = self.is_ours()
        assert self.client.release(self.grant) == ours
        if ours:
            Working.owner = None, 0.0
        return ours


@everywhere
def test_r17_r20_working(stores: Stores) -> None:
    """A client that was too slow learns it, revives nothing, and does no harm to the next holder."""
    clients = [Working(stores), Working(stores)]
    outcomes = set()
    for order in ORDERS:
        Working.owner = None, 0.0
        steps = [iter((each.take, each.work, each.extend, each.release)) for each in clients]
        for who in order:
            step = next(steps[who])
            outcomes.add((step.__name__, step()))
        stores.shift(TTL + 1)
        Working.now += TTL + 1
    assert {(step, how) for step in ("take", "extend", "release") for how in (True, False)} <= outcomes
