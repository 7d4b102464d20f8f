"""R11: what is kept for a transaction: re-entry, sets, hooks and receivers, failures, and what it costs."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import pytest
from django.db import transaction

from django_distlock import DeadlockDetected, advisory_lock, lock_all, semaphore, signals
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.statements import counted
from tests.transactions import rows
from tests.transactions.ways import Boom
from tests.transactions.world import World, check_connections_are_clean, in_thread, swallow


def test_r11_reentry_finds_that_the_engine_gave_the_lock_to_somebody_else(each_world: World) -> None:
    """The kept lock is taken away behind our back; whoever asks again must not be told that it still has it."""
    world = each_world
    with transaction.atomic(world.alias):
        if world.scoped:
            world.ask("SAVEPOINT by_hand")
        with world.lock() as lease:
            grant: Any = lease._grant
        if world.scoped:
            world.ask("ROLLBACK TO SAVEPOINT by_hand")
        elif world.using == "mysql":
            rows.kill(world.alias, grant.session.server_id)
        else:
            assert registry.entry(world.using).backend.release(grant)
        world.starts_to_wait()
        world.check_rival_came_in(0)
        assert world.lock().try_acquire() is None
    # found by asking, or by the keepalive thread before that
    assert world.heard[-1] in ("lost (stolen)", "lost (session)")
    check_connections_are_clean()


def test_r11_kept_lock_is_free_for_its_own_context_only(world: World) -> None:
    """It is refused to other threads of this process and to other processes. Sets and semaphores are kept, too."""
    slots = semaphore(world.name + "-slots", 1, using=world.using)
    with world.transaction():
        with lock_all([world.name, world.name + "-2"], using=world.using), slots:
            world.write()
        assert in_thread(lambda: world.lock().try_acquire()) is None
        with world.lock().acquire(timeout=0) as lease:
            assert lease.held
        assert world.is_out("-2")
        assert in_thread(slots.try_acquire) is None
        with slots.acquire(timeout=0):
            assert slots.try_acquire() is None, "a semaphore is not re-entrant"
    assert not world.is_out("-2")
    with slots:
        pass


PLACES = [("postgres", "postgres"), ("mysql", "mariadb"), *((using, "default") for using in ("leasetable", "redis"))]


@pytest.mark.parametrize(("using", "alias"), [*PLACES, ("zookeeper", "default"), ("memory", "default")])
def test_r11_the_next_block_gets_the_place_that_the_transaction_keeps(make_world: Any, using: str, alias: str) -> None:
    """A loop uses one place of the semaphore; a block inside another one takes a place of its own."""
    pool = semaphore(make_world(using, alias).name, 3, using=using, timeout=0)
    with transaction.atomic(alias):
        for _ in range(4):
            with pool:
                assert free_places(pool) == 2
        with pool, pool:
            assert free_places(pool) == 1
        with pool, pool, pool:
            assert free_places(pool) == 0
            assert pool.try_acquire() is None
        with pool, pool, pool:
            pass
        assert free_places(pool) == 0
    assert free_places(pool) == 3


def free_places(pool: semaphore) -> int:
    """How many another thread gets."""

    def take() -> int:
        leases = []
        while (lease := pool.try_acquire()) is not None:
            leases.append(lease)
        for lease in leases:
            lease.release()
        return len(leases)

    return int(in_thread(take))


def test_r7_set_that_fails_inside_a_transaction_gives_back_at_its_end(world: World) -> None:
    """What it had taken is free with what the context kept or held before the attempt, and for the context itself at
    once."""
    kept, held, fresh, busy = (f"{world.name}-{n}" for n in range(4))
    with world.busy("-3"), transaction.atomic(world.alias):
        with world.lock("-0"):
            world.write()
        lease = world.lock("-1").acquire()
        for _ in range(2):
            assert lock_all([kept, held, fresh, busy], using=world.using).try_acquire() is None
            assert [world.is_out(f"-{n}") for n in range(3)] == [True, True, True]
        lease.ensure_held()
        assert lock_all([kept, held, fresh], using=world.using).acquire(timeout=0)[fresh].held
    assert not [n for n in range(3) if world.is_out(f"-{n}")]
    check_connections_are_clean()


def test_r11_released_before_the_users_own_hooks(world: World) -> None:
    """And a hook that fails keeps nothing."""
    seen: list[object] = []

    def hook() -> None:
        seen.append(world.is_out())
        with world.lock() as lease:
            seen.append(lease.held)
        seen.append(world.is_out())
        if len(seen) > 3:
            raise Boom

    with swallow(Boom), transaction.atomic(world.alias):
        transaction.on_commit(hook, using=world.alias)
        with world.lock():
            world.write()
        transaction.on_commit(hook, using=world.alias)
        assert world.is_out()
    assert seen == [False, True, False] * 2
    check_connections_are_clean()


@pytest.mark.parametrize("fails", [False, True])
def test_r11_receiver_of_the_release_may_use_the_database(world: World, fails: bool) -> None:
    hooks: list[int] = []

    def audit(name: str, **facts: Any) -> None:
        rows.write(world.alias, f"{name}-released")

    signals.lock_released.connect(audit)
    try:
        with transaction.atomic(world.alias):
            transaction.on_commit(lambda: hooks.append(1), using=world.alias)
            with world.lock():
                world.write()
            if fails:
                raise Boom
    except Boom:
        assert fails
    finally:
        signals.lock_released.disconnect(audit)
    assert world.connection.get_autocommit()
    assert (world.written(), len(hooks)) == (not fails, not fails)
    world.connection.close()
    assert rows.count(world.alias, world.name + "-released") == 1
    check_connections_are_clean()


def test_r11_failed_deferred_release_logs_and_signals_and_does_not_raise(lease_world: World, caplog: Any) -> None:
    world = lease_world
    backend = registry.entry(world.using).backend
    leases = [world.lock().acquire(), world.lock("-2").acquire()]
    grants: list[Any] = [lease._grant for lease in leases]
    failing = mock.patch.object(backend, "release", side_effect=[Boom("the engine is gone"), mock.DEFAULT])
    with failing as release, caplog.at_level(logging.ERROR), transaction.atomic(world.alias):
        world.write()
        for lease in leases:
            lease.release()
    assert world.written() == 1
    assert release.call_count == 2, "the failure of one must not keep the other"
    assert world.heard == ["acquired", "lost (unreachable)"]
    assert "the engine is gone" in caplog.text
    check_connections_are_clean()
    for grant in grants:
        backend.release(grant)


@pytest.mark.tier2
def test_r11_renewal_goes_on_until_the_transaction_has_ended(lease_world: World) -> None:
    with lease_world.transaction(0):
        with lease_world.lock(ttl=3) as lease:
            first: Any = lease.valid_until
        eventually(lambda: lease._grant is not None and lease._grant.valid_until > first, "not renewed")


def test_r8_shared_and_then_exclusive_in_one_transaction(lease_world: World, name: str) -> None:
    """A shared lock that its transaction keeps is in the way of an exclusive one, and the error says so."""
    shared, exclusive = (advisory_lock(name, using="memory", shared=shared) for shared in (True, False))
    with transaction.atomic():
        with shared:
            pass
        with pytest.raises(DeadlockDetected, match="keeps it until that ends"):
            exclusive.acquire()
        with shared:
            pass
    with exclusive:
        pass


# what it costs


def test_r11_statements_inside_atomic_on_postgresql(postgres: World) -> None:
    """One to acquire, none to release, and none of our own at the end; as the server counts, for to the client they are
    no queries of the application. Entered again after its block it is asked once, entered again inside it is not."""
    world = postgres

    def acquires(again: bool) -> int:
        with counted("postgres") as calls, transaction.atomic("postgres"):
            with world.lock():
                pass
            if again:
                with world.lock(), world.lock():
                    pass
        return sum(count for text, count in calls.items() if "advisory" in text or "distlock" in text)

    assert [acquires(again=False), acquires(again=True)] == [1, 2]
    assert not registry.entry("postgres").backend.sessions.all(), "a session was opened"  # type: ignore[attr-defined]
