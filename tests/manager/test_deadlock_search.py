"""R8 in one process: circles of waiters are found at once, and only circles."""

from __future__ import annotations

import pytest

from django_distlock.exceptions import DeadlockDetected
from django_distlock.manager.lock_table import State
from tests.manager.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("size", [2, 3, 6])
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


def test_r8_what_is_being_given_back_is_waited_for(world: World) -> None:
    """Another thread gives the lease back (R16) while its owner asks anew: that ends by itself."""
    first = world.hold("a", "x")
    (lease,) = first.leases
    assert world.lock_table.leave(first, lease)
    again = world.wait("a", "x")
    world.lock_table.end(first)
    assert again.state is State.CLAIMING
    world.lock_table.end(again)
    assert world.empty


def test_r8_waiting_for_what_is_being_given_back_closes_no_circle(world: World) -> None:
    x, y = world.hold("a", "x"), world.hold("b", "y")
    world.wait("a", "y")
    (lease,) = x.leases
    assert world.lock_table.leave(x, lease)
    waiting = world.wait("b", "x")
    world.lock_table.end(x)
    assert waiting.state is State.CLAIMING
    world.lock_table.end(waiting)
    world.give(y)


def test_r8_no_circle_with_readers_who_share(world: World) -> None:
    world.hold("a", "x", shared=True)
    b = world.hold("b", "x", shared=True)
    assert world.arrive("b", "x", shared=True) is b
    c = world.wait("c", "x")
    assert c.state is State.WAITING
