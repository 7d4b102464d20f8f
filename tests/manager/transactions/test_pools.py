"""pgbouncer in transaction mode, psycopg's pool, and locks that must not be fooled by either."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import close_old_connections, connections, transaction

from django_distlock import UnsupportedOperation, advisory_lock
from django_distlock.manager.registry import registry
from tests.manager.transactions import rows
from tests.manager.transactions.reconnecting import options
from tests.manager.transactions.rival import is_out
from tests.manager.transactions.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.manager.transactions.rival import ProcessRival

BACKEND = "django_distlock.backends.postgres.AdvisoryBackend"


@pytest.fixture
def behind(process_rival: ProcessRival, name: str, databases: None, django_settings: Any) -> Iterator[World]:
    """A lock alias whose database is reached through pgbouncer; the rival uses the direct one, with the same key."""
    world = World("postgres", "pgbouncer", name, process_rival)
    yield world
    world.leave()


@pytest.fixture
def django_settings() -> Iterator[Any]:
    """Lock aliases behind the pooler. ``postgres`` keeps its name, which is part of the key."""
    before = settings.DISTLOCK

    def use(**changes: Any) -> None:
        settings.DISTLOCK = {
            **before,
            "postgres": {"BACKEND": BACKEND, "OPTIONS": {"database": "pgbouncer", **changes}},
        }
        registry.reset()

    use()
    yield use
    settings.DISTLOCK = before
    registry.reset()


def server_session(alias: str) -> int:
    return rows.server_id(alias)


def test_fault_session_locks_behind_a_transaction_pooler_exclude_nobody(behind: World) -> None:
    """Two clients, one server session: both get the lock."""
    first, second = (connections["pgbouncer"].copy() for _ in range(2))
    got, pids = [], set()
    try:
        for connection in (first, second):
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_lock(4711), pg_backend_pid()")
                granted, pid = cursor.fetchone()
                got.append(granted)
                pids.add(pid)
        assert got == [True, True]
        assert len(pids) == 1
    finally:
        with connections["postgres"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid", [list(pids)])
        for connection in (first, second):
            connection.close()


def test_r11_transaction_scope_works_behind_a_transaction_pooler(behind: World) -> None:
    world = behind
    with transaction.atomic("pgbouncer"):
        with world.lock() as lease:
            world.write()
            assert lease.held
        with world.lock():
            pass
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()
    with transaction.atomic("pgbouncer"):
        assert world.lock().try_acquire() is None


@pytest.mark.usefixtures("patient")
def test_r11_wait_behind_a_transaction_pooler(behind: World) -> None:
    """The savepoint, the setting and the lock are in one transaction, and so on one server session."""
    world = behind
    busy = world.name + "-busy"
    world.rival.say(["wait", "postgres", busy, "postgres"])
    assert world.rival.hear() == "waiting"
    world.rival.hear()
    try:
        with transaction.atomic("pgbouncer"):
            world.write()
            assert advisory_lock(busy, using="postgres").try_acquire(0.1) is None
            with connections["pgbouncer"].cursor() as cursor:
                cursor.execute("SHOW lock_timeout")
                assert cursor.fetchone() == ("0",)
        assert rows.count("pgbouncer", world.name) == 1
    finally:
        world.rival.say(["release"])
        world.rival.hear()


def test_session_lock_behind_a_transaction_pooler_is_refused(behind: World) -> None:
    """With the two ways out named; sync and async, decorator and with."""
    from asgiref.sync import async_to_sync

    lock = behind.lock()

    def decorated() -> None:
        raise AssertionError("ran without a lock")

    for attempt in (lock.acquire, lock.try_acquire, lock(decorated), async_to_sync(lock.aacquire)):
        with pytest.raises(UnsupportedOperation) as caught:
            attempt()
        for part in ("session_database", "atomic()", "'postgres'", "pgbouncer"):
            assert part in str(caught.value)
    assert not is_out(behind.rival, "postgres", behind.name)


@pytest.mark.parametrize("inside", [False, True])
def test_session_database_makes_session_locks_work_behind_a_pooler(
    behind: World, django_settings: Any, inside: bool
) -> None:
    """R11 counts the transactions of ``database``, the dedicated sessions take the direct way."""
    django_settings(session_database="postgres")
    world = behind
    with contextlib.ExitStack() as stack:
        if inside:
            stack.enter_context(transaction.atomic("pgbouncer"))
        lease = stack.enter_context(world.lock())
        if not inside:
            stack.enter_context(transaction.atomic("pgbouncer"))
        world.write()
        lease.ensure_held()
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_connection_is_clean()


@pytest.fixture
def pool_of_one(databases: None) -> Iterator[Any]:
    """psycopg's pool with a single connection, which each request borrows and gives back."""
    pooled = {"min_size": 1, "max_size": 1, "timeout": 5}
    with options("postgres", pool=pooled):
        connections["postgres"].settings_dict["CONN_MAX_AGE"] = 0
        try:
            yield
        finally:
            connections["postgres"].close()
            connections["postgres"].close_pool()


def test_fault_pool_hands_the_locked_connection_to_the_next_request(pool_of_one: None, name: str) -> None:
    """A session lock on Django's own connection: the next request gets that connection, and in."""
    for _ in range(2):
        with connections["postgres"].cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(4712)")
            assert cursor.fetchone() == (True,)
        connections["postgres"].close()
    with connections["postgres"].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock_all()")


def test_r1_pool_of_one_does_not_enter_another_requests_lock(pool_of_one: None, make_world: Any) -> None:
    import threading

    world = make_world("postgres", "postgres")
    answers: list[object] = []

    def next_request() -> None:
        try:
            rows.count("postgres", world.name)  # on the one connection of the pool
            answers.append(world.lock().try_acquire())
            with transaction.atomic("postgres"):
                answers.append(world.lock().try_acquire())
        finally:
            connections["postgres"].close()

    with world.lock() as lease:
        world.write()
        close_old_connections()
        connections["postgres"].close()  # back to the pool
        thread = threading.Thread(target=next_request)
        thread.start()
        thread.join()
        assert answers == [None, None]
        assert is_out(world.rival, "postgres", world.name)
        lease.ensure_held()
        world.still_inside()
    world.check_rival_came_in(1)


def test_r11_pool_of_one_gives_the_lock_back_with_the_transaction(pool_of_one: None, make_world: Any) -> None:
    world = make_world("postgres", "postgres")
    with transaction.atomic("postgres"):
        with world.lock():
            world.write()
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once()
    connections["postgres"].close()
    assert rows.count("postgres", world.name) == 1


def test_pool_is_not_used_for_lock_sessions(pool_of_one: None, make_world: Any) -> None:
    """The one connection of the pool is taken by a transaction; the lock needs none of it."""
    world = make_world("postgres", "postgres")
    with world.lock():
        pid = server_session("postgres")
        backend: Any = registry.entry("postgres").backend
        assert pid not in {session.server_id for session in backend.sessions.all()}
