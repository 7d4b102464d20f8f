"""What was written under the lock is committed before the next holder gets in, also where transactions are not nested,
where SQL begins and ends them behind Django's back, and where another thread releases. Kept, refused or told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from django.db import connections, transaction

from django_distlock import LockLost, UnsupportedOperation, advisory_lock, lock_all, signals
from tests.manager.transactions import rows
from tests.manager.transactions.rival import is_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.manager.transactions.world import World


def in_thread(function: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(10)


def execute(alias: str, sql: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def losses(name: str) -> Iterator[list[str]]:
    heard: list[str] = []

    def lost(reason: str, **kwargs: Any) -> None:
        heard.append(reason)

    signals.lock_lost.connect(lost)
    yield heard
    signals.lock_lost.disconnect(lost)


# another database's transaction, begun under the lock, outlives that in which the lock was taken


def other_of(world: World) -> str:
    return "mariadb" if world.alias == "postgres" else "postgres"


@pytest.mark.parametrize("released", [True, False], ids=["released", "not_released"])
def test_r11_the_last_of_several_transactions_counts(one_world: World, losses: list[str], released: bool) -> None:
    """Kept; but a lock that belongs to PostgreSQL's transaction ends with it: that is told."""
    world = one_world
    scoped = world.using == "postgres"
    first, second = transaction.atomic(world.alias), transaction.atomic(other_of(world))
    first.__enter__()
    lease = world.lock().acquire()
    second.__enter__()
    world.write()
    if released:
        lease.release()
    first.__exit__(None, None, None)
    if scoped:
        assert losses == ["transaction"]
        assert not is_out(world.rival, world.using, world.name)
        assert not lease.held
        if not released:
            assert lease.lost
            with pytest.raises(LockLost):
                lease.release()
    else:
        world.still_inside()
        assert lease.held is not released
    second.__exit__(None, None, None)
    if not scoped:
        world.check_rival_came_in(1)
        world.check_returned_once()
        assert not lease.held
        assert not losses
    world.check_connection_is_clean()


def test_r11_nested_transactions_of_two_databases_lose_nothing(one_world: World, losses: list[str]) -> None:
    world = one_world
    with transaction.atomic(world.alias), world.lock():
        with transaction.atomic(other_of(world)):
            world.write()
        assert is_out(world.rival, world.using, world.name)
    assert not is_out(world.rival, world.using, world.name)
    assert not losses
    world.check_connection_is_clean()


def test_r11_lock_inside_two_transactions_is_kept_for_both(one_world: World, losses: list[str]) -> None:
    """Also on PostgreSQL: a lock that belonged to the inner one would end with it, before the outer one commits."""
    world = one_world
    with transaction.atomic(other_of(world)):
        with transaction.atomic(world.alias), world.lock():
            world.write()
        assert is_out(world.rival, world.using, world.name)
    assert not is_out(world.rival, world.using, world.name)
    assert not losses
    world.check_connection_is_clean()


# BEGIN through a cursor


def check_no_wrapper_left() -> None:
    left = {connection.alias: connection.execute_wrappers for connection in connections.all(initialized_only=True)}
    assert not any(left.values()), left


@contextlib.contextmanager
def begun(alias: str) -> Iterator[None]:
    """A transaction that Django knows nothing of."""
    execute(alias, "BEGIN")
    yield
    execute(alias, "ROLLBACK")


TOLD = (
    r"was released while a transaction begun by SQL is open on '(default|postgres|mariadb)': "
    r".* Use transaction\.atomic\(\), or"
)
EVERY_ENGINE = ["default", "postgres", "mariadb"]
SOME_LOCKS = [
    ("memory", "one"),
    ("postgres", "one"),
    ("mysql", "one"),
    ("leasetable_postgres", "one"),
    ("memory", "all"),
]


@pytest.mark.parametrize("alias", EVERY_ENGINE)
@pytest.mark.parametrize(("using", "kind"), SOME_LOCKS)
def test_r11_release_inside_a_transaction_begun_by_sql_is_refused(
    databases: None, tables: None, name: str, alias: str, using: str, kind: str
) -> None:
    """The lock is given back all the same, and the error of the body comes first."""
    lock: Any = advisory_lock(name, using=using) if kind == "one" else lock_all([name], using=using)
    connections[alias].ensure_connection()
    with contextlib.ExitStack() as stack:
        with pytest.raises(UnsupportedOperation, match=TOLD), lock:
            stack.enter_context(begun(alias))
        with pytest.raises(UnsupportedOperation, match=TOLD):
            lock(lambda: None)()
        with pytest.raises(KeyError, match="the body's own"), lock:
            raise KeyError("the body's own")
        assert in_thread(lambda: lock.try_acquire().release()) is None
    with lock, begun(alias):
        rows.write(alias, name)
    check_no_wrapper_left()


def test_r11_lock_that_is_kept_for_a_transaction_is_none_of_its_business(
    databases: None, tables: None, name: str
) -> None:
    with transaction.atomic("postgres"), advisory_lock(name, using="memory"):
        execute("postgres", "SAVEPOINT by_hand")
    with transaction.atomic(), advisory_lock(name, using="memory"), advisory_lock(name, using="memory"):
        pass


# on MySQL and MariaDB statements are listened to while a lock is held, and the server is asked after those only


@pytest.fixture
def sent(databases: None, tables: None) -> Iterator[list[str]]:
    """All that the server of "mariadb" is sent by this connection; by a wrapper around its cursors, so that the
    library's own questions, which go past ``execute_wrappers``, are seen too."""
    connection: Any = connections["mariadb"]
    connection.ensure_connection()
    seen: list[str] = []
    create_cursor = connection.create_cursor

    def listened(name: Any = None) -> Any:
        cursor = create_cursor(name)
        execute = cursor.cursor.execute
        cursor.cursor.execute = lambda sql, *args: (seen.append(sql), execute(sql, *args))[1]
        return cursor

    with mock.patch.object(connection, "create_cursor", listened):
        yield seen
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
            cursor.execute("SET autocommit = 1")
    check_no_wrapper_left()


@pytest.mark.parametrize(
    "sql",
    [
        "BEGIN",
        "begin work",
        "/* a */ -- b\n # c\n START TRANSACTION",
        "/*!50000 BEGIN */",
        b"BEGIN",
        "SET @@session.autocommit = 0",
    ],
)
def test_r11_mysql_is_asked_after_a_statement_that_may_begin(sent: list[str], name: str, sql: Any) -> None:
    with pytest.raises(UnsupportedOperation, match=TOLD), advisory_lock(name, using="memory"):
        execute("mariadb", sql)
    with pytest.raises(UnsupportedOperation, match=TOLD), advisory_lock(name, using="memory"):
        pass  # it is still open


def test_r11_mysql_is_not_asked_without_a_reason(sent: list[str], name: str) -> None:
    """And after a transaction that has ended, once."""
    usual = ["SELECT 1", "SET @started = 1", "SELECT 'BEGIN'", "-- BEGIN\nSELECT 2"]
    with advisory_lock(name, using="memory"):
        for sql in usual:
            execute("mariadb", sql)
    with advisory_lock(name, using="memory"), transaction.atomic("mariadb"):
        pass
    assert sent == usual
    with advisory_lock(name, using="memory"), begun("mariadb"):
        pass
    assert len(sent) == len(usual) + 4, "BEGIN, ROLLBACK, and the question, which is two"
    with advisory_lock(name, using="memory"):
        pass
    assert len(sent) == len(usual) + 4


def test_r11_mysql_transaction_on_a_connection_that_is_opened_under_the_lock(sent: list[str], name: str) -> None:
    """And one that is closed takes its transaction along."""
    connections["mariadb"].close()
    with pytest.raises(UnsupportedOperation, match=TOLD), advisory_lock(name, using="memory"):
        execute("mariadb", "BEGIN")
    with advisory_lock(name, using="memory"):
        execute("mariadb", "BEGIN")
        connections["mariadb"].close()
    with advisory_lock(name, using="memory"):
        execute("mariadb", "SELECT 1")


def test_r11_mysql_transaction_on_the_first_connection_of_a_thread(databases: None, tables: None, name: str) -> None:
    def first() -> Any:
        try:
            with advisory_lock(name, using="memory"):
                execute("mariadb", "BEGIN")
        finally:
            wrappers = connections["mariadb"].execute_wrappers
            connections.close_all()
        return wrappers

    with pytest.raises(UnsupportedOperation, match=TOLD):
        in_thread(first)


def test_r11_mysql_transaction_under_nested_locks(sent: list[str], name: str) -> None:
    """Each release is refused, in whatever order, and the same lock twice is one."""
    inner, outer = advisory_lock(f"{name}-inner", using="memory"), advisory_lock(name, using="memory")
    leases = [outer.acquire(), outer.acquire(), inner.acquire()]
    leases[1].release()
    execute("mariadb", "BEGIN")
    for lease in leases[0], leases[2]:
        with pytest.raises(UnsupportedOperation, match=TOLD):
            lease.release()


def test_r11_mysql_is_listened_to_no_longer_after_a_release_by_another_thread(sent: list[str], name: str) -> None:
    lease = advisory_lock(name, using="memory").acquire()
    assert connections["mariadb"].execute_wrappers
    in_thread(lease.release)
    check_no_wrapper_left()


def test_mysql_transaction_begun_by_sql_before_the_lock_is_not_seen(sent: list[str], name: str) -> None:
    """As docs/usage/transactions.md says: mysqlclient tells nothing. If this fails, driver_inside() can learn to ask
    it, and backends/begin_listener.py may go."""
    raw = connections["mariadb"].connection
    assert not {"in_transaction", "transaction_status", "server_status"} & set(dir(raw))
    with begun("mariadb"), advisory_lock(name, using="memory"):
        pass


# a release by another thread


@pytest.mark.parametrize("how", ["thread", "task"])
def test_r11_release_by_another_thread_waits_for_the_transaction_of_the_owner(one_world: World, how: str) -> None:
    world = one_world
    lease = world.lock().acquire()
    with transaction.atomic(world.alias):
        world.write()
        in_thread(lease.release if how == "thread" else lambda: asyncio.run(lease.arelease()))
        assert not lease.held
        world.still_inside()
    world.check_rival_came_in(1)
    world.check_returned_once(transaction_scope=False)


def test_r11_release_by_another_thread_after_the_transaction_is_at_once(one_world: World) -> None:
    world = one_world
    lease = world.lock().acquire()
    with transaction.atomic(world.alias):
        world.write()
    in_thread(lease.release)
    assert not is_out(world.rival, world.using, world.name)


# savepoints and ends by SQL


@pytest.mark.parametrize("sql", ["ROLLBACK TO SAVEPOINT by_hand", "/* x */ rollback to by_hand -- y"])
def test_r15_rollback_to_a_savepoint_by_sql(one_world: World, losses: list[str], sql: str) -> None:
    """It frees a lock of PostgreSQL's transaction that was taken after it, and the lease says so; no other lock."""
    world = one_world
    scoped = world.using == "postgres"
    with transaction.atomic(world.alias):
        execute(world.alias, "SAVEPOINT by_hand")
        lease = world.lock().acquire()
        execute(world.alias, sql)
        assert lease.lost is scoped
        assert losses == ["savepoint"] * scoped
        assert is_out(world.rival, world.using, world.name) is not scoped
        with contextlib.suppress(LockLost):
            lease.release()
    world.check_connection_is_clean()


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
def test_r15_end_of_the_transaction_by_sql(postgres: World, losses: list[str], sql: str) -> None:
    """Inside ``atomic()``, which knows nothing of it."""
    with transaction.atomic("postgres"):
        older = advisory_lock(f"{postgres.name}-older", using="memory").acquire()
        lease = postgres.lock().acquire()
        execute("postgres", sql)
        assert lease.lost
        assert losses == ["transaction"]
        assert older.held
        assert not is_out(postgres.rival, "postgres", postgres.name)
        older.release()
    postgres.check_connection_is_clean()


def test_r15_statements_of_a_block_that_is_wrapped(postgres: World, caplog: Any) -> None:
    """``execute_wrapper`` takes the last wrapper away at its end, which must be its own."""
    seen: list[str] = []

    def note(execute: Any, sql: str, *args: Any) -> Any:
        seen.append(sql)
        return execute(sql, *args)

    with caplog.at_level(logging.WARNING), transaction.atomic("postgres"):
        with connections["postgres"].execute_wrapper(note):
            execute("postgres", "SAVEPOINT by_hand")
            lease = postgres.lock().acquire()
        assert lease.held
        execute("postgres", "SELECT 1")
        execute("postgres", "ROLLBACK TO by_hand")
        assert lease.lost
    assert "SELECT 1" not in seen
    postgres.check_connection_is_clean()
