"""R14: an aborted transaction leaks no lock, and a release masks no exception."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, Error, InternalError, connections, transaction

from django_distlock import BackendUnavailable, LockLost, LockNotHeld, advisory_lock
from django_distlock.manager.lock_table import lock_table
from django_distlock.manager.release import lose
from tests.manager.transactions import rows
from tests.manager.transactions.rival import is_out
from tests.manager.transactions.ways import Boom
from tests.manager.transactions.world import swallow

if TYPE_CHECKING:
    from tests.manager.transactions.world import World


def break_transaction(world: World) -> None:
    """On PostgreSQL every further statement is refused from here on."""
    with world.connection.cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


def test_r14_error_of_the_body_comes_out_and_the_lock_is_free(one_world: World) -> None:
    world = one_world

    def work() -> None:
        with transaction.atomic(world.alias), world.lock():
            world.write()
            break_transaction(world)

    with pytest.raises(DatabaseError, match="no_such_table"):
        work()
    assert not is_out(world.rival, world.using, world.name)
    assert rows.count(world.alias, world.name) == 0
    world.check_returned_once()


def test_r14_caught_error_leaves_the_lock_to_the_end_of_the_transaction(one_world: World) -> None:
    """PostgreSQL rolls back, and frees its own locks, with the error; all that is left of the transaction is its end.
    Nothing that was written can be committed, so nothing was given up too early."""
    world = one_world
    with transaction.atomic(world.alias):
        with world.lock() as lease:
            world.write()
            with swallow(DatabaseError):
                break_transaction(world)
            assert lease.held == (world.using != "postgres")
            assert not lease.lost
        if world.using == "postgres":
            world.still_inside_but_free()
            world.check_rival_came_in(0)
        else:
            world.still_inside()
        transaction.set_rollback(True, using=world.alias)
    if world.using != "postgres":
        world.check_rival_came_in(0)
    world.check_returned_once()


def test_r14_lease_tells_the_truth_in_an_aborted_transaction(make_world: Any) -> None:
    """PostgreSQL frees the locks of a transaction with the error, before its ROLLBACK: from then on the lease is not
    held, and code that asks does not go on. Nothing is lost, for nothing can be committed any more."""
    world = make_world("postgres", "postgres")
    lost: list[Any] = []
    with transaction.atomic("postgres"):
        lease = world.lock().acquire()
        lease.on_lost(lost.append)
        lease.ensure_held()
        with swallow(DatabaseError):
            break_transaction(world)
        assert not is_out(world.rival, "postgres", world.name)
        assert not lease.held
        with pytest.raises(LockLost, match=r"was lost \(its transaction was aborted\)"):
            lease.ensure_held()
        transaction.set_rollback(True, using="postgres")
    assert (lease.held, lease.lost, lost) == (False, False, [])
    with pytest.raises(LockNotHeld):
        lease.ensure_held()
    lease.release()
    world.check_connection_is_clean()


@pytest.mark.parametrize("low_level", [False, True], ids=["atomic", "savepoint"])
def test_r14_lock_from_before_the_savepoint_is_held_again_after_its_rollback(make_world: Any, low_level: bool) -> None:
    """Inside the broken savepoint nobody can tell; the rollback of the savepoint gives the transaction back."""
    world = make_world("postgres", "postgres")
    with transaction.atomic("postgres"):
        lease = world.lock().acquire()
        if low_level:
            savepoint = connections["postgres"].savepoint()
            with swallow(DatabaseError):
                break_transaction(world)
            assert not lease.held
            transaction.savepoint_rollback(savepoint, using="postgres")
        else:
            with swallow(DatabaseError), transaction.atomic("postgres"):
                break_transaction(world)
        assert lease.held
        lease.ensure_held()
        assert is_out(world.rival, "postgres", world.name)
    assert not lease.lost
    assert not is_out(world.rival, "postgres", world.name)


def test_r14_lease_from_outside_is_released_inside_an_aborted_transaction(one_world: World) -> None:
    world = one_world
    lease = world.lock().acquire()
    with transaction.atomic(world.alias):
        world.write()
        with swallow(DatabaseError):
            break_transaction(world)
        lease.release()
        world.still_inside()
        transaction.set_rollback(True, using=world.alias)
    world.check_rival_came_in(0)
    world.check_returned_once(transaction_scope=False)


def test_r14_acquire_in_an_aborted_transaction(make_world: Any) -> None:
    """PostgreSQL refuses the statement: an error of this library with the driver's as its cause, and nothing held."""
    world = make_world("postgres", "postgres")
    with transaction.atomic("postgres"):
        with swallow(DatabaseError):
            break_transaction(world)
        for _ in range(2):
            with pytest.raises(BackendUnavailable) as caught:
                world.lock().acquire(timeout=2)
            assert isinstance(caught.value.__cause__, InternalError)
        transaction.set_rollback(True, using="postgres")
    assert not lock_table.held()
    assert not is_out(world.rival, "postgres", world.name)
    world.check_connection_is_clean()


def test_r14_acquire_after_an_error_that_django_noticed(one_world: World) -> None:
    """``needs_rollback``: Django itself refuses every query; locks that need none may still be taken."""
    world = one_world
    with transaction.atomic(world.alias):
        with swallow(Boom), transaction.atomic(world.alias, savepoint=False):
            raise Boom
        if world.using == "postgres":
            with pytest.raises(BackendUnavailable) as caught:
                world.lock().acquire(timeout=0)
            assert isinstance(caught.value.__cause__, transaction.TransactionManagementError)
        else:
            with world.lock() as lease:
                assert lease.held
            assert is_out(world.rival, world.using, world.name)
    assert not is_out(world.rival, world.using, world.name)
    world.check_connection_is_clean()


@pytest.mark.parametrize("face", ["with", "decorator", "lease"])
def test_r14_lost_lock_does_not_mask_the_error_of_the_body(
    one_world: World, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = one_world

    def body(lease: Any) -> None:
        lose(lease._hold, "test")
        raise Boom

    def by_with() -> None:
        with world.lock() as lease:
            body(lease)

    def by_lease() -> None:
        with world.lock().acquire() as lease:
            body(lease)

    def by_decorator() -> None:
        world.lock()(lambda: body(held(world)))()

    faces = {"with": by_with, "lease": by_lease, "decorator": by_decorator}
    with caplog.at_level(logging.WARNING), pytest.raises(Boom), transaction.atomic(world.alias):
        faces[face]()
    assert "This error is only logged, because another exception is being raised" in caplog.text
    take_back(world)


def held(world: World) -> Any:
    """The lease of the lock that the caller holds."""
    hold = next(hold for hold in lock_table.held() if hold.key.name == world.name)
    return next(iter(hold.leases))


def take_back(world: World) -> None:
    """The loss was made up: the session still has it at the engine."""
    connections.close_all()
    from django_distlock.manager.registry import registry

    registry.close()


@pytest.mark.parametrize("face", ["with", "decorator"])
def test_r16_lost_lock_is_raised_also_inside_an_except_block(one_world: World, face: str) -> None:
    """The exception that is being handled by the caller is over; it hides nothing."""
    world = one_world

    def decorated() -> None:
        lose(held(world)._hold, "test")

    try:
        raise Boom
    except Boom:
        if face == "with":
            with pytest.raises(LockLost), world.lock():
                decorated()
        else:
            with pytest.raises(LockLost):
                world.lock()(decorated)()
    take_back(world)


def test_r14_connection_that_the_server_ended(one_world: World) -> None:
    """The session of the transaction is gone: no lock is leaked, and what comes out is the error of the database."""
    world = one_world

    def work() -> None:
        with transaction.atomic(world.alias), world.lock():
            if world.alias == "default":
                world.connection.connection.close()
            else:
                rows.kill(world.alias, rows.server_id(world.alias))
            world.write()

    with pytest.raises(Error):
        work()
    assert not is_out(world.rival, world.using, world.name)
    world.check_returned_once()
    with transaction.atomic(world.alias), advisory_lock(world.name, using=world.using):
        world.write()
    assert rows.count(world.alias, world.name) == 1
