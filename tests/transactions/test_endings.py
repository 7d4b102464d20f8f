"""R11: whatever ends the transaction, the lock taken inside it is free then, not before, and once, even if transactions
are not nested."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock import LockLost
from tests.conftest import eventually
from tests.support.timing import within
from tests.transactions import ways
from tests.transactions.conftest import KINDS, WORLDS
from tests.transactions.world import World, check_connections_are_clean, in_thread

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


# another database's transaction, begun under the lock, outlives that in which the lock was taken


@pytest.mark.parametrize("released", [True, False], ids=["released", "not_released"])
def test_r11_the_last_of_several_transactions_counts(world: World, released: bool) -> None:
    """Kept; but a lock that belongs to PostgreSQL's transaction ends with it: that is told."""
    first, second = transaction.atomic(world.alias), transaction.atomic(world.other)
    first.__enter__()
    lease = world.lock().acquire()
    second.__enter__()
    world.write()
    if released:
        lease.release()
    first.__exit__(None, None, None)
    if world.scoped:
        assert not world.is_out()
        if not released:
            with pytest.raises(LockLost):
                lease.release()
    else:
        world.still_inside()
        assert lease.held is not released
    second.__exit__(None, None, None)
    assert not lease.held
    assert world.heard == ["acquired", "lost (transaction)" if world.scoped else "released"]
    if not world.scoped:
        world.check_rival_came_in(1)
    check_connections_are_clean()


@pytest.mark.parametrize("first", [True, False], ids=["before_ours", "after_ours"])
def test_r11_other_code_may_replace_methods_of_the_connection_too(world: World, first: bool) -> None:
    """As tracing does, before the first lock is kept for the connection or later. The methods are wrapped once."""
    calls: list[str] = []

    def trace() -> None:
        commit = world.connection.commit
        world.connection.commit = lambda: (calls.append("commit"), commit())

    def work() -> None:
        if first:
            trace()
        with world.transaction(), world.lock():
            world.write()
        world.again()
        if not first:
            trace()
        wrapped = world.connection.commit
        world.heard.clear()
        with world.transaction(2), world.lock():
            world.write()
        assert world.connection.commit is wrapped
        world.connection.close()

    in_thread(work)
    assert len(calls) == 1 + first
