"""Two clients with four steps each, in all 70 orders that there are."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tests.engines.leasetable.stores import TTL, WAIT, Stores, everywhere

# For each order, whose step is which.
ORDERS = [[int(at not in first) for at in range(8)] for first in combinations(range(8), 4)]


class Queueing:
    """Each step does what is next: give back what is held, else ask, and queue up for it."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.client = stores.client()
        self.claim = stores.claim()
        self.grant: Any = None

    def step(self) -> tuple[str, int]:
        if self.grant is not None:
            fence = self.grant.fence
            assert self.client.release(self.grant)
            self.grant, self.claim = None, self.stores.claim()
            return "released", fence
        self.grant = self.client.try_acquire(self.claim, WAIT)
        return ("granted", self.grant.fence) if self.grant is not None else ("waits", 0)

    def finish(self) -> None:
        if self.grant is not None:
            self.step()
        self.client.withdraw(self.claim)


def test_queueing(stores: Stores) -> None:
    """One holder at a time, fences that rise, no grant before an earlier waiter's, nothing left."""
    assert len(ORDERS) == 70
    clients = [Queueing(stores), Queueing(stores)]
    last, waited = 0, 0
    for order in ORDERS:
        holder: int | None = None
        waiting: list[int] = []
        for who in order:
            event, fence = clients[who].step()
            if event == "granted":
                assert holder is None, order
                assert fence > last, order
                assert waiting in ([], [who], [who, 1 - who]), order
                holder, last, waiting = who, fence, [other for other in waiting if other != who]
            elif event == "released":
                assert holder == who, order
                holder = None
            elif who not in waiting:
                waiting.append(who)
                waited += 1
        for client in clients:
            client.finish()
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
