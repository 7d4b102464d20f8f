"""R11: the wrappers on the connection stay out of everybody's way, and are gone afterwards."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from django.db import DatabaseError, connections, transaction

from django_distlock import LockNotHeld, advisory_lock
from django_distlock.manager.lock_table import State, lock_table
from tests.manager.transactions import rows
from tests.manager.transactions.rival import is_out
from tests.manager.transactions.world import WRAPPED, World, swallow

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("method", WRAPPED)
def test_r11_somebody_elses_wrapper_survives(one_world: World, method: str) -> None:
    """Others put attributes on a connection too: test suites (``connection.close = ...``), mock, tracing tools."""
    world = one_world
    connection = world.connection
    connection.ensure_connection()
    original = getattr(connection, method)
    with mock.patch.object(connection, method, wraps=original) as patched:
        with transaction.atomic(world.alias), world.lock():
            world.write()
        assert connection.__dict__.get(method) is patched, "the wrapper of somebody else is gone"
        with transaction.atomic(world.alias), world.lock():
            assert is_out(world.rival, world.using, world.name)
        assert not is_out(world.rival, world.using, world.name)
        if method in ("commit", "set_autocommit"):
            assert patched.call_count >= 2, "the wrapper of somebody else was passed by"
    assert method not in connection.__dict__


@pytest.mark.parametrize("method", WRAPPED)
def test_r11_somebody_elses_wrapper_around_ours(one_world: World, method: str) -> None:
    """It may be put on while ours is there, and be taken off when ours has gone."""
    world = one_world
    connection = world.connection
    with transaction.atomic(world.alias):
        with world.lock():
            world.write()
        patch = mock.patch.object(connection, method, wraps=getattr(connection, method))
        patch.start()
        assert is_out(world.rival, world.using, world.name)
    assert not is_out(world.rival, world.using, world.name)
    patch.stop()
    for _ in range(2):
        with transaction.atomic(world.alias), world.lock():
            assert is_out(world.rival, world.using, world.name)
        assert not is_out(world.rival, world.using, world.name)
    connection.close()
    assert rows.count(world.alias, world.name) == 1


def in_thread(function: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("method", ["commit", "rollback", "close"])
def test_r11_refused_call_from_another_thread_ends_nothing(one_world: World, method: str) -> None:
    """Django refuses it, and the transaction goes on."""
    world = one_world
    connection = world.connection
    with transaction.atomic(world.alias):
        with world.lock():
            world.write()
        with swallow(DatabaseError):
            in_thread(getattr(connection, method))
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()


@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_r11_refused_call_inside_atomic_ends_nothing(one_world: World, method: str) -> None:
    world = one_world
    with transaction.atomic(world.alias):
        with world.lock():
            world.write()
        with swallow(transaction.TransactionManagementError):
            getattr(world.connection, method)()
        with swallow(transaction.TransactionManagementError):
            world.connection.set_autocommit(True)
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()


def test_r11_lock_taken_after_the_connection_was_closed_in_its_block(one_world: World) -> None:
    """There is no transaction any more, although Django leaves its block only later."""
    world = one_world
    with transaction.atomic(world.alias):
        with world.lock():
            pass
        world.connection.close()
        with world.lock() as lease:
            assert is_out(world.rival, world.using, world.name)
            assert lease.held
        assert not is_out(world.rival, world.using, world.name)
    assert not is_out(world.rival, world.using, world.name)
    world.check_connection_is_clean()


def test_r11_lease_is_released_in_another_thread_while_the_transaction_goes_on(one_world: World) -> None:
    """R16 and R11 together: who releases it does not matter, the transaction does."""
    world = one_world
    with transaction.atomic(world.alias):
        lease = world.lock().acquire()
        world.write()
        in_thread(lease.release)
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()


def test_r11_release_in_another_thread_at_the_moment_the_transaction_ends(one_world: World) -> None:
    """The transaction ends after the releasing thread saw it open, and before it could put the lock aside for it."""
    world = one_world
    seen, ended = threading.Event(), threading.Event()
    # a lock that ends with its transaction is put aside by the step that counts the lease out
    step = "leave" if world.using == "postgres" else "defer"
    put_aside = getattr(lock_table, step)

    def late(*args: Any) -> Any:
        seen.set()
        assert ended.wait(10)
        return put_aside(*args)

    with mock.patch.object(lock_table, step, late):
        with transaction.atomic(world.alias):
            lease = world.lock().acquire()
            world.write()
            thread = threading.Thread(target=lease.release)
            thread.start()
            assert seen.wait(10)
        ended.set()
        thread.join()
    assert lease._hold.state is State.ENDED, "kept for a transaction that is over"
    assert not is_out(world.rival, world.using, world.name)
    world.check_connection_is_clean()


def test_r11_lease_that_was_lost_inside_is_not_given_back(one_world: World) -> None:
    """What was lost before the end is not released at the end: it is somebody else's by then."""
    from django_distlock.manager.release import lose

    world = one_world
    with transaction.atomic(world.alias):
        lease = world.lock().acquire()
        grant: Any = lease._grant
        lose(lease._hold, "test")
    assert world.engine_releases == 0
    assert lease.lost
    world.check_connection_is_clean()
    if world.using != "postgres":
        assert lease._hold.backend.release(grant)


def test_r11_nothing_is_left_on_a_connection_that_never_opened(one_world: World) -> None:
    """R12 opens transactions on databases that a view may never touch."""
    world = one_world
    world.connection.close()
    with world.lock():
        pass
    assert not {"_distlock_watch", *WRAPPED} & set(world.connection.__dict__)
    with transaction.atomic(world.alias):
        lease = world.lock().acquire()
    with pytest.raises(LockNotHeld):
        lease.ensure_held()
    world.check_connection_is_clean()


def test_r11_hundred_locks_of_one_transaction(one_world: World) -> None:
    world = one_world
    names = [f"{world.name}-{n}" for n in range(100)]
    with transaction.atomic(world.alias):
        for name in names:
            with advisory_lock(name, using=world.using):
                pass
        watch = world.connection._distlock_watch
        assert len(watch.holds) == 100
        assert is_out(world.rival, world.using, names[0])
        assert is_out(world.rival, world.using, names[99])
    assert not lock_table.held()
    assert not is_out(world.rival, world.using, names[0])
    assert not is_out(world.rival, world.using, names[99])
