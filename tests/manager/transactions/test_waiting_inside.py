"""R5, R7, R8 inside a transaction of PostgreSQL: a wait that ends leaves it, and its settings, as they were."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from psycopg.pq import TransactionStatus

from django_distlock import DeadlockDetected, LockNotAcquired, LockTimeout, advisory_lock
from django_distlock.backends.postgres import statements
from django_distlock.backends.postgres import transaction as postgres_transaction
from django_distlock.manager import interrupted, lock_table
from tests.conftest import eventually
from tests.faults.server import key_of
from tests.manager.transactions import rows
from tests.manager.transactions.reconnecting import options
from tests.support.interrupts import interrupted_everywhere
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.manager.transactions.world import World


def ask(sql: str) -> Any:
    with connections["postgres"].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def held_here() -> int:
    return int(ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"))


@pytest.mark.usefixtures("patient")
def test_r5_timeout_inside_atomic_returns_in_time_and_the_transaction_lives(postgres: World, busy: str) -> None:
    world = postgres
    took = []
    with transaction.atomic("postgres"):
        world.write()
        for _ in range(4):
            started = time.monotonic()
            with pytest.raises(LockTimeout):
                advisory_lock(busy, using="postgres").acquire(timeout=0.5)
            took.append(time.monotonic() - started)
        with pytest.raises(LockNotAcquired):
            advisory_lock(busy, using="postgres").acquire(timeout=0)
        assert advisory_lock(busy, using="postgres").try_acquire() is None
        assert held_here() == 0
        world.write()
        with world.lock():
            pass
    assert min(took) >= 0.5
    within(max(took), 0.55, what=f"took {[round(seconds, 3) for seconds in took]}")
    assert rows.count("postgres", world.name) == 2


@pytest.mark.usefixtures("patient")
def test_r5_a_wait_that_begins_the_transaction_leaves_it_unbegun(postgres: World, busy: str) -> None:
    """Neither the timeout of one that begins with the wait nor its way back costs what is written after it."""
    world = postgres
    learn_that_it_is_busy(busy)
    with transaction.atomic("postgres"):
        for _ in range(2):
            started = time.monotonic()
            assert advisory_lock(busy, using="postgres").try_acquire(0.2) is None
            within(time.monotonic() - started, 0.25, least=0.2)
            assert status(world) == TransactionStatus.IDLE
        assert held_here() == 0
        world.write()
    assert rows.count("postgres", world.name) == 1


def learn_that_it_is_busy(busy: str) -> None:
    """From now on it is waited for without a try."""
    with transaction.atomic("postgres"):
        assert advisory_lock(busy, using="postgres").try_acquire() is None


def status(world: World) -> TransactionStatus:
    return TransactionStatus(world.connection.connection.pgconn.transaction_status)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("outcome", ["granted", "timeout"])
def test_r7_lock_timeout_is_as_it_was_if_the_wait_begins_the_transaction(
    postgres: World, busy: str, outcome: str
) -> None:
    world = postgres
    learn_that_it_is_busy(busy)
    with connections["postgres"].cursor() as cursor:
        cursor.execute("SET lock_timeout = '2500ms'")
        try:
            with transaction.atomic("postgres"):
                if outcome == "timeout":
                    assert advisory_lock(busy, using="postgres").try_acquire(0.1) is None
                else:
                    let_go_soon(world, lambda: world.lock().acquire(timeout=10))
                assert ask("SHOW lock_timeout") == "2500ms"
        finally:
            cursor.execute("RESET lock_timeout")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("value", ["0", "1d", "2500ms", "90min", "1s"])
@pytest.mark.parametrize("how", ["local", "session"])
@pytest.mark.parametrize("outcome", ["granted", "timeout"])
def test_r7_lock_timeout_is_as_it_was(postgres: World, busy: str, value: str, how: str, outcome: str) -> None:
    """Also after the transaction, and also if the user had a value of his own that we would not write that way."""
    world = postgres
    with connections["postgres"].cursor() as cursor:
        if how == "session":
            cursor.execute(f"SET lock_timeout = '{value}'")
        with transaction.atomic("postgres"):
            if how == "local":
                cursor.execute(f"SET LOCAL lock_timeout = '{value}'")
            before = ask("SHOW lock_timeout")
            if outcome == "timeout":
                assert advisory_lock(busy, using="postgres").try_acquire(0.1) is None
            else:
                wait_for_grant(world)
            assert ask("SHOW lock_timeout") == before
            assert ask("SELECT current_setting('lock_timeout')") == before
        assert ask("SHOW lock_timeout") == (before if how == "session" else "0")
        cursor.execute("RESET lock_timeout")


def wait_for_grant(world: World) -> None:
    """A real wait in the queue of the server, which ends with the lock."""
    ask("SELECT 1")  # the transaction has begun
    assert let_go_soon(world, lambda: world.lock().acquire(timeout=10)).held


def let_go_soon(world: World, acquire: Callable[[], Any]) -> Any:
    """Acquire a lock that another session frees once it is waited for."""
    other = connections["postgres"].copy()
    number = key_of("postgres", world.name).number
    pid = world.connection.connection.info.backend_pid

    def let_go() -> None:
        try:
            with other.cursor() as cursor:
                eventually(lambda: waits(cursor, pid), "nobody waits")
                cursor.execute("SELECT pg_advisory_unlock(%s)", [number])
        finally:
            other.close()

    other.inc_thread_sharing()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [number])
    thread = threading.Thread(target=let_go)
    thread.start()
    lease = acquire()
    thread.join()
    return lease


def waits(cursor: Any, pid: int) -> bool:
    cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = %s", [pid])
    return bool(cursor.fetchone()[0])


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("threshold", [None, 0, 1])
@pytest.mark.parametrize("binding", [False, True])
def test_r7_wait_with_prepared_statements_and_server_side_binding(
    postgres: World, busy: str, threshold: int | None, binding: bool
) -> None:
    """OPTIONS that change how Django's cursor talks to the server."""
    world = postgres
    with (
        options("postgres", prepare_threshold=threshold, server_side_binding=binding),
        transaction.atomic("postgres"),
    ):
        world.write()
        for _ in range(3):
            assert advisory_lock(busy, using="postgres").try_acquire(0.1) is None
        wait_for_grant(world)
        assert held_here() == 1
        world.write()
    assert rows.count("postgres", world.name) == 2


@pytest.mark.usefixtures("patient")
def test_r5_statement_timeout_of_the_user_does_not_end_a_longer_wait(postgres: World, busy: str) -> None:
    world = postgres
    with transaction.atomic("postgres"):
        world.write()
        with connections["postgres"].cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = '50ms'")
        started = time.monotonic()
        assert advisory_lock(busy, using="postgres").try_acquire(0.3) is None
        within(time.monotonic() - started, 0.35, least=0.3)
        assert ask("SHOW statement_timeout") == "50ms"
    assert rows.count("postgres", world.name) == 1


def test_r8_deadlock_between_two_transactions(postgres: World) -> None:
    """Two threads, crosswise: found at once, inside the process. Whoever is told can go on."""
    world = postgres
    names = [world.name + "-1", world.name + "-2"]
    both, outcomes = threading.Barrier(2), []

    def work(first: str, second: str) -> None:
        try:
            with transaction.atomic("postgres"):
                with advisory_lock(first, using="postgres"):
                    both.wait(10)
                    try:
                        with advisory_lock(second, using="postgres", timeout=8):
                            outcomes.append("got it")
                    except DeadlockDetected:
                        outcomes.append("deadlock")
                rows.write("postgres", world.name)
        finally:
            connections.close_all()

    started = time.monotonic()
    threads = [threading.Thread(target=work, args=pair) for pair in (names, names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["deadlock", "got it"]
    within(time.monotonic() - started, 4)
    assert rows.count("postgres", world.name) == 2


def test_r8_deadlock_between_two_processes_is_found_by_the_server(postgres: World) -> None:
    """40P01: the victim's transaction goes on, without what the failed attempt had taken, with what it had before."""
    world = postgres
    mine, its = world.name + "-mine", world.name + "-its"
    other = connections["postgres"].copy()
    other.inc_thread_sharing()
    keys = {name: key_of("postgres", name).number for name in (mine, its)}
    done: list[object] = []

    def wait_for_mine() -> None:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [keys[mine]])
        done.append(True)

    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '10s'")  # ours looks first, after its one second
            cursor.execute("SELECT pg_backend_pid()")
            pid = cursor.fetchone()[0]
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [keys[its]])
        thread = threading.Thread(target=wait_for_mine)
        with transaction.atomic("postgres"):
            world.write()
            first = advisory_lock(mine, using="postgres").acquire()
            thread.start()
            with connections["postgres"].cursor() as cursor:
                eventually(lambda: waits(cursor, pid), "the other does not wait")
            with pytest.raises(DeadlockDetected) as caught:
                advisory_lock(its, using="postgres").acquire(timeout=8)
            assert caught.value.__cause__ is not None
            assert first.held
            assert held_here() == 1
            world.write()
        thread.join(10)
        assert done
        assert rows.count("postgres", world.name) == 2
    finally:
        other.rollback()
        other.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("begun", [True, False])
def test_r7_interrupted_wait_leaves_the_transaction_usable(postgres: World, busy: str, begun: bool) -> None:
    """Ctrl-C while waiting, caught inside the transaction: as after a timeout."""
    world = postgres
    pid, here = ask("SELECT pg_backend_pid()"), threading.get_ident()

    def interrupt() -> None:
        try:
            with connections["postgres"].cursor() as cursor:
                eventually(lambda: waits(cursor, pid), "nobody waits")
            signal.pthread_kill(here, signal.SIGINT)  # the system call returns, unlike with interrupt_main()
        finally:
            connections.close_all()

    with transaction.atomic("postgres"):
        if begun:
            world.write()
        thread = threading.Thread(target=interrupt)
        thread.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            advisory_lock(busy, using="postgres").acquire(timeout=10)
        within(time.monotonic() - started, 2, what="to notice it")
        thread.join()
        assert held_here() == 0
        world.write()
    assert rows.count("postgres", world.name) == 1 + begun


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("begun", [True, False])
def test_r7_a_wait_that_is_interrupted_anywhere_leaves_nothing_held(postgres: World, busy: str, begun: bool) -> None:
    """Behind the transaction, which an interrupt of the way back may abort; and the connection is as it was."""
    world = postgres
    lock = advisory_lock(busy, using="postgres")
    learn_that_it_is_busy(busy)
    blocks: list[Any] = []

    def begin() -> None:
        blocks.append(transaction.atomic("postgres"))
        blocks[0].__enter__()
        if begun:
            ask("SELECT 1")

    def clean() -> None:
        interrupted.look()
        blocks.pop().__exit__(None, None, None)
        eventually(lambda: not lock_table.lock_table.all(), "held in this process")
        world.check_connection_is_clean()
        assert "wait" not in vars(world.connection.connection)
        assert held_here() == 0
        begin()

    begin()
    # on a busy machine a shorter wait is over before it has come to the server
    assert interrupted_everywhere(lambda: lock.try_acquire(0.02), clean, statements, postgres_transaction) > 20
    blocks.pop().__exit__(None, None, None)
