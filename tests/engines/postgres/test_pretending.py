"""R22b: a server that grants one lock to every session is refused, by its name. It is the real PostgreSQL, where
functions that always say yes stand in the search path before the server's own."""

from __future__ import annotations

import logging
import re
import secrets
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction

from django_distlock import UnsupportedOperation, advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.conftest import eventually
from tests.faults.conftest import database_alias
from tests.faults.server import ask, holders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("databases")

COCKROACH = "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)"
FUNCTIONS = (
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
)


@pytest.fixture
def pretends() -> Iterator[Callable[..., None]]:
    """Let these functions of the server grant everything, to sessions that begin from now on."""
    database = connections["postgres"].settings_dict["NAME"]

    def start(*functions: str) -> None:
        ask("postgres", "CREATE SCHEMA pretending")
        bodies = {f"{function}(bigint) RETURNS boolean": "true" for function in functions}
        for head, value in {**bodies, "version() RETURNS text": f"'{COCKROACH}'"}.items():
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


def test_r22b_session_locks(pretends: Any, name: str) -> None:
    """Each time, sync and async, shared too; and nothing is kept."""
    pretends(*FUNCTIONS)
    lock = advisory_lock(name, using="postgres")
    for attempt in (lock.acquire, lock.try_acquire, advisory_lock(name, using="postgres", shared=True).acquire):
        refused(attempt)
    refused(async_to_sync(lock.aacquire))
    left = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'distlock %%'"
    eventually(lambda: not ask("postgres", left), "a session is left")  # the server ends what we have closed


@pytest.mark.parametrize("function", FUNCTIONS[:2])
def test_r22b_shared_and_exclusive_are_asked_for(pretends: Any, name: str, function: str) -> None:
    """One of the two that excludes nobody is enough."""
    pretends(function)
    refused(advisory_lock(name, using="postgres").acquire)


@pytest.mark.parametrize("shared", [False, True])
def test_r22b_locks_of_a_transaction(pretends: Any, name: str, shared: bool) -> None:
    pretends(*FUNCTIONS)
    lock = advisory_lock(name, using="postgres", shared=shared)
    with transaction.atomic("postgres"):
        refused(lock.acquire)


def test_r22b_a_second_session_that_got_the_lock_is_proof_enough(pretends: Any, name: str) -> None:
    """Also where the server then fails to say what it is: that it does not exclude is known by then."""
    pretends(*FUNCTIONS)
    head = "pretending.version() RETURNS text LANGUAGE plpgsql"
    ask("postgres", f"CREATE OR REPLACE FUNCTION {head} AS $$ BEGIN RAISE 'not now'; END $$")
    for scope in (transaction.atomic("postgres"), nullcontext()):
        with scope, pytest.raises(UnsupportedOperation, match="grants one lock to two sessions"):
            advisory_lock(name, using="postgres").acquire()


def test_r22b_the_doctor_says_so(pretends: Any) -> None:
    pretends(*FUNCTIONS)
    errors = [finding.text for finding in diagnose("postgres") if finding.level == "error"]
    assert any(COCKROACH in error for error in errors)


def test_r22b_a_server_that_refuses_the_settings_of_a_session(pretends: Any, name: str) -> None:
    """CockroachDB does not get as far as the lock: it knows no tcp_keepalives_idle."""
    body = "RAISE 'unrecognized configuration parameter' USING ERRCODE = 'undefined_object'; END"
    head = "pretending.set_config(text, text, boolean) RETURNS text"
    pretends(*FUNCTIONS)
    ask("postgres", f"CREATE FUNCTION {head} LANGUAGE plpgsql AS $$ BEGIN {body} $$")
    assert "unrecognized configuration parameter" in refused(advisory_lock(name, using="postgres").acquire)


def test_r22b_in_a_transaction_without_room_for_a_second_session(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is granted, with a warning: a transaction that waits for a second session occupies one. The question is
    asked again later."""
    with limited_role(1), caplog.at_level(logging.WARNING, "django_distlock.backends"):
        for _ in range(2):
            with transaction.atomic("postgres"), advisory_lock(name, using="postgres"):
                assert holders("postgres", name)
    (record,) = caplog.records
    assert re.search(r"second session asks whether the server excludes it.*too many", record.getMessage())
    backend: Any = registry.entry("postgres").backend
    assert not backend._transactions._proven
    monkeypatch.setattr(backend._transactions, "_prove_from", 0.0)  # a minute later
    with transaction.atomic("postgres"), advisory_lock(name, using="postgres"):
        assert backend._transactions._proven


def test_r22b_a_transaction_is_proven_by_way_of_session_database(settings: Any, name: str) -> None:
    """Behind a pooler the direct alias needs no place in a pool that may be full of first locks."""
    with database_alias("direct", "postgres") as direct, limited_role(1):
        options = {"database": "postgres", "session_database": direct}
        settings.DISTLOCK = {**settings.DISTLOCK, "postgres": {**settings.DISTLOCK["postgres"], "OPTIONS": options}}
        registry.reset()
        with transaction.atomic("postgres"), advisory_lock(name, using="postgres"):
            backend: Any = registry.entry("postgres").backend
            assert backend._transactions._proven
        registry.reset()


@contextmanager
def limited_role(most: int) -> Iterator[None]:
    """The alias connects as a role that may have so many sessions."""
    role, password = f"few_{secrets.token_hex(4)}", secrets.token_hex(16)
    ask("postgres", f"CREATE ROLE {role} LOGIN PASSWORD '{password}' CONNECTION LIMIT {most}")
    connection = connections["postgres"]
    before = dict(connection.settings_dict)
    connection.close()
    connection.settings_dict.update(USER=role, PASSWORD=password)
    registry.reset()
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)
        ask("postgres", f"DROP ROLE {role}")
