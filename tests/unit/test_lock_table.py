"""The registry in front of every engine: places, queues, promotion, deferral, and circles of waiters (R1, R2, R4, R8,
R11, R17, R23)."""

from __future__ import annotations

from typing import Any

import pytest

from django_distlock.exceptions import DeadlockDetected, DistlockError
from django_distlock.manager.lock_table import Hold, State
from django_distlock.records import Claim, Grant
from tests.unit.world import ENGINE, Engine, World, key


@pytest.fixture
def world() -> World:
    return World()


def test_r1_one_asks_the_engine_and_the_next_waits(world: World) -> None:
    """Until the first has given it back, or its claim has failed."""
    first = world.hold("a", "x")
    second, third = world.wait("b", "x"), world.wait("c", "x")
    assert world.arrive("d", "x", may_wait=False) is None
    world.give(first)
    assert (second.state, third.state) == (State.CLAIMING, State.WAITING)
    assert second.parker is not None
    assert second.parker.woken
    assert world.lock_table.end(second)
    assert not world.lock_table.end(second)
    assert third.state is State.CLAIMING
    world.grant(third)
    assert world.lock_table.held() == world.lock_table.held(ENGINE) == [third]
    assert world.lock_table.held(object()) == []  # type: ignore[arg-type]
    world.give(third)
    assert world.empty


def test_r2_the_own_holding_comes_back(world: World) -> None:
    hold = world.hold("a", "x")
    assert world.arrive("a", "x") is hold
    assert world.lock_table.enter_again(hold, "second lease")
    assert not world.lock_table.leave(hold, "second lease")
    assert not world.lock_table.leave(hold, "second lease")
    world.give(hold)
    assert not world.lock_table.enter_again(hold, "too late")
    assert world.empty


def test_r2_no_reentry_where_it_is_not_wanted_or_would_wait_for_itself(world: World) -> None:
    """A slot of a semaphore; exclusive while shared."""
    world.hold("a", "x")
    assert world.arrive("a", "x", reenter=False) is None
    reader = world.hold("a", "y", shared=True)
    with pytest.raises(DeadlockDetected):
        world.arrive("a", "y")
    assert world.arrive("a", "y", shared=True) is reader


def test_r4_promotion_in_order_and_readers_together(world: World) -> None:
    writer = world.hold("w", "x")
    queue = [
        world.wait(owner, "x", shared=shared)
        for owner, shared in (("r1", True), ("r2", True), ("w2", False), ("r3", True))
    ]
    world.give(writer)
    assert [each.state for each in queue] == [State.CLAIMING, State.CLAIMING, State.WAITING, State.WAITING]
    world.grant(queue[0])
    world.grant(queue[1])
    # a reader does not overtake the writer who waits
    assert world.arrive("r4", "x", shared=True, may_wait=False) is None
    world.give(queue[0])
    assert queue[2].state is State.WAITING
    world.give(queue[1])
    assert [each.state for each in queue[2:]] == [State.CLAIMING, State.WAITING]
    world.grant(queue[2])
    world.give(queue[2])
    world.grant(queue[3])
    world.give(queue[3])
    assert world.empty


def test_r4_who_has_given_up_is_passed_over(world: World) -> None:
    first = world.hold("a", "x")
    gone, left, patient = world.wait("b", "x"), world.wait("c", "x"), world.wait("d", "x")
    assert gone.parker is not None
    gone.parker.leave()  # its time was over, but it has not said so yet
    world.lock_table.end(left)
    world.give(first)
    assert [gone.state, left.state, patient.state] == [State.ENDED, State.ENDED, State.CLAIMING]
    assert not world.lock_table.end(gone)
    world.lock_table.end(patient)
    assert world.empty


def test_a_waiter_that_leaves_from_the_head_lets_the_next_one_through(world: World) -> None:
    """A writer between readers gives up: the reader behind it comes in."""
    reader = world.hold("r", "x", shared=True)
    writer, behind = world.wait("w", "x"), world.wait("r2", "x", shared=True)
    world.lock_table.end(writer)
    assert behind.state is State.CLAIMING
    world.lock_table.end(behind)
    world.give(reader)
    assert world.empty


def test_r11_a_deferred_holding_keeps_others_out_and_its_owner_may_verify_it(world: World) -> None:
    hold = world.hold("a", "x")
    (lease,) = hold.leases
    assert world.lock_table.leave(hold, lease)
    world.lock_table.defer(hold)
    assert hold.state is State.DEFERRED
    assert world.arrive("b", "x", may_wait=False) is None
    assert world.arrive("a", "x") is hold
    assert world.lock_table.enter_again(hold, "again")
    assert hold.state is State.HELD
    assert world.lock_table.start_release(hold)
    assert not world.lock_table.start_release(hold)
    world.lock_table.end(hold)
    assert world.empty


def test_r17_a_loss_ends_it_once_and_lets_the_next_one_ask(world: World) -> None:
    hold = world.hold("a", "x")
    waiting = world.wait("b", "x")
    assert world.lock_table.lose(hold, "session")
    assert not world.lock_table.lose(hold, "again")
    assert (hold.state, hold.lost) == (State.ENDED, "session")
    assert waiting.state is State.CLAIMING
    assert not world.lock_table.renew(hold, Grant(claim=Claim(key=hold.key), acquired_at=1))
    (lease,) = hold.leases
    assert not world.lock_table.leave(hold, lease)
    # one that waits or claims has nothing to lose
    assert not world.lock_table.lose(waiting, "session")
    world.lock_table.end(waiting)
    assert world.empty


def test_r17_what_is_being_given_back_is_lost_only_for_its_release(world: World) -> None:
    """A renewal that meets a release finds nothing to renew: that is no loss."""
    hold = world.hold("a", "x")
    (lease,) = hold.leases
    assert world.lock_table.leave(hold, lease)
    assert not world.lock_table.lose(hold, "stolen")
    assert (hold.state, hold.lost) == (State.RELEASING, None)
    assert world.lock_table.lose(hold, "stolen", releasing=True)
    assert world.empty


def test_r23_the_limit_counts_holders_of_one_backend() -> None:
    world = World(limit=2)
    held = [world.hold("a", "x"), world.hold("b", "y")]
    for owner in ("a", "c"):
        with pytest.raises(DistlockError, match="holds 2 locks of alias 'pure'"):
            world.arrive(owner, "z")
    assert world.arrive("a", "x") is held[0]
    other: Any = Engine()
    there = world.lock_table.arrive(Hold(other, key("w"), "a", False), may_wait=False, reenter=True, limit=2)
    assert there is not None
    world.lock_table.end(there)
    for hold in held:
        world.give(hold)
    assert world.empty


def test_r23_waiters_that_are_promoted_stay_within_the_limit() -> None:
    """Readers queue one by one below the limit, and come in together."""
    world = World(limit=2)
    writer = world.hold("w", "x")
    readers = [world.wait(f"r{number}", "x", shared=True) for number in range(4)]
    world.give(writer)
    assert sum(reader.state is State.CLAIMING for reader in readers) <= 2


@pytest.mark.parametrize("size", [2, 6])
def test_r8_circles(world: World, size: int) -> None:
    held = [world.hold(str(number), f"x{number}") for number in range(size)]
    waiting = [world.wait(str(number), f"x{number + 1}") for number in range(size - 1)]
    with pytest.raises(DeadlockDetected, match="would never end"):
        world.arrive(str(size - 1), "x0")
    world.give(held[-1])
    for number in reversed(range(size - 1)):
        world.grant(waiting[number])
        world.give(waiting[number])
        world.give(held[number])
    assert world.empty


def test_r8_a_circle_through_a_place_in_the_queue(world: World) -> None:
    """o stands behind c in the queue for x, and c waits, over the holder of x, for what o holds."""
    world.hold("h", "x")
    world.hold("o", "y")
    world.wait("c", "x")
    world.wait("h", "y")
    with pytest.raises(DeadlockDetected):
        world.arrive("o", "x")


def test_r8_a_reader_behind_a_writer_waits_for_the_readers_before_it(world: World) -> None:
    """t holds x shared and waits for y; w waits for x; who holds y asks for x shared: behind w, who waits for t."""
    world.hold("t", "x", shared=True)
    world.hold("o", "y")
    world.wait("t", "y")
    world.wait("w", "x")
    with pytest.raises(DeadlockDetected):
        world.arrive("o", "x", shared=True)


def test_r8_waiting_for_what_is_being_given_back_closes_no_circle(world: World) -> None:
    """Another thread gives the lease back (R16) while its owner, or another, asks anew: that ends by itself."""
    x, y = world.hold("a", "x"), world.hold("b", "y")
    world.wait("a", "y")
    (lease,) = x.leases
    assert world.lock_table.leave(x, lease)
    waiting, again = world.wait("b", "x"), world.wait("c", "x")
    world.lock_table.end(x)
    assert (waiting.state, again.state) == (State.CLAIMING, State.WAITING)
    world.lock_table.end(waiting)
    assert again.state is State.CLAIMING
    world.give(y)
