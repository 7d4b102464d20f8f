"""R14: an aborted transaction leaks no lock, and a release masks no exception."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, Error, InternalError, connections, transaction

from django_distlock import BackendUnavailable, LockLost, LockNotHeld
from tests.conftest import eventually
from tests.faults.server import end_session, holders
from tests.transactions import rows
from tests.transactions.ways import Boom
from tests.transactions.world import check_connections_are_clean, execute, swallow

if TYPE_CHECKING:
    from tests.transactions.world import World


def break_transaction(world: World) -> None:
    """On PostgreSQL every further statement is refused from here on."""
    execute(world.alias, "SELECT * FROM no_such_table")


def test_r14_error_of_the_body_comes_out_and_the_lock_is_free(world: World) -> None:
    def work() -> None:
        with transaction.atomic(world.alias), world.lock():
            world.write()
            break_transaction(world)

    with pytest.raises(DatabaseError, match="no_such_table"):
        work()
    assert not world.is_out()
    assert world.written() == 0
    world.check_returned_once()


def test_r14_caught_error_leaves_the_lock_to_the_end_of_the_transaction(world: World) -> None:
    """PostgreSQL rolls back, and frees its own locks, with the error; all that is left of the transaction is its end.
    Nothing that was written can be committed, so nothing was given up too early."""
    with transaction.atomic(world.alias):
        with world.lock() as lease:
            world.write()
            with swallow(DatabaseError):
                break_transaction(world)
            assert lease.held is not world.scoped
            assert not lease.lost
        if world.scoped:
            world.starts_to_wait()
            world.check_rival_came_in(0)
        else:
            world.still_inside()
        transaction.set_rollback(True, using=world.alias)
    world.check_rival_came_in(0)
    world.check_returned_once()


def test_r14_lease_tells_the_truth_in_an_aborted_transaction(postgres: World) -> None:
    """PostgreSQL frees the locks of a transaction with the error, before its ROLLBACK: from then on the lease is not
    held, and code that asks does not go on. Nothing is lost, for nothing can be committed any more."""
    lost: list[Any] = []
    with transaction.atomic("postgres"):
        lease = postgres.lock().acquire()
        lease.on_lost(lost.append)
        lease.ensure_held()
        with swallow(DatabaseError):
            break_transaction(postgres)
        assert not postgres.is_out()
        assert not lease.held
        with pytest.raises(LockLost, match=r"was lost \(its transaction was aborted\)"):
            lease.ensure_held()
        transaction.set_rollback(True, using="postgres")
    assert (lease.held, lease.lost, lost) == (False, False, [])
    with pytest.raises(LockNotHeld):
        lease.ensure_held()
    lease.release()
    check_connections_are_clean()


@pytest.mark.parametrize("low_level", [False, True], ids=["atomic", "savepoint"])
def test_r14_lock_from_before_the_savepoint_is_held_again_after_its_rollback(postgres: World, low_level: bool) -> None:
    """Inside the broken savepoint nobody can tell; the rollback of the savepoint gives the transaction back."""
    with transaction.atomic("postgres"):
        lease = postgres.lock().acquire()
        if low_level:
            savepoint = connections["postgres"].savepoint()
            with swallow(DatabaseError):
                break_transaction(postgres)
            assert not lease.held
            transaction.savepoint_rollback(savepoint, using="postgres")
        else:
            with swallow(DatabaseError), transaction.atomic("postgres"):
                break_transaction(postgres)
        lease.ensure_held()
        assert postgres.is_out()
    assert not lease.lost
    assert not postgres.is_out()


def test_r14_acquire_in_an_aborted_transaction(postgres: World) -> None:
    """PostgreSQL refuses the statement: an error of this library with the driver's as its cause, and nothing held."""
    with transaction.atomic("postgres"):
        with swallow(DatabaseError):
            break_transaction(postgres)
        for _ in range(2):
            with pytest.raises(BackendUnavailable) as caught:
                postgres.lock().acquire()
            assert isinstance(caught.value.__cause__, InternalError)
        transaction.set_rollback(True, using="postgres")
    assert not postgres.is_out()
    check_connections_are_clean()


@pytest.fixture
def session_world(make_world: Any) -> World:
    """A lock on a session of its own, which the server can end."""
    world: World = make_world("postgres", "default")
    return world


def lose(world: World, lease: Any) -> None:
    end_session(world.using, holders(world.using, world.name)[0])
    eventually(lambda: lease.lost if lease else "lost (session)" in world.heard, "not lost")


@pytest.mark.parametrize("face", ["with", "decorator", "lease"])
def test_r14_lost_lock_does_not_mask_the_error_of_the_body(
    session_world: World, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = session_world

    def body(lease: Any = None) -> None:
        lose(world, lease)
        raise Boom

    def by_with() -> None:
        with world.lock() as lease:
            body(lease)

    def by_lease() -> None:
        with world.lock().acquire() as lease:
            body(lease)

    faces = {"with": by_with, "lease": by_lease, "decorator": world.lock()(body)}
    with caplog.at_level(logging.WARNING), pytest.raises(Boom), transaction.atomic(world.alias):
        faces[face]()
    assert "This error is only logged, because another exception is being raised" in caplog.text


def test_r16_lost_lock_is_raised_also_inside_an_except_block(session_world: World) -> None:
    """The exception that is being handled by the caller is over; it hides nothing."""
    world = session_world
    try:
        raise Boom
    except Boom:
        with pytest.raises(LockLost), world.lock() as lease:
            lose(world, lease)
        with pytest.raises(LockLost):
            world.lock()(lambda: lose(world, None))()


def test_r14_connection_that_the_server_ended(world: World) -> None:
    """The session of the transaction is gone: no lock is leaked, and what comes out is the error of the database."""

    def work() -> None:
        with transaction.atomic(world.alias), world.lock():
            if world.alias == "default":
                world.connection.connection.close()
            else:
                rows.kill(world.alias, rows.server_id(world.alias))
            world.write()

    with pytest.raises(Error):
        work()
    assert not world.is_out()
    world.check_returned_once()
    with transaction.atomic(world.alias), world.lock():
        world.write()
    assert world.written() == 1
