"""R11: whatever ends the transaction, the lock taken inside it is free then, not before, and once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests.conftest import eventually
from tests.support.timing import within
from tests.transactions import ways
from tests.transactions.conftest import KINDS, WORLDS

if TYPE_CHECKING:
    from tests.transactions.world import World

SOON = 0.05  # seconds after the end of the transaction, in 99 of 100 cases


# The other worlds differ in who releases the lock, not in how a transaction ends.
ELSEWHERE = ("commit", "exception", "close", "killed", "by_hand_rollback", "lease_from_outside", "async_inside")
CASES = [
    *((where, way) for where in KINDS for way in ways.WAYS),
    *((where, way) for where in WORLDS.keys() - KINDS.keys() for way in ELSEWHERE),
]


@pytest.mark.parametrize(("where", "way"), sorted(CASES))
def test_r11_rival_is_out_before_the_end_and_in_after_it(make_world: Any, where: str, way: str) -> None:
    world = make_world(*WORLDS[where])
    if way == "failed_commit" and world.alias == "mariadb":
        way = "killed"  # no constraint is looked at by its COMMIT; a COMMIT that fails there has lost the server
    seen = ways.WAYS[way](world)
    world.check_rival_came_in(seen)
    if where != "thread":  # whose signals are heard too
        world.check_returned_once()
    world.check_rival_keeps_it()


@pytest.mark.alone
def test_r11_rival_is_in_within_50_ms(each_world: World) -> None:
    """100 transactions in a row, with a rival that waits for the end of each."""
    world = each_world
    late = []
    for round_ in range(100):
        ways.commit(world)
        world.check_rival_came_in(round_ + 1)
        late.append(world.late)
        world.again()
    late.sort()
    within(late[98], SOON, what=f"p50 {late[49] * 1000:.1f} ms, worst {late[99] * 1000:.1f} ms, p99")


@pytest.mark.parametrize("released", [True, False], ids=["released", "open"])
@pytest.mark.parametrize("kind", ["own", "session"])
def test_r11_thread_that_ends_inside_its_transaction_keeps_no_lock(make_world: Any, kind: str, released: bool) -> None:
    """With autocommit off and without a commit. The lock must not keep the connection, which keeps the lock."""
    world = make_world(*KINDS[kind])

    def work() -> None:
        connections[world.alias].set_autocommit(False)
        lease = world.lock().acquire()
        world.write()
        if released:
            lease.release()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    eventually(lambda: not world.is_out(), "held by a thread that has ended")
    assert world.lock().acquire(5).release() is None
    assert not world.written()
