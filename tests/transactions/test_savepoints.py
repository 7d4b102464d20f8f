"""R15: ``ROLLBACK TO`` a savepoint frees a transaction-scoped lock that was taken after it, and no other. R14: an
aborted transaction leaks no lock, and a release masks no exception."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, Error, InternalError, transaction

from django_distlock import BackendUnavailable, LockLost, LockNotHeld, semaphore
from django_distlock.manager.registry import registry
from tests.transactions import ways
from tests.transactions.conftest import KINDS
from tests.transactions.test_deferral import free_places
from tests.transactions.ways import Boom
from tests.transactions.world import World, check_connections_are_clean, in_thread, swallow


def back(world: World, how: str) -> Any:
    """Take the lock after a savepoint and go back to that; returns the lease."""
    if how == "low_level":
        sid = world.connection.savepoint()
        lease = world.lock().acquire()
        transaction.savepoint_rollback(sid, using=world.alias)
        transaction.savepoint_commit(sid, using=world.alias)
    else:
        with swallow(Boom), transaction.atomic(world.alias):
            if how == "deeper":
                with transaction.atomic(world.alias), transaction.atomic(world.alias):
                    lease = world.lock().acquire()
            else:
                lease = world.lock().acquire()
            if how == "released":
                lease.release()
            raise Boom
    return lease


BACK = ["atomic", "released", "deeper", "low_level"]


@pytest.mark.parametrize(("kind", "how"), [*(("own", how) for how in BACK), ("lease", "atomic"), ("session", BACK[-1])])
def test_r15_lock_taken_after_the_savepoint(make_world: Any, kind: str, how: str) -> None:
    """Each acquire is followed by one release or loss; nothing is lost by the end of what everybody has released."""
    world = make_world(*KINDS[kind])
    released = how == "released"
    with transaction.atomic(world.alias):
        world.written()
        lease = back(world, how)
        if world.scoped:
            assert (lease.held, lease.lost) == (False, not released)
            for ask in () if released else (lease.ensure_held, lease.release):
                with pytest.raises(LockLost):
                    ask()
            assert not world.is_out()
        else:
            assert lease.held is not released
        with world.lock() as second:
            assert second.held
        world.write()
        world.still_inside()
    world.check_rival_came_in(1)
    check_connections_are_clean()
    first = ["acquired", "released" if released else "lost (savepoint)"] if world.scoped else []
    assert world.heard == [*first, "acquired", "released"]


def test_r15_lock_taken_before_the_savepoint_stays(world: World) -> None:
    with world.transaction():
        with world.lock() as lease:
            world.write()
            for _ in range(2):
                with swallow(Boom), transaction.atomic(world.alias), world.lock():
                    world.write()
                    raise Boom
            sid = world.connection.savepoint()
            transaction.savepoint_rollback(sid, using=world.alias)
            assert lease.held
        with swallow(Boom), transaction.atomic(world.alias), world.lock():
            raise Boom
    assert world.heard == ["acquired", "released"]


def test_r15_only_what_was_taken_after_the_savepoint_is_lost(postgres: World) -> None:
    locks = [postgres.lock(f"-{n}") for n in range(4)]
    with transaction.atomic("postgres"):
        early = locks[0].acquire()
        sid = postgres.connection.savepoint()
        middle = locks[1].acquire()
        inner = postgres.connection.savepoint()
        late = locks[2].acquire()
        transaction.savepoint_rollback(inner, using="postgres")
        assert [lease.lost for lease in (early, middle, late)] == [False, False, True]
        after = locks[3].acquire()
        transaction.savepoint_rollback(sid, using="postgres")
        assert [lease.lost for lease in (early, middle, late, after)] == [False, True, True, True]
        assert [postgres.is_out(f"-{n}") for n in range(4)] == [True, False, False, False]
    assert not postgres.is_out("-0")


def test_r15_place_of_a_semaphore(world: World) -> None:
    """Taken after the savepoint it is free again, as a lock is; taken before it stays, also for the next block."""
    pool = semaphore(world.name, 2, using=world.using, timeout=0)
    with transaction.atomic(world.alias):
        with swallow(Boom), transaction.atomic(world.alias):
            with pool:
                pass
            raise Boom
        assert free_places(pool) == (2 if world.scoped else 1)
        with pool:
            pass
        with swallow(Boom), transaction.atomic(world.alias), pool as lease:
            raise Boom
        assert not lease.lost
        assert free_places(pool) == 1
        with pool, pool:
            assert free_places(pool) == 0
    assert free_places(pool) == 2


def test_r15_failed_release_of_a_savepoint(postgres: World) -> None:
    """``RELEASE`` of a savepoint in an aborted transaction fails; Django goes back to it instead."""
    with transaction.atomic("postgres"):
        with swallow(Exception), transaction.atomic("postgres"):
            lease = postgres.lock().acquire()
            with swallow(Exception):
                postgres.ask("SELECT 1/0")
        assert lease.lost
        assert not postgres.is_out()
        postgres.write()
    assert postgres.written() == 1


def test_r15_another_thread_ends_the_transaction_while_the_server_is_asked(
    postgres: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a task does that shares the connection: what it releases is neither lost nor released again."""
    backend = registry.entry("postgres").backend
    asked = []

    def still_held(connection: Any, keys: Any) -> set[Any]:
        in_thread(vars(connection)["_distlock_watch"].ended)
        asked.append(keys)
        return set()

    with transaction.atomic("postgres"):
        sid = postgres.connection.savepoint()
        lease = postgres.lock().acquire()
        with monkeypatch.context() as patch:
            patch.setattr(backend, "still_held", still_held)
            transaction.savepoint_rollback(sid, using="postgres")
        assert asked
        assert not lease.lost
    assert postgres.heard == ["acquired", "released"]
    check_connections_are_clean()


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
