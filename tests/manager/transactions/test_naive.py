"""R11: the faults that the rule is there for, shown on code that lacks it; else the other tests would prove nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from django.db import transaction

from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from tests.faults.server import key_of
from tests.manager.transactions import rows
from tests.manager.transactions.rival import is_out, start_waiting
from tests.manager.transactions.ways import Boom
from tests.manager.transactions.world import swallow

if TYPE_CHECKING:
    from django_distlock.records import Grant
    from tests.manager.transactions.world import World


class NaiveLock:
    """The engine's own lock, taken and given back where it stands."""

    def __init__(self, world: World) -> None:
        self.backend: Any = registry.entry(world.using).backend
        ttl = 30.0 if self.backend.supports_ttl else None
        self.claim = Claim(
            key=key_of(world.using, world.name), ttl=ttl, token="naive" if ttl else "", answer_by=math.inf
        )
        self.grant: Grant | None = None

    def take(self) -> None:
        self.grant = self.backend.try_acquire(self.claim)
        assert self.grant is not None

    def give_back(self) -> None:
        assert self.backend.release(self.grant)
        self.grant = None


def test_r11_fault_released_before_the_commit(one_world: World) -> None:
    """The next holder does not see what was written under the lock, and writes it again."""
    world = one_world
    lock = NaiveLock(world)
    with transaction.atomic(world.alias):
        lock.take()
        if rows.count(world.alias, world.name) == 0:
            world.write()
        world.still_inside()
        lock.give_back()
        _, seen = world.hear_grant()
        assert seen == 0
    assert rows.count(world.alias, world.name) == 1


def test_r11_fault_released_by_on_commit_only(one_world: World) -> None:
    """``on_commit`` misses a rollback: nobody ever gives the lock back."""
    world = one_world
    lock = NaiveLock(world)
    with swallow(Boom), transaction.atomic(world.alias):
        lock.take()
        world.write()
        transaction.on_commit(lock.give_back, using=world.alias)
        raise Boom
    assert lock.grant is not None
    assert is_out(world.rival, world.using, world.name), "held although the transaction is over"
    start_waiting(world.rival, world.using, world.name, world.alias)
    world._waiting = True
    lock.give_back()
    world.hear_grant()


def test_r11_fault_released_by_the_last_hook_of_the_user(one_world: World) -> None:
    """``on_commit`` runs in order of registration: a hook of the user that fails keeps the lock."""
    world = one_world
    lock = NaiveLock(world)

    def hook() -> None:
        raise Boom

    with swallow(Boom), transaction.atomic(world.alias):
        lock.take()
        transaction.on_commit(hook, using=world.alias)
        transaction.on_commit(lock.give_back, using=world.alias)
    assert lock.grant is not None
    lock.give_back()


def test_r11_hook_of_the_user_that_fails_keeps_nothing(one_world: World) -> None:
    """The same with the rule."""
    world = one_world

    def hook() -> None:
        raise Boom

    with swallow(Boom), transaction.atomic(world.alias):
        transaction.on_commit(hook, using=world.alias)
        with world.lock():
            world.write()
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()
