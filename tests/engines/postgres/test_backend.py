"""PostgreSQL: timeouts that an administrator set, errors after the grant, and locks inside atomic()."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.db.transaction import atomic
from psycopg import IsolationLevel

from django_distlock import LockTimeout, advisory_lock
from django_distlock.backends.postgres.session import STATEMENTS
from django_distlock.backends.sessions.session import ServerError
from django_distlock.concurrency import sockets
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.concurrency.flow import run
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere
from tests.faults.conftest import database_alias
from tests.faults.server import ask, holders, session_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.conftest import Proxied


pytestmark = pytest.mark.usefixtures("databases", "unhurried")
TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")


@pytest.fixture
def impatient_role(databases: None, alias: Any) -> Iterator[str]:
    """A database role whose administrator set every timeout to a fraction of a second; as a database alias."""
    role = f"distlock_impatient_{os.getpid()}"
    ask("postgres", f"CREATE ROLE {role} LOGIN PASSWORD 'impatient'")
    for timeout in TIMEOUTS:
        ask("postgres", f"ALTER ROLE {role} SET {timeout} = '150ms'")
    with database_alias("impatient", "postgres", USER=role, PASSWORD="impatient"):
        alias("postgres", database="impatient")
        yield "impatient"
        registry.close()
        connections["impatient"].close()
    eventually(lambda: not ask("postgres", "SELECT 1 FROM pg_stat_activity WHERE usename = %s", role), "still there")
    ask("postgres", f"DROP ROLE {role}")


def test_r7_an_error_that_came_after_the_grant_leaves_nothing_held(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As lock_timeout may, in the race of tests/faults/test_grant_race.py: the session gives everything back."""
    entry: Any = registry.entry("postgres")
    key, sessions = entry.key(name), entry.backend.sessions
    session = run(sessions.lend(monotonic() + 5))
    monkeypatch.setitem(STATEMENTS, b"wait_x", b"SELECT pg_advisory_lock($1), 1 / (random() * 0)::int")
    turn = session.mutex.turn()
    assert run(turn.acquire(5))  # else the keepalive thread may take the reply
    try:
        with pytest.raises(ServerError, match="division by zero"):
            run(session.wait(key, False, monotonic() + 5))
        assert not holders("postgres", name)
        assert session.wait_fast(key, False, monotonic() + 5) is False
        assert not holders("postgres", name)
    finally:
        session.kill("it has prepared nonsense")
        turn.release()
        sessions.give_back(session)


def test_timeouts_of_the_role_do_not_end_the_lock_or_the_wait(impatient_role: str, name: str) -> None:
    """statement_timeout and lock_timeout do not cut the wait short, idle_session_timeout does not free the lock."""
    with held_elsewhere("postgres", name):
        lease = advisory_lock(name + "-kept", using="postgres").acquire()
        with pytest.raises(LockTimeout):
            advisory_lock(name, using="postgres").acquire(timeout=1)
        lease.ensure_held()
        assert holders("postgres", name + "-kept") == [session_of(lease).server_id]
    lease.release()


@pytest.mark.tier2
def test_statement_timeout_of_the_role_does_not_end_a_wait_in_a_transaction(impatient_role: str, name: str) -> None:
    """In the caller's transaction his statement_timeout counts; the wait goes on all the same until its deadline."""
    with held_elsewhere("postgres", name) as let_go:
        with transaction.atomic(using=impatient_role):
            with connections[impatient_role].cursor() as cursor:  # this test may be slow between two statements
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '10s'")
            timer = threading.Timer(0.4, let_go)  # longer than each of the timeouts
            timer.start()
            with advisory_lock(name, using="postgres", timeout=20):
                assert len(holders("postgres", name)) == 1
            with connections[impatient_role].cursor() as cursor:
                cursor.execute("SHOW lock_timeout")
                assert cursor.fetchone() == ("150ms",)
        timer.join()


DATABASE = "postgres"
SETTINGS = ("transaction_isolation", "transaction_read_only", "transaction_deferrable")


@pytest.mark.filterwarnings("ignore:The lock .* was taken inside")
@pytest.mark.parametrize("isolation", [None, *IsolationLevel], ids=str)
def test_the_transaction_begins_with_the_settings_of_the_connection(
    name: str, isolation: IsolationLevel | None
) -> None:
    connections[DATABASE].ensure_connection()
    raw = connections[DATABASE].connection
    statement = "SELECT " + ", ".join(f"current_setting('{setting}')" for setting in SETTINGS)

    def found(*names: str) -> Any:
        with atomic(DATABASE):
            for each in names:
                advisory_lock(each, using="postgres").acquire()
            with connections[DATABASE].cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchone()

    try:
        for read_only, deferrable in ((None, None), (True, True), (False, False), (True, None)):
            raw.isolation_level, raw.read_only, raw.deferrable = isolation, read_only, deferrable
            assert found(name) == found()
    finally:
        connections[DATABASE].close()


def test_a_transaction_under_a_lock_takes_two_round_trips(name: str, alias: Any, proxied: Proxied) -> None:
    """BEGIN and the lock, and the commit."""
    proxy, counted = proxied("postgres"), "postgres_proxied"
    alias("postgres", database=counted, session_database=DATABASE)
    for count in (None, 2):  # the first one connects, and the proof is through
        before = proxy.requests
        with atomic(counted), advisory_lock(name, using="postgres"):
            pass
        assert count in (None, proxy.requests - before)


@contextmanager
def wrapper(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    with connection.execute_wrapper(lambda execute, sql, *args: seen.append(sql) or execute(sql, *args)):
        yield


@contextmanager
def debug_toolbar(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """It has a method of the connection."""
    cursor = connection.cursor
    patch.setattr(connection, "cursor", lambda: seen.append("pg_try_advisory_xact_lock") or cursor())
    yield


@contextmanager
def opentelemetry(seen: list[str], connection: Any, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """It has psycopg's factory of cursors."""
    raw = connection.connection

    class Own(raw.cursor_factory):  # type: ignore[misc, name-defined]
        def execute(self, sql: str, *args: Any, **options: Any) -> Any:
            seen.append(sql)
            return super().execute(sql, *args, **options)

    patch.setattr(raw, "cursor_factory", Own)
    yield


@pytest.mark.parametrize("looks", [wrapper, debug_toolbar, opentelemetry], ids=lambda it: it.__name__)
def test_who_looks_sees_the_statement(looks: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    advisory_lock(name, using="postgres").acquire().release()
    seen: list[str] = []
    with atomic("postgres"), monkeypatch.context() as patch, looks(seen, connections["postgres"], patch):
        advisory_lock(name, using="postgres").acquire()
    assert sum("pg_try_advisory_xact_lock" in sql for sql in seen) == 1


def test_r6_a_connection_that_has_died_since_the_last_request_is_replaced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CONN_HEALTH_CHECKS, where transactions begin without atomic(): AUTOCOMMIT is off."""
    connection: Any = connections.create_connection(DATABASE)
    settings = {"AUTOCOMMIT": False, "CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": None}
    monkeypatch.setattr(connection, "settings_dict", connection.settings_dict | settings)
    before = connections[DATABASE]
    connections[DATABASE] = connection
    try:
        connection.connect()
        sockets.shut(connection.connection.pgconn.socket)
        connection.close_if_unusable_or_obsolete()  # as Django does when a request begins
        advisory_lock(name, using="postgres").acquire()
        connection.rollback()
    finally:
        connections[DATABASE] = before
        connection.close()
    assert not holders("postgres", name)
