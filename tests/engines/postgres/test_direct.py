"""Inside ``atomic()`` the lock is taken without a cursor and with BEGIN in the same packet, if nothing looks. All else
is as with a cursor."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.db.transaction import atomic
from django.test.utils import CaptureQueriesContext
from psycopg import IsolationLevel

from django_distlock import advisory_lock
from django_distlock.concurrency import sockets
from django_distlock.manager.registry import registry
from tests.faults.conftest import database_alias
from tests.faults.proxy import Proxy
from tests.faults.server import holders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("databases")

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


def test_a_transaction_under_a_lock_takes_two_round_trips(name: str, settings: Any) -> None:
    """BEGIN and the lock, and the commit."""
    at = connections.settings[DATABASE]
    with (
        Proxy(at["HOST"], int(at["PORT"])) as proxy,
        database_alias("counted", DATABASE, HOST="127.0.0.1", PORT=str(proxy.port)) as alias,
    ):
        options = {"database": alias, "session_database": DATABASE}
        settings.DISTLOCK = {**settings.DISTLOCK, "postgres": {**settings.DISTLOCK["postgres"], "OPTIONS": options}}
        for count in (None, 2):  # the first one connects, and the proof is through
            before = proxy.requests
            with atomic(alias), advisory_lock(name, using="postgres"):
                pass
            assert count in (None, proxy.requests - before)
        registry.close()


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


@pytest.mark.parametrize(
    "looks", [wrapper, query_log, cursor_of_the_connection, factory_of_cursors], ids=lambda it: it.__name__
)
def test_who_looks_sees_the_statement(looks: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    advisory_lock(name, using="postgres").acquire().release()
    seen: list[str] = []
    connection = connections[DATABASE]
    with atomic(DATABASE), monkeypatch.context() as patch, looks(seen, connection, patch):
        advisory_lock(name, using="postgres").acquire()
    assert sum("pg_try_advisory_xact_lock" in sql for sql in seen) == 1


def test_r6_a_connection_that_has_died_since_the_last_request_is_replaced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CONN_HEALTH_CHECKS, where transactions begin without atomic(): AUTOCOMMIT is off."""
    connection: Any = connections.create_connection(DATABASE)
    settings = {"AUTOCOMMIT": False, "CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": None}
    monkeypatch.setattr(connection, "settings_dict", connection.settings_dict | settings)
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
        connection.close()
    assert not holders("postgres", name)
