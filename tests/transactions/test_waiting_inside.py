"""R5, R7, R8 inside a transaction of PostgreSQL: a wait that ends leaves it, and its settings, as they were."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from psycopg.pq import TransactionStatus

from django_distlock import BackendUnavailable, DeadlockDetected, LockNotAcquired, LockTimeout, advisory_lock
from django_distlock.backends.postgres import transaction as transaction_locks
from django_distlock.concurrency import clock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.faults.proxy import Proxy
from tests.faults.server import key_of, waiters
from tests.support.timing import within
from tests.transactions import rows
from tests.transactions.world import World, changed, check_connections_are_clean, swallow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


ask = partial(rows.ask, "postgres")


def held_here() -> int:
    return int(ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"))


def in_vain(busy: str, timeout: float = 0.1) -> None:
    assert advisory_lock(busy, using="postgres").try_acquire(timeout) is None


@contextlib.contextmanager
def once_it_waits(name: str, act: Callable[[], object]) -> Iterator[None]:
    """In another thread ``act()``, as soon as somebody is in the queue of the server."""

    def run() -> None:
        try:
            eventually(lambda: waiters("postgres", name), "nobody waits")
            act()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


def granted_after_a_wait(world: World) -> bool:
    """Acquire a lock that another session frees once it is waited for."""
    number = world.rival.acquire("postgres", world.name)
    with once_it_waits(world.name, lambda: world.rival.release(number)):
        return world.lock(timeout=25).acquire().held


def test_r5_timeout_inside_atomic_leaves_the_transaction_alive(postgres: World, busy: str) -> None:
    """Also one that begins with the wait, and one whose user limits the time of his statements."""
    world = postgres
    lock = advisory_lock(busy, using="postgres")
    with transaction.atomic("postgres"):
        world.write()
        ask("SELECT set_config('statement_timeout', '50ms', true)")
        with pytest.raises(LockTimeout):
            lock.acquire(timeout=0.3)
        assert ask("SHOW statement_timeout") == "50ms"
        with pytest.raises(LockNotAcquired):
            lock.acquire(timeout=0)
        in_vain(busy, 0)
        assert held_here() == 0
        world.write()
        with world.lock():
            pass
    assert world.written() == 2
    with transaction.atomic("postgres"):
        for _ in range(2):
            in_vain(busy)  # known to be busy: waited for without a try
            assert world.connection.connection.pgconn.transaction_status == TransactionStatus.INTRANS
        world.write()
    assert world.written() == 3


@pytest.mark.parametrize("granted", [True, False], ids=["granted", "timeout"])
@pytest.mark.parametrize(("how", "limit"), [("local", "1d"), ("session", "2500ms"), ("begins", "90min")])
def test_r7_lock_timeout_is_as_it_was(postgres: World, busy: str, how: str, limit: str, granted: bool) -> None:
    """Also after the transaction, and also if the user had a value of his own that we would not write that way.
    "begins": the wait begins the transaction."""
    in_vain(busy, 0)
    if how != "local":
        postgres.ask(f"SET lock_timeout = '{limit}'")
    try:
        with transaction.atomic("postgres"):
            if how != "begins":
                postgres.ask(f"SET LOCAL lock_timeout = '{limit}'" if how == "local" else "SELECT 1")
            assert granted_after_a_wait(postgres) if granted else in_vain(busy) is None
            assert ask("SHOW lock_timeout") == ask("SELECT current_setting('lock_timeout')") == limit
        assert ask("SHOW lock_timeout") == (limit if how != "local" else "0")
    finally:
        postgres.ask("RESET lock_timeout")


def test_r8_deadlock_between_two_processes_is_found_by_the_server(postgres: World) -> None:
    """40P01: the victim's transaction goes on, without what the failed attempt had taken, with what it had before."""
    world, done = postgres, []
    other = connections["postgres"].copy()
    other.inc_thread_sharing()

    def take(suffix: str) -> None:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [key_of("postgres", world.name + suffix).number])
        done.append(suffix)

    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '60s'")  # ours looks first, after its one second
        take("-its")
        thread = threading.Thread(target=take, args=("-mine",))
        with transaction.atomic("postgres"):
            world.write()
            first = world.lock("-mine").acquire()
            thread.start()
            eventually(lambda: waiters("postgres", world.name + "-mine"), "the other does not wait")
            with pytest.raises(DeadlockDetected) as caught:
                world.lock("-its").acquire(timeout=25)
            assert caught.value.__cause__ is not None
            assert first.held
            assert held_here() == 1
            world.write()
        thread.join(10)
        assert done == ["-its", "-mine"]
        assert world.written() == 2
    finally:
        other.rollback()
        other.close()


@pytest.mark.parametrize("begun", [True, False])
def test_r7_interrupted_wait_leaves_the_transaction_usable(postgres: World, busy: str, begun: bool) -> None:
    """Ctrl-C while waiting, caught inside the transaction: as after a timeout."""
    # the system call returns, unlike with interrupt_main()
    interrupt = partial(signal.pthread_kill, threading.get_ident(), signal.SIGINT)
    with transaction.atomic("postgres"):
        if begun:
            postgres.write()
        with once_it_waits(busy, interrupt), pytest.raises(KeyboardInterrupt):
            advisory_lock(busy, using="postgres").acquire(timeout=25)
        assert held_here() == 0
        postgres.write()
    assert postgres.written() == 1 + begun


# R5: the caller's own connection is ended if the server hangs, and only then


@pytest.fixture
def proxy(databases: None) -> Iterator[Proxy]:
    """Before the connection of this thread."""
    settings = connections["postgres"].settings_dict
    with (
        Proxy(settings["HOST"], int(settings["PORT"])) as proxy,
        changed("postgres", HOST="127.0.0.1", PORT=str(proxy.port)),
    ):
        yield proxy


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_r5_server_that_hangs_ends_the_callers_connection(
    postgres: World, busy: str, proxy: Proxy, answered: int
) -> None:
    """It acknowledges and never answers: to the first question, to the wait after it, or to the way back to the
    savepoint. The transaction is lost with its connection, the caller is not."""

    registry.entry("postgres").backend.close()  # nothing is known of the name: it is tried before it is waited for
    lost = swallow(BackendUnavailable, match=r"did not answer in time.*transaction rolled back")
    with lost, transaction.atomic("postgres"):
        postgres.write()
        proxy.swallow(1 + answered)
        try:
            advisory_lock(busy, using="postgres").acquire(timeout=0.6)
        finally:
            # atomic() connects again; were the wait itself cut off, that would be the request that is swallowed
            proxy.heal()
    assert postgres.written() == 0
    check_connections_are_clean()


@pytest.mark.alone
def test_r5_wait_is_over_in_time_and_the_connection_stays(postgres: World, busy: str) -> None:
    took = []
    with transaction.atomic("postgres"):
        pid = rows.server_id("postgres")
        for _ in range(4):
            began = time.monotonic()
            with pytest.raises(LockTimeout):
                advisory_lock(busy, using="postgres").acquire(timeout=0.55)
            took.append(time.monotonic() - began)
        assert rows.server_id("postgres") == pid
    assert min(took) >= 0.55
    within(max(took), 0.6, what=f"took {took}")


@pytest.mark.parametrize(
    ("which", "seconds"), [(1, 1.4), (2, 0.9), (3, 0.9)], ids=["the question", "the wait", "the way back"]
)
def test_r5_a_late_answer_does_not_cost_the_transaction(
    postgres: World, busy: str, monkeypatch: pytest.MonkeyPatch, which: int, seconds: float
) -> None:
    """It is read when the timeout of 0.1 s is over, but no second of silence since the server was asked to wait."""
    now, results, late, answers = clock.now, transaction_locks.results, 0.0, 0

    def answered_late(*args: Any) -> Any:
        nonlocal late, answers
        answers += 1
        late = seconds if answers >= which else 0.0
        return results(*args)

    monkeypatch.setattr(transaction_locks, "SILENCE", 1.0)
    monkeypatch.setattr(clock, "now", lambda: now() + late)
    with transaction.atomic("postgres"):
        postgres.lock("-free").acquire()  # the server is known
        monkeypatch.setattr(transaction_locks, "results", answered_late)
        in_vain(busy)
        assert answers == (1 if which == 1 else 3)
        assert ask("SELECT 1") == 1
