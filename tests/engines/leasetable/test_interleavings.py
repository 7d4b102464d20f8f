"""Two clients with four steps each, in all 70 orders that there are."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tests.engines.leasetable.stores import TTL, Stores

ORDERS = list(combinations(range(8), 4))  # the positions of the first client
WAIT = 1000.0


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
        for position in range(8):
            who = int(position not in order)
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


class Model:
    """What a lease is."""

    def __init__(self) -> None:
        self.owner: int | None = None
        self.now = self.expires = 0.0

    def holds(self, who: int) -> bool:
        return self.owner == who and self.now < self.expires

    def take(self, who: int) -> bool:
        if self.owner is not None and self.now < self.expires:
            return False
        self.owner, self.expires = who, self.now + TTL
        return True


class Working:
    """Take, work for more than half the TTL, extend, release. A client that the other one delays loses the lease."""

    def __init__(self, stores: Stores, number: int) -> None:
        self.stores = stores
        self.number = number
        self.client = stores.client()
        self.outcomes: set[tuple[str, bool]] = set()

    def begin(self, model: Model) -> None:
        self.model = model
        self.grant: Any = None
        self.steps = iter((self.take, self.work, self.extend, self.release))

    def saw(self, step: str, outcome: bool, expected: bool) -> None:
        assert outcome == expected, step
        self.outcomes.add((step, outcome))

    def take(self) -> None:
        self.grant = self.client.try_acquire(self.stores.claim())
        self.saw("take", self.grant is not None, self.model.take(self.number))

    def work(self) -> None:
        self.stores.shift(0.6 * TTL)
        self.model.now += 0.6 * TTL

    def extend(self) -> None:
        if self.grant is not None:
            held = self.model.holds(self.number)
            self.saw("extend", self.client.extend(self.grant, TTL) is not None, held)
            if held:
                self.model.expires = self.model.now + TTL

    def release(self) -> None:
        if self.grant is not None:
            held = self.model.holds(self.number)
            self.saw("release", self.client.release(self.grant), held)
            if held:
                self.model.owner = None


def test_working(stores: Stores) -> None:
    """A client that was too slow learns it, and does no harm to the next holder."""
    clients = [Working(stores, 0), Working(stores, 1)]
    for order in ORDERS:
        model = Model()
        for client in clients:
            client.begin(model)
        for position in range(8):
            next(clients[position not in order].steps)()
        stores.shift(TTL + 1)
    for client in clients:
        assert client.outcomes == {(step, how) for step in ("take", "extend", "release") for how in (True, False)}
