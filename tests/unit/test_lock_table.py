"""The registry in front of every engine: places, queues, promotion, and circles of waiters (R1, R4, R8, R23). What is
seen by contexts, tests/unit/shared shows."""

from __future__ import annotations

from typing import Any

import pytest

from django_distlock.exceptions import DeadlockDetected
from django_distlock.keys import derive_key
from django_distlock.manager.lock_table import Hold, LockTable, State
from django_distlock.records import Claim, Grant


class Engine:
    """A backend that is never asked."""

    alias = "pure"


ENGINE: Any = Engine()


class World:
    """Owners are strings; a lease is an object."""

    def __init__(self, limit: int = 1000) -> None:
        self.lock_table = LockTable()
        self.limit = limit

    def arrive(self, owner: str, name: str, *, shared: bool = False, may_wait: bool = True) -> Hold | None:
        hold = Hold(ENGINE, derive_key("", "pure", name), owner, shared)
        return self.lock_table.arrive(hold, may_wait=may_wait, reenter=True, limit=self.limit)

    def hold(self, owner: str, name: str, *, shared: bool = False) -> Hold:
        """Arrive at a free lock, and be granted it."""
        hold = self.arrive(owner, name, shared=shared, may_wait=False)
        assert hold is not None
        self.grant(hold)
        return hold

    def grant(self, hold: Hold) -> None:
        assert hold.state is State.CLAIMING
        self.lock_table.establish(hold, Grant(claim=Claim(key=hold.key), acquired_at=0), object())

    def wait(self, owner: str, name: str, *, shared: bool = False) -> Hold:
        hold = self.arrive(owner, name, shared=shared)
        assert hold is not None
        assert hold.state is State.WAITING
        return hold

    def leave(self, hold: Hold) -> None:
        (lease,) = hold.leases
        assert self.lock_table.leave(hold, lease)

    def give(self, hold: Hold) -> None:
        self.leave(hold)
        self.lock_table.end(hold)

    @property
    def empty(self) -> bool:
        return not list(self.lock_table.everything())


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
    assert world.lock_table.end(second)
    assert third.state is State.CLAIMING
    world.grant(third)
    assert world.lock_table.held() == [third]
    world.give(third)
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


def test_r23_waiters_that_are_promoted_stay_within_the_limit() -> None:
    """Readers queue one by one below the limit, and come in together."""
    world = World(limit=2)
    writer = world.hold("w", "x")
    readers = [world.wait(f"r{number}", "x", shared=True) for number in range(4)]
    world.give(writer)
    assert sum(reader.state is State.CLAIMING for reader in readers) <= 2


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
    world.leave(x)
    waiting, again = world.wait("b", "x"), world.wait("c", "x")
    world.lock_table.end(x)
    assert (waiting.state, again.state) == (State.CLAIMING, State.WAITING)
    world.lock_table.end(waiting)
    assert again.state is State.CLAIMING
    world.give(y)
