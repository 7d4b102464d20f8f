"""R11: a receiver of a signal about a kept lock may use the database, as receivers do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_distlock import signals
from django_distlock.manager.release import lose
from tests.manager.transactions import rows
from tests.manager.transactions.ways import Boom
from tests.manager.transactions.world import swallow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.manager.transactions.world import World


@pytest.fixture
def audit(one_world: World) -> Iterator[None]:
    """Writes a row on the same connection for each lock that is given back or lost."""

    def receiver(signal: Any, name: str, **kwargs: Any) -> None:
        if name == one_world.name:
            kind = "released" if signal is signals.lock_released else "lost"
            rows.write(one_world.alias, f"{name}-{kind}")

    heard = (signals.lock_released, signals.lock_lost)
    for signal in heard:
        signal.connect(receiver)
    yield
    for signal in heard:
        signal.disconnect(receiver)


@pytest.mark.parametrize("fails", [False, True])
def test_r11_receiver_writes_when_the_transaction_has_ended(one_world: World, audit: None, fails: bool) -> None:
    world = one_world
    hooks: list[int] = []
    try:
        with transaction.atomic(world.alias):
            transaction.on_commit(lambda: hooks.append(1), using=world.alias)
            with world.lock():
                world.write()
            if fails:
                raise Boom
    except Boom:
        assert fails
    assert not world.connection.in_atomic_block
    assert world.connection.get_autocommit()
    assert rows.count(world.alias, world.name) == (not fails)
    assert hooks == ([] if fails else [1])
    world.connection.close()
    assert rows.count(world.alias, world.name + "-released") == 1
    world.check_connection_is_clean()


def test_r11_receiver_writes_when_a_kept_lock_was_lost(one_world: World, audit: None) -> None:
    world = one_world
    with transaction.atomic(world.alias):
        world.write()
        lease = world.lock().acquire()
        lose(lease._hold, "test")
    assert world.connection.get_autocommit()
    assert rows.count(world.alias, world.name) == 1
    assert rows.count(world.alias, world.name + "-lost") == 1
    if world.using != "postgres":
        assert lease._hold.backend.release(lease._grant)


def test_r15_receiver_writes_when_a_savepoint_took_the_lock_along(make_world: Any) -> None:
    world = make_world("postgres", "postgres")

    def receiver(name: str, **kwargs: Any) -> None:
        rows.write("postgres", name + "-lost")

    signals.lock_lost.connect(receiver)
    try:
        with transaction.atomic("postgres"), swallow(Boom), transaction.atomic("postgres"):
            world.lock().acquire()
            raise Boom
    finally:
        signals.lock_lost.disconnect(receiver)
    assert rows.count("postgres", world.name + "-lost") == 1
