"""PostgreSQL: timeouts that an administrator set, errors after the grant, and locks inside atomic()."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.db.transaction import atomic
from django.test.utils import CaptureQueriesContext
from psycopg import IsolationLevel

from django_distlock import BackendUnavailable, LockTimeout, UnsupportedOperation, advisory_lock
from django_distlock.backends.postgres.session import STATEMENTS
from django_distlock.concurrency import sockets
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere, share_and_write, waiting
from tests.faults.server import ask, cancel_statement, holders, key_of, session_of, waiters
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied

pytestmark = pytest.mark.usefixtures("databases", "unhurried")
TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")


GRANT_AND = b"SELECT (pg_advisory_lock($1)::text || $2::text) IS NOT NULL AND %s"
LATE = """CREATE FUNCTION distlock_late() RETURNS boolean LANGUAGE plpgsql
AS $$ BEGIN RAISE 'late' USING ERRCODE = 'lock_not_available'; END $$"""


def waits_by(monkeypatch: pytest.MonkeyPatch, statement: bytes) -> None:
    """The sessions that are opened from now on."""
    registry.reset()
    monkeypatch.setitem(STATEMENTS, b"set_wait_x", GRANT_AND % statement)


def wait_for(name: str) -> Any:
    """Once, and without trying first."""
    backend: Any = registry.entry("postgres").backend
    key = key_of("postgres", name)
    backend._busy.add(key.digest, monotonic())
    return backend.try_acquire(Claim(key), 5)


def test_r7_a_timeout_that_came_after_the_grant_leaves_nothing_held(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the race of tests/faults/test_short_timeouts.py: the lock is released, and the session is kept."""
    ask("postgres", LATE)
    try:
        waits_by(monkeypatch, b"distlock_late()")
        assert wait_for(name) is None
        backend: Any = registry.entry("postgres").backend
        assert [session.dead for session in backend.sessions.all() if session.waits] == [None]
        assert not holders("postgres", name)
    finally:
        registry.reset()
        ask("postgres", "DROP FUNCTION distlock_late")


def test_r7_an_error_that_came_after_the_grant_ends_the_session(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits_by(monkeypatch, b"1 / (random() * 0)::int > 0")
    try:
        with pytest.raises(BackendUnavailable, match="division by zero"):
            wait_for(name)
        eventually(lambda: not holders("postgres", name), "it is held")
    finally:
        registry.reset()


def test_timeouts_of_the_role_do_not_end_the_lock_or_the_wait(role: Any, name: str) -> None:
    """statement_timeout and lock_timeout do not cut the wait short, idle_session_timeout does not free the lock."""
    role(**dict.fromkeys(TIMEOUTS, "150ms"))
    with held_elsewhere("postgres", name):
        lease = advisory_lock(name + "-kept", using="postgres").acquire()
        with pytest.raises(LockTimeout):
            advisory_lock(name, using="postgres").acquire(timeout=1)
        lease.ensure_held()
        assert holders("postgres", name + "-kept") == [session_of(lease).server_id]
    lease.release()


def test_a_transaction_timeout_of_postgresql_17_does_not_end_a_wait(name: str, proxied: Proxied) -> None:
    """The server seems to be one, and the proxy gives it a setting of that length that it does not know."""
    proxy = proxied("postgres")
    proxy.rewrite(b"server_version\x0015.", b"server_version\x0017.")
    proxy.rewrite(b"'transaction_timeout'", b"'transaction.timeout'")
    with advisory_lock(name, using="postgres") as lease:
        assert session_of(lease).query(b"SELECT current_setting('transaction.timeout', true)") == [["0"]]


def test_r4_a_message_of_the_server_in_the_middle_of_a_wait_is_not_its_reply(role: Any, name: str) -> None:
    """The waiter would end its session, and lose its place in the queue."""
    role("SUPERUSER", client_min_messages="log", log_lock_waits="on", deadlock_timeout="50ms")
    with held_elsewhere("postgres", name) as let_go, waiting("postgres", name) as acquiring:
        first = waiters("postgres", name)
        time.sleep(2.5)
        assert waiters("postgres", name) == first
        let_go()
        acquiring.result(10).release()


def test_r5_a_wait_of_some_milliseconds_ends_on_a_session_that_has_kept_no_timeout(name: str) -> None:
    """A lock_timeout of 0, as it has from its beginning, would let it wait for ever."""
    lock = advisory_lock(name, using="postgres")
    with held_elsewhere("postgres", name):
        assert lock.try_acquire(timeout=1) is None
        for _ in range(20):
            assert lock.try_acquire(timeout=0.004) is None


def share_and_write_when_told(link: Any, using: str, name: str) -> None:
    link.say("ready")
    link.hear()
    share_and_write(link, using, name)


def test_r4_a_kept_lock_timeout_does_not_end_a_wait_early(name: str) -> None:
    """The session has waited with a shorter timeout before. Who asks again stands behind those who came meanwhile."""
    before = f"{name}-before"
    with held_elsewhere("postgres", before) as let_go, waiting("postgres", before, 3.3) as acquiring:
        let_go()
        acquiring.result(10).release()
    with held_elsewhere("postgres", name) as let_go, Child(share_and_write_when_told, "postgres", name) as later:
        assert later.hear() == "ready"
        began = monotonic()
        with waiting("postgres", name, 4) as acquiring:
            later.say()
            assert later.hear() == "asking"
            eventually(lambda: len(waiters("postgres", name)) == 2, "the other one does not wait")
            time.sleep(max(0.0, began + 3.6 - monotonic()))
            let_go()
            acquiring.result(10).release()  # it came first
            assert later.hear()
            later.say()


def test_r1_a_cancelled_statement_takes_no_lock_from_another_reader(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to pg_cancel_backend() leaves open whether it was granted; one session counts its readers."""
    registry.reset()
    monkeypatch.setitem(STATEMENTS, b"join_s", b"SELECT $1::bigint IS NULL OR pg_sleep(1) IS NULL")
    try:
        first = advisory_lock(name, using="postgres", shared=True).acquire()
        session = session_of(first).server_id
        asks = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(advisory_lock(name, using="postgres", shared=True).acquire)
            eventually(lambda: ask("postgres", asks, session), "it is not asked")
            cancel_statement("postgres", session)
            lease = second.result(10)
        assert first.lost or len(holders("postgres", name)) == 2
        lease.ensure_held()
        assert holders("postgres", name)
    finally:
        registry.reset()


@pytest.mark.parametrize("way", ["copy", "stream"])
def test_r5_a_lock_is_refused_while_psycopg_keeps_the_connection(name: str, way: str) -> None:
    """It would wait for itself, and no timeout would end that."""

    def take() -> None:
        with pytest.raises(UnsupportedOperation, match=r"copy\(\) or stream\(\)"):
            advisory_lock(name, using="postgres").try_acquire()

    def work() -> int:
        rows = "SELECT generate_series(1, 3)"
        try:
            with atomic("postgres"), connections["postgres"].cursor() as cursor:
                if way == "stream":
                    return len([take() for _ in cursor.cursor.stream(rows)])
                with cursor.copy(f"COPY ({rows}) TO STDOUT") as copy:
                    return len([take() for _ in copy.rows()])
        finally:
            connections.close_all()

    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(work()), daemon=True)  # which may hang
    thread.start()
    thread.join(20)
    assert done == [3]


SETTINGS = ("transaction_isolation", "transaction_read_only", "transaction_deferrable")


@pytest.mark.filterwarnings("ignore:The lock .* was taken inside")
@pytest.mark.parametrize("isolation", [None, *IsolationLevel], ids=str)
def test_a_transaction_begins_with_the_settings_of_the_connection(name: str, isolation: IsolationLevel | None) -> None:
    connection = connections["postgres"]
    connection.ensure_connection()
    raw = connection.connection
    statement = "SELECT " + ", ".join(f"current_setting('{setting}')" for setting in SETTINGS)

    def found(*names: str) -> Any:
        with atomic("postgres"):
            for each in names:
                advisory_lock(each, using="postgres").acquire()
            return ask("postgres", statement)

    try:
        for read_only, deferrable in ((None, None), (True, True), (False, False), (True, None)):
            raw.isolation_level, raw.read_only, raw.deferrable = isolation, read_only, deferrable
            assert found(name) == found()
    finally:
        connection.close()


def test_lock_statements_are_no_queries_of_the_application(name: str) -> None:
    """Neither in its log nor for its wrappers; also of a lock that is waited for."""
    seen: list[str] = []
    connection = connections["postgres"]

    def look(execute: Any, sql: str, *args: Any) -> Any:
        seen.append(sql)
        return execute(sql, *args)

    with atomic("postgres"), connection.execute_wrapper(look), CaptureQueriesContext(connection) as queries:
        advisory_lock(name, using="postgres").acquire()
        with held_elsewhere("postgres", name + "-busy"):
            assert advisory_lock(name + "-busy", using="postgres").try_acquire(timeout=0.1) is None
    assert not seen
    assert not queries.captured_queries


def test_r6_a_connection_that_died_since_the_last_request_is_replaced(name: str, monkeypatch: Any) -> None:
    """With CONN_HEALTH_CHECKS, where transactions begin without atomic(): AUTOCOMMIT is off."""
    connection: Any = connections.create_connection("postgres")
    settings = {"AUTOCOMMIT": False, "CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": None}
    monkeypatch.setattr(connection, "settings_dict", connection.settings_dict | settings)
    before = connections["postgres"]
    connections["postgres"] = connection
    try:
        connection.connect()
        sockets.shut(connection.connection.pgconn.socket)
        connection.close_if_unusable_or_obsolete()  # as Django does when a request begins
        advisory_lock(name, using="postgres").acquire()
        connection.rollback()
    finally:
        connections["postgres"] = before
        connection.close()
    assert not holders("postgres", name)
