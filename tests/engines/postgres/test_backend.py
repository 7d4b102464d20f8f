"""PostgreSQL: shared locks, timeouts that an administrator set, long waits, listing, what it says when it cannot."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction

from django_distlock import LockTimeout, advisory_lock
from django_distlock.backends.postgres.session import STATEMENTS
from django_distlock.backends.sessions.session import ServerError
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import run
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere, share_and_write
from tests.faults.conftest import database_alias
from tests.faults.server import ask, holders, key_of, session_of, waiters
from tests.support.processes import Child
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock import Lease

pytestmark = pytest.mark.usefixtures("databases")

TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
BACKEND = "django_distlock.backends.postgres.AdvisoryBackend"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time(monkeypatch.setattr)


def on(settings: Any, database: str, **options: Any) -> None:
    """Let the lock alias "postgres" use another database alias."""
    settings.DISTLOCK = {
        **settings.DISTLOCK,
        "postgres": {"BACKEND": BACKEND, "OPTIONS": {"database": database, **options}},
    }


def shared_in_thread(name: str, timeout: float = 0) -> Lease | None:
    """Ask for the shared lock in a context of its own."""
    found: list[Lease | None] = []
    lock = advisory_lock(name, using="postgres", shared=True)
    thread = threading.Thread(target=lambda: found.append(lock.try_acquire(timeout=timeout)))
    thread.start()
    thread.join(10)
    return found[0]


def test_r4_a_waiting_writer_is_not_overtaken_by_readers_of_a_reading_session(name: str) -> None:
    """R4. The server lets a session that reads already read once more, whoever waits."""
    reader = advisory_lock(name, using="postgres", shared=True).acquire()
    with Child(share_and_write, "postgres", name) as writer:
        assert writer.hear() == "asking"
        eventually(lambda: waiters("postgres", name), "the writer does not wait")
        assert shared_in_thread(name) is None
        reader.release()
        assert writer.hear()
        assert shared_in_thread(name) is None
        writer.say()


@pytest.fixture
def impatient_role(databases: None, settings: Any) -> Iterator[str]:
    """A database role whose administrator set every timeout to a fraction of a second; as a database alias."""
    role = f"distlock_impatient_{os.getpid()}"
    ask("postgres", f"CREATE ROLE {role} LOGIN PASSWORD 'impatient'")
    for timeout in TIMEOUTS:
        ask("postgres", f"ALTER ROLE {role} SET {timeout} = '150ms'")
    with database_alias("impatient", "postgres", USER=role, PASSWORD="impatient"):
        on(settings, "impatient")
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
    assert turn.acquire(5)  # else the keepalive thread may take the reply
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


def number_of(name: str) -> int:
    return key_of("postgres", name).number
