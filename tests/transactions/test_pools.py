"""pgbouncer in transaction mode, psycopg's pool, and locks that must not be fooled by either."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import close_old_connections, connections, transaction

from django_distlock import UnsupportedOperation
from tests.faults.conftest import BACKENDS
from tests.transactions import rows
from tests.transactions.world import World, in_thread, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def use(settings: Any) -> Callable[..., None]:
    """The database of the lock is reached through pgbouncer. The alias keeps its name, which is part of the key."""

    def change(**more: Any) -> None:
        alias = {"BACKEND": BACKENDS["postgres"], "OPTIONS": {"database": "pgbouncer", **more}}
        settings.DISTLOCK = {**settings.DISTLOCK, "postgres": alias}

    change()
    return change


@pytest.fixture
def behind(use: Any, make_world: Any) -> World:
    """The rival uses the direct way, with the same key."""
    world: World = make_world("postgres", "pgbouncer")
    world.scoped = True
    return world


def test_r11_transaction_scope_works_behind_a_transaction_pooler(behind: World) -> None:
    """So does a wait: the savepoint, the setting and the lock are in one transaction, and on one server session."""
    world = behind
    with world.busy("-busy"), transaction.atomic("pgbouncer"):
        with world.lock() as lease:
            world.write()
            assert lease.held
        assert world.lock("-busy").try_acquire(0.1) is None
        assert rows.ask("pgbouncer", "SHOW lock_timeout") == "0"
        assert world.is_out()
    with transaction.atomic("pgbouncer"):
        with world.lock():
            world.write()
        world.still_inside()
    world.check_rival_came_in(2)
    with transaction.atomic("pgbouncer"):
        assert world.lock().try_acquire() is None


def test_session_lock_behind_a_transaction_pooler_is_refused(behind: World) -> None:
    """With the two ways out named; sync and async, decorator and with."""
    lock = behind.lock()
    decorated = lock(lambda: pytest.fail("ran without a lock"))
    for attempt in (lock.acquire, lock.try_acquire, decorated, async_to_sync(lock.aacquire)):
        with pytest.raises(UnsupportedOperation) as caught:
            attempt()
        for part in ("session_database", "atomic()", "'postgres'", "pgbouncer"):
            assert part in str(caught.value)
    assert not behind.is_out()


@pytest.mark.parametrize("inside", [False, True])
def test_session_database_makes_session_locks_work_behind_a_pooler(behind: World, use: Any, inside: bool) -> None:
    """R11 counts the transactions of ``database``, the dedicated sessions take the direct way."""
    use(session_database="postgres")
    world = behind
    around = [transaction.atomic("pgbouncer"), world.lock()]
    with contextlib.ExitStack() as stack:
        entered = [stack.enter_context(each) for each in (around if inside else reversed(around))]
        world.write()
        entered[inside].ensure_held()
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()


@pytest.fixture
def pool_of_one(databases: None) -> Iterator[Any]:
    """psycopg's pool with a single connection, which each request borrows and gives back."""
    with options("postgres", pool={"min_size": 1, "max_size": 1, "timeout": 5}):
        connections["postgres"].settings_dict["CONN_MAX_AGE"] = 0
        try:
            yield
        finally:
            connections["postgres"].close()
            connections["postgres"].close_pool()


def test_r1_pool_of_one_does_not_enter_another_requests_lock(pool_of_one: None, postgres: World) -> None:
    """CONN_MAX_AGE=0 and ``close_old_connections()``, which ends every request, take no lock along."""
    world = postgres

    def next_request() -> list[object]:
        world.written()  # on the one connection of the pool
        answers: list[object] = [world.lock().try_acquire()]
        with transaction.atomic("postgres"):
            return [*answers, world.lock().try_acquire()]

    with world.lock() as lease:
        world.write()
        close_old_connections()
        connections["postgres"].close()  # back to the pool
        assert in_thread(next_request) == [None, None]
        lease.ensure_held()
        world.still_inside()
    world.check_rival_came_in(1)
