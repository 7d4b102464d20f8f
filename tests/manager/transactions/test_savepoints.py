"""R15: ``ROLLBACK TO`` a savepoint frees a transaction-scoped lock that was taken after it, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock import LockLost, advisory_lock, signals
from tests.manager.transactions import rows
from tests.manager.transactions.rival import is_out
from tests.manager.transactions.ways import Boom
from tests.manager.transactions.world import swallow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.manager.transactions.world import World


@pytest.fixture
def losses(one_world: World) -> Iterator[list[str]]:
    """Why the lock of the test was lost, each time that it was."""
    heard: list[str] = []

    def receiver(name: str, reason: str, **kwargs: Any) -> None:
        if name == one_world.name:
            heard.append(reason)

    signals.lock_lost.connect(receiver)
    yield heard
    signals.lock_lost.disconnect(receiver)


@pytest.fixture
def pairs(one_world: World) -> Iterator[list[str]]:
    """Each time that the lock of the test was acquired, released or lost."""
    heard: list[str] = []
    names = {signals.lock_acquired: "acquired", signals.lock_released: "released", signals.lock_lost: "lost"}

    def receiver(signal: Any, name: str, **kwargs: Any) -> None:
        if name == one_world.name:
            heard.append(names[signal])

    for signal in names:
        signal.connect(receiver)
    yield heard
    for signal in names:
        signal.disconnect(receiver)


def back(world: World, how: str) -> Any:
    """Take the lock after a savepoint and go back to that; returns the lease."""
    if how == "atomic":
        with swallow(Boom), transaction.atomic(world.alias):
            lease = world.lock().acquire()
            raise Boom
    elif how == "released":
        with swallow(Boom), transaction.atomic(world.alias):
            with world.lock() as lease:
                pass
            raise Boom
    elif how == "deeper":
        with swallow(Boom), transaction.atomic(world.alias):
            with transaction.atomic(world.alias), transaction.atomic(world.alias):
                lease = world.lock().acquire()
            raise Boom
    else:
        sid = connections[world.alias].savepoint()
        lease = world.lock().acquire()
        transaction.savepoint_rollback(sid, using=world.alias)
        if how == "low_level_committed":
            transaction.savepoint_commit(sid, using=world.alias)
    return lease


HOW = ("atomic", "released", "deeper", "low_level", "low_level_committed")


@pytest.mark.parametrize("how", HOW)
def test_r15_each_acquire_is_followed_by_one_release_or_loss(one_world: World, pairs: list[str], how: str) -> None:
    world = one_world
    with transaction.atomic(world.alias):
        back(world, how)
        with world.lock():
            pass
    kept = world.using != "postgres"
    first = [] if kept else ["acquired", "released" if how == "released" else "lost"]
    assert pairs == [*first, "acquired", "released"]


@pytest.mark.parametrize("how", HOW)
def test_r15_lock_taken_after_the_savepoint(one_world: World, losses: list[str], how: str) -> None:
    world = one_world
    scoped = world.using == "postgres"
    with transaction.atomic(world.alias):
        rows.count(world.alias, world.name)
        lease = back(world, how)
        if scoped:
            assert not lease.held
            if how != "released":  # nothing is lost by the end of what everybody has released
                assert lease.lost
                with pytest.raises(LockLost):
                    lease.ensure_held()
                with pytest.raises(LockLost):
                    lease.release()
            assert losses == ([] if how == "released" else ["savepoint"])
            assert not is_out(world.rival, world.using, world.name)
            with world.lock() as second:
                world.write()
                assert second.held
        else:
            assert lease.held == (how != "released")
            assert not losses
            world.write()
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_connection_is_clean()
    assert len(losses) == (scoped and how != "released")


def test_r15_lock_taken_before_the_savepoint_stays(one_world: World, losses: list[str]) -> None:
    world = one_world
    with transaction.atomic(world.alias):
        with world.lock() as lease:
            world.write()
            for _ in range(2):
                with swallow(Boom), transaction.atomic(world.alias), world.lock():
                    world.write()
                    raise Boom
            sid = connections[world.alias].savepoint()
            transaction.savepoint_rollback(sid, using=world.alias)
            assert lease.held
        with swallow(Boom), transaction.atomic(world.alias), world.lock():
            raise Boom
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()
    assert not losses


def test_r15_only_what_was_taken_after_the_savepoint_is_lost(make_world: Any) -> None:
    world = make_world("postgres", "postgres")
    names = [f"{world.name}-{n}" for n in range(4)]
    with transaction.atomic("postgres"):
        early = advisory_lock(names[0], using="postgres").acquire()
        sid = connections["postgres"].savepoint()
        middle = advisory_lock(names[1], using="postgres").acquire()
        inner = connections["postgres"].savepoint()
        late = advisory_lock(names[2], using="postgres").acquire()
        transaction.savepoint_rollback(inner, using="postgres")
        assert [lease.lost for lease in (early, middle, late)] == [False, False, True]
        after = advisory_lock(names[3], using="postgres").acquire()
        transaction.savepoint_rollback(sid, using="postgres")
        assert [lease.lost for lease in (early, middle, late, after)] == [False, True, True, True]
        assert [is_out(world.rival, "postgres", name) for name in names] == [True, False, False, False]
    assert not is_out(world.rival, "postgres", names[0])


def test_r15_shared_and_exclusive_after_the_savepoint(make_world: Any) -> None:
    world = make_world("postgres", "postgres")
    readers = advisory_lock(world.name, using="postgres", shared=True)
    with transaction.atomic("postgres"):
        with swallow(Boom), transaction.atomic("postgres"):
            shared = readers.acquire()
            raise Boom
        assert shared.lost
        with world.lock() as lease:
            assert lease.held
        with swallow(Boom), transaction.atomic("postgres"), readers:
            raise Boom
        assert is_out(world.rival, "postgres", world.name)


def test_r15_session_lock_from_outside_survives_a_savepoint(one_world: World, losses: list[str]) -> None:
    world = one_world
    with world.lock() as lease:
        with transaction.atomic(world.alias), swallow(Boom), transaction.atomic(world.alias), world.lock():
            raise Boom
        assert lease.held
        assert is_out(world.rival, world.using, world.name)
    assert not losses


def test_r15_failed_release_of_a_savepoint(make_world: Any) -> None:
    """``RELEASE`` of a savepoint in an aborted transaction fails; Django goes back to it instead."""
    world = make_world("postgres", "postgres")
    with transaction.atomic("postgres"):
        sid: Any = None
        with swallow(Exception), transaction.atomic("postgres"):
            lease = world.lock().acquire()
            with swallow(Exception), world.connection.cursor() as cursor:
                cursor.execute("SELECT 1/0")
            sid = True  # the block ends as if nothing had happened, in an aborted transaction
        assert sid
        assert lease.lost
        assert not is_out(world.rival, "postgres", world.name)
        world.write()
    assert rows.count("postgres", world.name) == 1


def test_r15_what_cannot_be_asked_counts_as_lost(make_world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_distlock.manager.registry import registry

    world = make_world("postgres", "postgres")
    backend = registry.entry("postgres").backend

    def fails(*args: object) -> None:
        raise RuntimeError("no answer")

    with transaction.atomic("postgres"):
        lease = world.lock().acquire()
        monkeypatch.setattr(backend, "still_held", fails)
        with swallow(Boom), transaction.atomic("postgres"):
            raise Boom
        assert lease.lost
    world.check_connection_is_clean()
