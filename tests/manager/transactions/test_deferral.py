"""R11: what is kept for a transaction: leases from outside, leases that nobody released, re-entry, failures."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from django.db import connections, transaction

from django_distlock import LockNotHeld, advisory_lock, lock_all, semaphore, signals
from django_distlock.manager.lock_table import State
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.manager.transactions import rows
from tests.manager.transactions.rival import is_out
from tests.manager.transactions.world import World, swallow

if TYPE_CHECKING:
    from django_distlock.backends.base import Backend

ENDS = ("commit", "rollback", "close")


def finish(world: World, end: str) -> int:
    """The last statement of an atomic block that shall end so."""
    if end == "rollback":
        transaction.set_rollback(True, using=world.alias)
    elif end == "close":
        world.connection.close()
        world.ended()
    return int(end == "commit")


@pytest.mark.parametrize("end", ENDS)
def test_r11_lease_from_outside_released_inside_is_deferred(one_world: World, end: str) -> None:
    world = one_world
    lease = world.lock().acquire()
    with transaction.atomic(world.alias):
        world.write()
        lease.release()
        assert not lease.held
        world.still_inside()
        seen = finish(world, end)
    world.check_rival_came_in(seen)
    world.check_returned_once(transaction_scope=False)


@pytest.mark.parametrize("end", ENDS)
def test_r11_lease_that_nobody_released_ends_with_the_outermost_transaction(one_world: World, end: str) -> None:
    world = one_world
    with transaction.atomic(world.alias):
        with transaction.atomic(world.alias):
            lease = world.lock().acquire()
            world.write()
        assert lease.held
        world.still_inside()
        seen = finish(world, end)
    world.check_rival_came_in(seen)
    world.check_returned_once()
    assert not lease.held
    with pytest.raises(LockNotHeld):
        lease.ensure_held()
    lease.release()
    world.check_rival_keeps_it()


def test_r11_lock_around_the_transaction_is_given_back_by_its_own_exit(one_world: World) -> None:
    """R10: the natural order needs nothing; no watch is put on the connection."""
    world = one_world
    with world.lock():
        with transaction.atomic(world.alias):
            world.write()
            world.check_connection_is_clean(locked=True)
        world.still_inside()
    world.check_rival_came_in(1)
    assert not world.returned


def spy(using: str, method: str) -> Any:
    backend = registry.entry(using).backend
    return mock.patch.object(backend, method, wraps=getattr(backend, method))


def test_r11_reentry_after_the_with_block_asks_the_engine_again(one_world: World) -> None:
    world = one_world
    with transaction.atomic(world.alias), spy(world.using, "verify") as verify:
        with world.lock(), world.lock():
            pass
        assert not verify.called, "a re-entry of a lock that is held costs nothing"
        with world.lock() as lease:
            assert verify.call_count == 1
            assert lease.held
        with world.lock():
            assert verify.call_count == 2
            world.write()
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()


def test_r11_reentry_finds_that_the_engine_gave_the_lock_to_somebody_else(one_world: World) -> None:
    """The kept lock is taken away behind our back; whoever asks again must not be told that it still has it."""
    world = one_world
    losses: list[str] = []
    backend = registry.entry(world.using).backend

    def lost(reason: str, name: str, **kwargs: Any) -> None:
        if name == world.name:
            losses.append(reason)

    signals.lock_lost.connect(lost)
    try:
        with transaction.atomic(world.alias):
            if world.using == "postgres":
                with world.connection.cursor() as cursor:
                    cursor.execute("SAVEPOINT by_hand")
            with world.lock() as lease:
                grant: Any = lease._grant
            take_away(backend, grant, world)
            world.still_inside_but_free()
            world.check_rival_came_in(0)
            assert world.lock().try_acquire() is None
    finally:
        signals.lock_lost.disconnect(lost)
    assert losses in (["stolen"], ["session"])  # found by asking, or by the keepalive thread before that
    world.check_connection_is_clean()


def take_away(backend: Backend, grant: Any, world: World) -> None:
    if world.using == "postgres":
        # past Django, whose cursors are listened to
        world.connection.connection.execute("ROLLBACK TO SAVEPOINT by_hand")
    elif world.using == "mysql":
        rows.kill(world.alias, grant.session.server_id)
    else:
        assert type(backend).release(backend, grant)


def test_r11_a_kept_lock_does_not_stand_in_the_way_of_its_own_context_only(one_world: World) -> None:
    """Kept for a transaction, the lock is still refused to other threads of this process and to other processes."""
    import threading

    world = one_world
    answers: list[object] = []

    def other_thread() -> None:
        try:
            answers.append(world.lock().try_acquire())
        finally:
            connections.close_all()

    with transaction.atomic(world.alias):
        with world.lock():
            pass
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        assert answers == [None]
        assert is_out(world.rival, world.using, world.name)
        with world.lock().acquire(timeout=0) as lease:
            assert lease.held


@pytest.mark.parametrize("end", ENDS)
def test_r11_sets_and_semaphores_are_kept_too(one_world: World, end: str) -> None:
    world = one_world
    names = [world.name, world.name + "-2"]
    slots = semaphore(world.name + "-slots", 1, using=world.using)
    with transaction.atomic(world.alias):
        with lock_all(names, using=world.using), slots:
            world.write()
        assert is_out(world.rival, world.using, names[1])
        assert slots.try_acquire() is None, "a semaphore is not re-entrant, and its slot is kept"
        world.still_inside()
        seen = finish(world, end)
    world.check_rival_came_in(seen)
    assert not is_out(world.rival, world.using, names[1]) or world._waiting
    with slots:
        pass
    world.check_connection_is_clean()


def test_r11_released_before_the_users_own_hooks(one_world: World) -> None:
    world = one_world
    seen: list[object] = []

    def hook() -> None:
        seen.append(is_out(world.rival, world.using, world.name))
        with world.lock() as lease:
            seen.append(lease.held)
        seen.append(is_out(world.rival, world.using, world.name))

    with transaction.atomic(world.alias):
        transaction.on_commit(hook, using=world.alias)
        with world.lock():
            world.write()
        transaction.on_commit(hook, using=world.alias)
        assert is_out(world.rival, world.using, world.name)
    assert seen == [False, True, False] * 2
    world.check_connection_is_clean()


class Broken(Exception):
    pass


def _in_steps(backend: Backend) -> Any:
    """Switch off the fast path of a release."""
    return mock.patch.object(backend, "release_fast", return_value=False)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_r11_failed_deferred_release_logs_and_signals_and_does_not_raise(
    one_world: World, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = one_world
    losses: list[str] = []

    def lost(reason: str, **kwargs: Any) -> None:
        losses.append(reason)

    backend = registry.entry(world.using).backend
    outside = world.lock().acquire()  # on PostgreSQL too on a session of its own
    second = advisory_lock(world.name + "-2", using=world.using).acquire()
    grant = outside._grant
    failing = mock.patch.object(backend, "release", side_effect=[Broken("the engine is gone"), mock.DEFAULT])
    signals.lock_lost.connect(lost)
    try:
        with _in_steps(backend), failing as release, caplog.at_level(logging.ERROR), transaction.atomic(world.alias):
            rows.write(world.alias, world.name)
            outside.release()
            second.release()
            finish(world, end)
    finally:
        signals.lock_lost.disconnect(lost)
    assert rows.count(world.alias, world.name) == (end == "commit")
    assert release.call_count == 2, "the failure of one must not keep the other"
    assert losses == ["unreachable"]
    assert "the engine is gone" in caplog.text
    assert world.name in caplog.text
    world.check_connection_is_clean()
    for lease in (outside, second):
        assert lease._hold.state is State.ENDED
    backend.release(grant)
    backend.release(second._grant)


@pytest.mark.parametrize("step", ["release", "release_fast"])
def test_r11_interrupted_deferred_release_does_not_keep_the_other_locks(one_world: World, step: str) -> None:
    """Ctrl-C exactly while the first of two locks is given back after the commit: the keepalive thread does that."""
    world = one_world
    backend = registry.entry(world.using).backend
    leases = [advisory_lock(f"{world.name}-{n}", using=world.using).acquire() for n in range(2)]
    interrupted = mock.patch.object(backend, step, side_effect=[KeyboardInterrupt, mock.DEFAULT])
    with _in_steps(backend), swallow(KeyboardInterrupt), interrupted as release, transaction.atomic(world.alias):
        for lease in leases:
            lease.release()
    assert release.call_count == 2
    assert leases[1]._hold.state is State.ENDED
    eventually(lambda: leases[0]._hold.state is State.ENDED, "the interrupted release is not finished")
    world.check_connection_is_clean()
    backend.release(leases[1]._grant)  # the mock did not
    assert not is_out(world.rival, world.using, leases[0].name), "the engine does not have it back"


def test_r11_signals_of_a_kept_lock(one_world: World) -> None:
    """acquired and released come in pairs, also where the release waits for the transaction."""
    world = one_world
    heard: list[str] = []

    def receiver(signal: Any, name: str, **kwargs: Any) -> None:
        if name == world.name:
            heard.append("acquired" if signal is signals.lock_acquired else "released")

    for signal in (signals.lock_acquired, signals.lock_released):
        signal.connect(receiver)
    try:
        with transaction.atomic(world.alias):
            with world.lock():
                pass
            assert heard == ["acquired"]
        assert heard == ["acquired", "released"]
    finally:
        for signal in (signals.lock_acquired, signals.lock_released):
            signal.disconnect(receiver)


@pytest.mark.parametrize("using", ["leasetable", "leasetable_postgres", "leasetable_mariadb"])
def test_r11_renewal_goes_on_until_the_transaction_has_ended(make_world: Any, using: str) -> None:
    alias = {"leasetable": "default", "leasetable_postgres": "postgres"}.get(using, "mariadb")
    world = make_world(using, alias)
    ttl = 1.2  # a renewal may be late by two thirds of it
    with transaction.atomic(world.alias):
        with advisory_lock(world.name, using=using, ttl=ttl):
            world.write()
        until = time.monotonic() + 2.5 * ttl
        while time.monotonic() < until:
            assert is_out(world.rival, using, world.name), "the kept lease ran out"
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()
