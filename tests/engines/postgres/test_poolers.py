"""R22b: poolers by their modes, and servers that grant one lock to every session, are refused."""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction

from django_distlock import LockLost, UnsupportedOperation, advisory_lock, break_lock, held_locks
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.conftest import eventually
from tests.engines.actors import waiting
from tests.engines.own_servers import CarelessPooler, SessionPooler, TurningPooler, needs_programs, running
from tests.faults.conftest import database_alias
from tests.faults.server import ask, end_session, holders, key_of, session_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.services.databases import Pgbouncer


pytestmark = pytest.mark.usefixtures("databases")


@contextmanager
def behind(alias: Any, kind: type[Pgbouncer]) -> Iterator[str]:
    """This process reaches the lock alias "postgres" and the database alias "bounced" through such a pgbouncer."""
    with (
        running(kind, "pgbouncer") as port,
        database_alias("bounced", "postgres", HOST="127.0.0.1", PORT=str(port)) as bounced,
    ):
        alias("postgres", database=bounced)
        yield bounced
        registry.reset()


def open_to_others(name: str) -> bool:
    """Can another session, which comes directly, take it?"""
    sql = "SELECT pg_try_advisory_lock(%s) AND pg_advisory_unlock(%s)"
    number = key_of("postgres", name).number
    return bool(ask("postgres", sql, number, number)[0][0])


@needs_programs
def test_session_mode(alias: Any, name: str) -> None:
    """The lock is held by one server session, whose number is told; waiting and losing it work as well."""
    with behind(alias, SessionPooler):
        number = key_of("postgres", name).number
        ask("postgres", "SELECT pg_advisory_lock(%s)", number)
        with waiting("postgres", name) as acquiring:
            ask("postgres", "SELECT pg_advisory_unlock(%s)", number)
            lease = acquiring.result(20)
        assert holders("postgres", name) == [session_of(lease).server_id]
        assert not open_to_others(name)
        end_session("postgres", session_of(lease).server_id)
        with pytest.raises(LockLost):
            lease.release()
        assert open_to_others(name)


@needs_programs
@pytest.mark.parametrize(("kind", "left"), [(SessionPooler, False), (CarelessPooler, True)])
def test_r7_the_doctor_finds_a_pooler_that_keeps_the_lock_of_a_client_that_left(
    alias: Any, kind: type[Pgbouncer], left: bool
) -> None:
    with behind(alias, kind):
        found = [finding.text for finding in diagnose("postgres") if finding.level == "error"]
        assert any("left its lock held" in text for text in found) is left, found


def at_once(bounced: str, sql: str) -> set[Any]:
    """The answers of four server sessions, which are idle after that."""
    with contextlib.ExitStack() as stack:
        several, found = [connections[bounced].copy() for _ in range(4)], set()
        for connection in several:
            stack.callback(connection.close)
            connection.set_autocommit(False)
            with connection.cursor() as cursor:
                cursor.execute(sql)
                found.add(cursor.fetchone())
        for connection in several:
            connection.commit()
        return found


@needs_programs
def test_r22b_transaction_mode_with_an_idle_pool(alias: Any, name: str) -> None:
    """Each of our two connections gets another server session, as it would in session mode."""
    with behind(alias, TurningPooler) as bounced:
        at_once(bounced, "SELECT 1")
        assert len({ask(bounced, "SELECT pg_backend_pid()")[0] for _ in range(4)}) > 1, "the pool does not turn"
        with pytest.raises(UnsupportedOperation, match=r"transaction mode.*session_database"):
            advisory_lock(name, using="postgres").acquire()
        assert open_to_others(name)


@needs_programs
def test_a_refused_session_leaves_the_sessions_of_the_pool_as_they_were(alias: Any, name: str) -> None:
    """They are other clients', which would go on without the timeouts that an administrator has set."""
    database = connections["postgres"].settings_dict["NAME"]
    ask("postgres", f"ALTER DATABASE \"{database}\" SET statement_timeout = '77s'")
    try:
        with behind(alias, TurningPooler) as bounced:
            for _ in range(2):
                with pytest.raises(UnsupportedOperation):
                    advisory_lock(name, using="postgres").acquire()
            settings = "SELECT current_setting('statement_timeout'), current_setting('jit')"
            assert at_once(bounced, settings) == {("77s", "on")}
    finally:
        ask("postgres", f'ALTER DATABASE "{database}" RESET statement_timeout')


@needs_programs
def test_in_transaction_mode_what_atomic_holds_is_listed_and_broken(alias: Any, name: str) -> None:
    """No lock session is needed for that."""
    with behind(alias, TurningPooler) as bounced:
        connection = connections[bounced]
        connection.set_autocommit(False)
        advisory_lock(name, using="postgres", timeout=5).acquire()
        (info,) = [info for info in held_locks("postgres")[0].locks if info.name == name]
        assert break_lock(info) is True
        with pytest.raises(DatabaseError):
            ask(bounced, "SELECT 1")
        connection.close()
        assert open_to_others(name)


COCKROACH = "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)"
FUNCTIONS = (
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
)


@pytest.fixture
def pretends() -> Iterator[Callable[..., None]]:
    """Let these functions of the server grant everything to new sessions, and let it say that it is CockroachDB."""
    database = connections["postgres"].settings_dict["NAME"]

    def start(*functions: str, named: bool = True) -> None:
        ask("postgres", "CREATE SCHEMA pretending")
        bodies = {f"{function}(bigint) RETURNS boolean": "true" for function in functions}
        if named:
            bodies["version() RETURNS text"] = f"'{COCKROACH}'"
        for head, value in bodies.items():
            ask("postgres", f"CREATE FUNCTION pretending.{head} LANGUAGE sql AS $$ SELECT {value} $$")
        ask("postgres", f'ALTER DATABASE "{database}" SET search_path = pretending, pg_catalog, public')
        connections["postgres"].close()
        registry.reset()  # as in a new process

    yield start
    ask("postgres", f'ALTER DATABASE "{database}" RESET search_path')
    ask("postgres", "DROP SCHEMA IF EXISTS pretending CASCADE")
    connections["postgres"].close()
    registry.reset()


def refused(attempt: Callable[[], object]) -> str:
    with pytest.raises(UnsupportedOperation) as caught:
        attempt()
    assert COCKROACH in str(caught.value)
    assert "'postgres'" in str(caught.value)
    return str(caught.value)


def test_r22b_a_server_that_grants_everything(pretends: Any, name: str) -> None:
    """Each time, sync and async, shared too, in a transaction too; and nothing is kept."""
    pretends(*FUNCTIONS)
    for shared in (False, True):
        with transaction.atomic("postgres"):
            refused(advisory_lock(name, using="postgres", shared=shared).acquire)
    lock = advisory_lock(name, using="postgres")
    for attempt in (lock.acquire, lock.try_acquire, advisory_lock(name, using="postgres", shared=True).acquire):
        refused(attempt)
    refused(async_to_sync(lock.aacquire))
    errors = [finding.text for finding in diagnose("postgres") if finding.level == "error"]
    assert any(COCKROACH in error for error in errors)
    left = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'distlock %%'"
    eventually(lambda: not ask("postgres", left), "a session is left")  # the server ends what we have closed


@pytest.mark.parametrize("function", FUNCTIONS[:2])
def test_r22b_the_doctor_asks_with_two_sessions(pretends: Any, name: str, function: str) -> None:
    """A server that nobody knows. One of the two that excludes nobody is enough."""
    assert not excludes_nobody()
    pretends(function, named=False)
    assert excludes_nobody()


def excludes_nobody() -> bool:
    return any("grants one lock to two sessions" in each.text for each in diagnose("postgres") if each.level == "error")


def test_r22b_a_server_that_refuses_the_settings_of_a_session(pretends: Any, name: str) -> None:
    """CockroachDB does not get as far as the lock: it knows no tcp_keepalives_idle."""
    body = "RAISE 'unrecognized configuration parameter' USING ERRCODE = 'undefined_object'; END"
    head = "pretending.set_config(text, text, boolean) RETURNS text"
    pretends(*FUNCTIONS)
    ask("postgres", f"CREATE FUNCTION {head} LANGUAGE plpgsql AS $$ BEGIN {body} $$")
    assert "unrecognized configuration parameter" in refused(advisory_lock(name, using="postgres").acquire)


def test_a_role_with_room_for_one_session_gets_its_lock(role: Any, name: str) -> None:
    role("CONNECTION LIMIT 1")
    with advisory_lock(name, using="postgres") as lease:
        lease.ensure_held()
