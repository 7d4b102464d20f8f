"""Inside ``atomic()`` the lock is taken without a cursor and with BEGIN in the same packet, if nothing looks.

All else is as with a cursor: the settings of the transaction, errors, interrupts.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import psycopg
import pytest
from django.db import ProgrammingError, connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.transaction import atomic
from django.test.utils import CaptureQueriesContext
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from django_distlock import advisory_lock
from django_distlock.backends.postgres import statements, transaction
from django_distlock.backends.postgres.statements import Bounded, nobody_looks
from django_distlock.concurrency import sockets
from django_distlock.concurrency.clock import monotonic
from django_distlock.manager import acquire, interrupted, lock_table, transactions
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.faults.proxy import Proxy
from tests.faults.server import holders, key_of
from tests.support.interrupts import interrupted_everywhere
from tests.support.paths import PACKAGE
from tests.support.profiled import profiled
from tests.transactions.reconnecting import address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("databases")

DATABASE = "postgres"
SETTINGS = ("transaction_isolation", "transaction_read_only", "transaction_deferrable")


@pytest.fixture
def connection() -> Iterator[Any]:
    """A connection of its own, open."""
    made: Any = connections.create_connection(DATABASE)
    made.ensure_connection()
    yield made
    made.close()


def directly(connection: Any, statement: str) -> str:
    return statements.directly(connection, statement.encode(), Bounded(connection.connection, monotonic() + 60))[0]


def status(connection: Any) -> TransactionStatus:
    return TransactionStatus(connection.connection.pgconn.transaction_status)


@pytest.mark.parametrize("isolation", [None, *IsolationLevel], ids=str)
@pytest.mark.parametrize(("read_only", "deferrable"), [(None, None), (True, True), (False, False), (True, None)])
def test_the_transaction_begins_with_the_settings_of_the_connection(
    connection: Any, isolation: IsolationLevel | None, read_only: bool | None, deferrable: bool | None
) -> None:
    raw = connection.connection
    raw.isolation_level, raw.read_only, raw.deferrable = isolation, read_only, deferrable
    statement = "SELECT concat_ws(', ', " + ", ".join(f"current_setting('{name}')" for name in SETTINGS) + ")"
    connection.set_autocommit(False)
    found = directly(connection, statement)
    assert status(connection) == TransactionStatus.INTRANS
    connection.rollback()
    with connection.cursor() as cursor:
        cursor.execute(statement)
        assert (found,) == cursor.fetchone()


def test_an_open_transaction_is_not_begun_again(connection: Any) -> None:
    connection.set_autocommit(False)
    first = directly(connection, "SELECT pg_current_xact_id()")
    assert directly(connection, "SELECT pg_current_xact_id()") == first


def test_the_lock_needs_no_cursor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a second one, which is taken while the first one watches the statements of the transaction."""
    advisory_lock(name, using="postgres").acquire().release()
    with atomic(DATABASE):
        advisory_lock(f"{name}-first", using="postgres").acquire()  # the proof is through
    with atomic(DATABASE), monkeypatch.context() as patch:
        patch.setattr(DatabaseWrapper, "cursor", None)
        for number in range(3):
            advisory_lock(f"{name}-{number}", using="postgres").acquire()
        assert len(connections[DATABASE].execute_wrappers) == 1


@pytest.mark.parametrize("known_as_busy", [False, True])
def test_a_transaction_under_a_lock_takes_two_round_trips(name: str, known_as_busy: bool) -> None:
    """BEGIN and the lock, and the commit; also if the lock is waited for."""
    settings = connections[DATABASE].settings_dict
    key = key_of("postgres", name)
    backend: Any = registry.entry("postgres").backend
    with Proxy(settings["HOST"], int(settings["PORT"])) as proxy, address(DATABASE, "127.0.0.1", proxy.port):
        with atomic(DATABASE):  # connects, and the proof is through
            advisory_lock(f"{name}-first", using="postgres").acquire()
        if known_as_busy:
            backend._busy.add(key.digest, monotonic())
        before = proxy.requests
        with atomic(DATABASE), advisory_lock(name, using="postgres"):
            pass
        assert proxy.requests - before == 2


def test_a_transaction_under_a_lock_costs_few_calls(name: str) -> None:
    """The number is what was measured when it was written: of calls of functions of this package."""

    def cycle() -> None:
        with atomic(DATABASE), advisory_lock(name, using="postgres"):
            pass

    calls: list[str] = []

    def profile(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}/"):
            calls.append(frame.f_code.co_qualname)

    def measure() -> None:
        cycle()
        cycle()
        try:
            with profiled(profile):
                cycle()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:  # a new thread has no connections from earlier tests
        threads.submit(measure).result()
    assert len(calls) <= 61, calls


class Traced(psycopg.Connection[Any]):
    """As programs that trace statements make of psycopg's connection."""


@contextmanager
def wrapper(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    def see(execute: Callable[..., Any], sql: Any, *args: Any) -> Any:
        seen.append(sql)
        return execute(sql, *args)

    with connection.execute_wrapper(see):
        yield


@contextmanager
def query_log(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    with CaptureQueriesContext(connection) as queries:
        yield
    seen += [query["sql"] for query in queries.captured_queries]


@contextmanager
def method_of_django(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    execute = CursorWrapper.execute

    def see(self: Any, sql: Any, params: Any = None) -> Any:
        seen.append(sql)
        return execute(self, sql, params)

    patch.setattr(CursorWrapper, "execute", see)
    yield


@contextmanager
def cursor_of_its_own(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    class Own(DatabaseWrapper):
        def create_cursor(self, name: str | None = None) -> Any:
            seen.append("pg_try_advisory_xact_lock")
            return super().create_cursor(name)

    patch.setattr(connection, "__class__", Own)
    yield


@contextmanager
def mocked_wrapper(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """It has every attribute that it is asked for."""
    mock = MagicMock(side_effect=lambda execute, *args: execute(*args))
    with connection.execute_wrapper(mock):
        yield
    seen += [call.args[1] for call in mock.call_args_list]


@contextmanager
def cursor_of_the_connection(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """As the Django Debug Toolbar makes it."""
    cursor = connection.cursor
    patch.setattr(connection, "cursor", lambda: seen.append("pg_try_advisory_xact_lock") or cursor())
    yield


@contextmanager
def factory_of_cursors(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """As OpenTelemetry's instrumentation of psycopg makes it."""
    raw = connection.connection

    class Own(raw.cursor_factory):  # type: ignore[misc, name-defined]
        def execute(self, sql: str, *args: Any, **options: Any) -> Any:
            seen.append(sql)
            return super().execute(sql, *args, **options)

    patch.setattr(raw, "cursor_factory", Own)
    yield


@contextmanager
def connection_of_its_own(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    cursor = connection.connection.cursor
    patch.setattr(connection.connection, "__class__", Traced)
    patch.setattr(Traced, "cursor", lambda *args: seen.append("pg_try_advisory_xact_lock") or cursor(), raising=False)
    yield


@pytest.mark.parametrize(
    "looks",
    [
        wrapper,
        mocked_wrapper,
        query_log,
        method_of_django,
        cursor_of_its_own,
        cursor_of_the_connection,
        factory_of_cursors,
        connection_of_its_own,
    ],
    ids=lambda it: it.__name__,
)
def test_who_looks_sees_the_statement(looks: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    advisory_lock(name, using="postgres").acquire().release()
    seen: list[str] = []
    connection = connections[DATABASE]
    with atomic(DATABASE):
        assert nobody_looks(connection)
        with monkeypatch.context() as patch, looks(seen, connection, patch):
            assert not nobody_looks(connection)
            advisory_lock(name, using="postgres").acquire()
        assert nobody_looks(connection)
    assert sum("pg_try_advisory_xact_lock" in sql for sql in seen) == 1


def test_r5_a_statement_that_an_interrupt_has_left_is_not_waited_for(connection: Any) -> None:
    connection.set_autocommit(False)
    assert directly(connection, "SELECT 'begun'") == "begun"
    connection.connection.pgconn.send_query(b"SELECT pg_sleep(0.5)")
    assert not nobody_looks(connection)


def test_r6_a_connection_that_has_died_since_the_last_request_is_replaced(
    connection: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CONN_HEALTH_CHECKS, where transactions begin without atomic(): AUTOCOMMIT is off."""
    settings = {"AUTOCOMMIT": False, "CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": None}
    monkeypatch.setattr(connection, "settings_dict", connection.settings_dict | settings)
    connection.close()
    connection.connect()
    sockets.shut(connection.connection.pgconn.socket)
    connection.close_if_unusable_or_obsolete()  # as Django does when a request begins
    before = connections[DATABASE]
    connections[DATABASE] = connection
    try:
        advisory_lock(name, using="postgres").acquire()
        connection.rollback()
    finally:
        connections[DATABASE] = before
    assert not holders("postgres", name)


def test_r6_an_error_aborts_the_transaction_as_with_a_cursor(connection: Any) -> None:
    connection.set_autocommit(False)
    with pytest.raises(ProgrammingError, match="nowhere"):
        directly(connection, "SELECT nowhere()")
    assert status(connection) == TransactionStatus.INERROR
    assert connection.errors_occurred
    connection.rollback()
    assert directly(connection, "SELECT 'usable'") == "usable"


def test_r7_an_interrupt_cancels_the_statement(connection: Any) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    def interrupted_statement() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # which may be over before the next line on a busy machine
        directly(connection, "SELECT pg_sleep(30)")

    before = signal.signal(signal.SIGALRM, interrupt)
    begun = time.monotonic()
    connection.set_autocommit(False)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted_statement()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begun < 10
    connection.rollback()
    assert not connection.connection.lock.locked()
    assert directly(connection, "SELECT 'usable'") == "usable"


def test_r7_an_interrupt_anywhere_leaves_nothing_held_behind_the_transaction(name: str) -> None:
    lock = advisory_lock(name, using="postgres")
    blocks: list[Any] = []

    def begin() -> None:
        blocks.append(atomic(DATABASE))
        blocks[0].__enter__()

    def clean() -> None:
        interrupted.look()
        blocks.pop().__exit__(None, None, None)
        eventually(lambda: not lock_table.lock_table.all(), "held in this process")
        assert not connections[DATABASE].execute_wrappers
        assert "wait" not in connections[DATABASE].connection.__dict__
        assert not holders("postgres", name)
        begin()

    begin()
    assert interrupted_everywhere(lock.acquire, clean, acquire, lock_table, statements, transaction, transactions) > 40
    blocks.pop().__exit__(None, None, None)
