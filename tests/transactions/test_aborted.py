"""R14: an aborted transaction leaks no lock, and a release masks no exception."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, Error, InternalError, transaction

from django_distlock import BackendUnavailable, LockLost, LockNotHeld
from tests.conftest import eventually
from tests.faults.server import end_session, holders
from tests.transactions import ways
from tests.transactions.ways import Boom
from tests.transactions.world import check_connections_are_clean, swallow

if TYPE_CHECKING:
    from tests.transactions.world import World


def break_transaction(world: World) -> None:
    """On PostgreSQL every further statement is refused from here on."""
    world.ask("SELECT * FROM no_such_table")


@pytest.mark.parametrize(("fault", "error"), [(break_transaction, "no_such_table"), (ways.kill, "")])
def test_r14_error_of_the_database_comes_out_and_the_lock_is_free(world: World, fault: Any, error: str) -> None:
    """A statement that fails, and a connection that the server has ended."""
    with swallow(Error, match=error), transaction.atomic(world.alias), world.lock():
        world.write()
        fault(world)
        world.write()
    assert not world.is_out()
    world.check_returned_once()
    with transaction.atomic(world.alias), world.lock():
        world.write()
    assert world.written() == 1


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
    held, and code that asks does not go on. Nothing is lost, for nothing can be committed any more. Another acquire is
    refused by the server: an error of this library with the driver's as its cause, and nothing held."""
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
        for _ in range(2):
            with pytest.raises(
                BackendUnavailable, match=r"^The transaction-scoped lock of alias 'postgres' failed: "
            ) as caught:
                postgres.lock("-2").acquire()
            assert isinstance(caught.value.__cause__, InternalError)
        transaction.set_rollback(True, using="postgres")
    assert (lease.held, lease.lost, lost) == (False, False, [])
    with pytest.raises(LockNotHeld):
        lease.ensure_held()
    lease.release()
    assert not postgres.is_out("-2")
    check_connections_are_clean()


def test_r14_lock_from_before_the_savepoint_is_held_again_after_its_rollback(postgres: World) -> None:
    """Inside the broken savepoint nobody can tell; the rollback of the savepoint gives the transaction back."""
    with transaction.atomic("postgres"):
        lease = postgres.lock().acquire()
        with swallow(DatabaseError), transaction.atomic("postgres"):
            try:
                break_transaction(postgres)
            finally:
                assert not lease.held
        lease.ensure_held()
        assert postgres.is_out()
    assert not lease.lost
    assert not postgres.is_out()


@pytest.mark.parametrize("face", ["with", "decorator", "lease"])
def test_r14_r16_a_lost_lock_is_raised_but_does_not_mask_the_error_of_the_body(
    make_world: Any, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On a session of its own, which the server ends. What the caller is handling is over, and hides nothing."""
    world: World = make_world("postgres", "default")

    def body(error: type[Exception] | None) -> None:
        told = len(world.heard)
        end_session(world.using, holders(world.using, world.name)[0])
        eventually(lambda: world.heard[told:] == ["lost (session)"], "not lost")
        if error:
            raise error

    def run(error: type[Exception] | None) -> None:
        if face == "decorator":
            world.lock()(body)(error)
            return
        with world.lock() if face == "with" else world.lock().acquire():
            body(error)

    with caplog.at_level(logging.WARNING), pytest.raises(Boom), transaction.atomic(world.alias):
        run(Boom)
    assert "This error is only logged, because another exception is being raised" in caplog.text
    try:
        raise Boom
    except Boom:
        with pytest.raises(LockLost):
            run(None)
