"""What was written under the lock is committed before the next holder gets in, also where transactions are not nested,
where SQL begins and ends them behind Django's back, and where another thread releases. Kept, refused or told."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from django.db import connections, transaction

from django_distlock import LockLost, UnsupportedOperation, advisory_lock, lock_all
from tests.transactions import rows
from tests.transactions.world import check_connections_are_clean, in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.transactions.world import World

# another database's transaction, begun under the lock, outlives that in which the lock was taken


@pytest.mark.parametrize("released", [True, False], ids=["released", "not_released"])
def test_r11_the_last_of_several_transactions_counts(world: World, released: bool) -> None:
    """Kept; but a lock that belongs to PostgreSQL's transaction ends with it: that is told."""
    first, second = transaction.atomic(world.alias), transaction.atomic(world.other)
    first.__enter__()
    lease = world.lock().acquire()
    second.__enter__()
    world.write()
    if released:
        lease.release()
    first.__exit__(None, None, None)
    if world.scoped:
        assert not world.is_out()
        if not released:
            with pytest.raises(LockLost):
                lease.release()
    else:
        world.still_inside()
        assert lease.held is not released
    second.__exit__(None, None, None)
    assert not lease.held
    assert world.heard == ["acquired", "lost (transaction)" if world.scoped else "released"]
    if not world.scoped:
        world.check_rival_came_in(1)
    check_connections_are_clean()


def test_r11_nested_transactions_of_two_databases_lose_nothing(world: World) -> None:
    """Also on PostgreSQL: a lock that belonged to the inner one would end with it, before the outer one commits."""
    with transaction.atomic(world.alias), world.lock():
        with transaction.atomic(world.other):
            world.write()
        assert world.is_out()
    assert not world.is_out()
    with transaction.atomic(world.other):
        with transaction.atomic(world.alias), world.lock():
            world.write()
        assert world.is_out()
    assert not world.is_out()
    assert world.heard == ["acquired", "released"] * 2
    check_connections_are_clean()


# BEGIN through a cursor


def refused() -> Any:
    told = r"was released while a transaction begun by SQL is open on '\w+': .* Use transaction\.atomic\(\), or"
    return pytest.raises(UnsupportedOperation, match=told)


@contextlib.contextmanager
def begun(alias: str) -> Iterator[None]:
    """A transaction that Django knows nothing of."""
    rows.ask(alias, "BEGIN")
    yield
    rows.ask(alias, "ROLLBACK")


@pytest.mark.parametrize(
    ("alias", "using"),
    [
        ("default", "memory"),
        ("postgres", "memory"),
        ("mariadb", "memory"),
        ("postgres", "postgres"),
        ("default", "set"),
    ],
)
def test_r11_release_inside_a_transaction_begun_by_sql_is_refused(
    databases: None, tables: None, name: str, alias: str, using: str
) -> None:
    """The lock is given back all the same, and the error of the body comes first."""
    lock: Any = lock_all([name], using="memory") if using == "set" else advisory_lock(name, using=using)
    connections[alias].ensure_connection()
    with contextlib.ExitStack() as stack:
        with refused(), lock:
            stack.enter_context(begun(alias))
        with refused():
            lock(lambda: None)()
        with pytest.raises(KeyError, match="the body's own"), lock:
            raise KeyError("the body's own")
        assert in_thread(lambda: lock.try_acquire().release()) is None
    with lock, begun(alias):
        rows.write(alias, name)
    check_connections_are_clean()


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
        rows.ask("mariadb", "ROLLBACK")
        rows.ask("mariadb", "SET autocommit = 1")
    check_connections_are_clean()


BEGINS: list[Any] = ["BEGIN", "begin work", "/* a */ -- b\n # c\n START TRANSACTION", "/*!50000 BEGIN */", b"BEGIN"]


def test_r11_mysql_is_asked_after_a_statement_that_may_begin(sent: list[str], name: str) -> None:
    lock = advisory_lock(name, using="memory")
    for sql in [*BEGINS, "SET @@session.autocommit = 0"]:
        with refused(), lock:
            rows.ask("mariadb", sql)
        with refused(), lock:
            pass  # it is still open
        rows.ask("mariadb", "ROLLBACK")


def test_r11_mysql_is_not_asked_without_a_reason(sent: list[str], name: str) -> None:
    """And after a transaction that has ended, once."""
    lock = advisory_lock(name, using="memory")
    usual = ["SELECT 1", "SET @started = 1", "SELECT 'BEGIN'", "-- BEGIN\nSELECT 2"]
    with lock:
        for sql in usual:
            rows.ask("mariadb", sql)
    with lock, transaction.atomic("mariadb"):
        pass
    with transaction.atomic("mariadb"), lock:
        assert not connections["mariadb"].execute_wrappers
    assert sent == usual
    with lock, begun("mariadb"):
        pass
    with lock:
        pass
    assert len(sent) == len(usual) + 4, "BEGIN, ROLLBACK, and the question, which is two"


def test_r11_mysql_transaction_on_a_connection_that_is_opened_under_the_lock(sent: list[str], name: str) -> None:
    """And one that is closed takes its transaction along."""
    lock = advisory_lock(name, using="memory")

    def begin() -> None:
        with lock:
            rows.ask("mariadb", "BEGIN")

    with refused():
        in_thread(begin)
    connections["mariadb"].close()
    with refused():
        begin()
    with lock:
        rows.ask("mariadb", "BEGIN")
        connections["mariadb"].close()
    with lock:
        rows.ask("mariadb", "SELECT 1")


def test_r11_mysql_transaction_under_nested_locks(sent: list[str], name: str) -> None:
    """Each release is refused, in whatever order, and the same lock twice is one."""
    inner, outer = advisory_lock(f"{name}-inner", using="memory"), advisory_lock(name, using="memory")
    leases = [outer.acquire(), outer.acquire(), inner.acquire()]
    leases[1].release()
    rows.ask("mariadb", "BEGIN")
    for lease in leases[0], leases[2]:
        with refused():
            lease.release()
