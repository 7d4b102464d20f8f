"""PostgreSQL: shared locks, timeouts that an administrator set, long waits, listing, what it says when it cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from django_distlock import BackendUnavailable, LockTimeout, advisory_lock, held_locks
from django_distlock.backends.postgres.session import STATEMENTS
from django_distlock.backends.sessions.session import ServerError
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import run
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.actors import hold, share_and_write
from tests.faults.conftest import database_alias
from tests.faults.server import ask, holders, key_of, session_of, waiters
from tests.support.processes import Child
from tests.support.timing import within
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


def test_r1_readers_together_writers_alone(name: str) -> None:
    """R1, within one process (one session of the server) and between processes."""
    shared = advisory_lock(name, using="postgres", shared=True)
    exclusive = advisory_lock(name, using="postgres")
    first = shared.acquire()
    second: list[Lease | None] = []
    thread = threading.Thread(target=lambda: second.append(shared.try_acquire()))
    thread.start()
    thread.join(10)
    assert second[0] is not None
    with Child(hold_shared, name) as child:
        assert child.hear() == "held"
        assert len(holders("postgres", name)) == 2
        first.release()
        second[0].release()
        assert holders("postgres", name) != []
        assert exclusive.try_acquire() is None
        child.say()
        assert child.hear() == "released"
    with exclusive:
        assert shared_in_thread(name) is None


def hold_shared(link: Any, name: str) -> None:
    """In a child: read until told."""
    with advisory_lock(name, using="postgres", shared=True):
        link.say("held")
        link.hear()
    link.say("released")


def shared_in_thread(name: str, timeout: float = 0) -> Lease | None:
    """Ask for the shared lock in a context of its own."""
    found: list[Lease | None] = []
    lock = advisory_lock(name, using="postgres", shared=True)
    thread = threading.Thread(target=lambda: found.append(lock.try_acquire(timeout=timeout)))
    thread.start()
    thread.join(10)
    return found[0]


def test_r1_two_readers_of_one_process_hold_the_lock_until_the_last_one_leaves(name: str) -> None:
    lock = advisory_lock(name, using="postgres", shared=True)
    first = lock.acquire()
    second = shared_in_thread(name)
    assert second is not None
    first.release()
    assert len(holders("postgres", name)) == 1, "the release of one reader freed the lock of both"
    second.release()
    assert not holders("postgres", name)


def test_r4_a_waiting_writer_is_not_overtaken_by_readers_of_a_reading_session(name: str) -> None:
    """R4. The server lets a session that reads already read once more, whoever waits; the naive statement shows it."""
    reader = advisory_lock(name, using="postgres", shared=True).acquire()
    session = session_of(reader)
    with Child(share_and_write, "postgres", name) as writer:
        assert writer.hear() == "asking"
        eventually(lambda: waiters("postgres", name), "the writer does not wait")
        with held_mutex(session):
            sql = f"SELECT pg_try_advisory_lock_shared({number_of(name)})".encode()
            assert run(session.query(sql, monotonic() + 2)) == [["t"]], "no fault to guard against"
            run(session.query(sql.replace(b"try_advisory_lock", b"advisory_unlock"), monotonic() + 2))
        assert shared_in_thread(name) is None
        released = monotonic()
        reader.release()
        within(writer.hear() - released, 1.0)
        assert shared_in_thread(name) is None
        writer.say()


@contextmanager
def held_mutex(session: Any) -> Iterator[None]:
    assert session.mutex.acquire(5)
    try:
        yield
    finally:
        session.mutex.release()


def test_r4_joining_readers_do_not_starve_a_writer_of_another_process(name: str) -> None:
    """R4: four threads of this process read in turns, somebody always reads; the writer gets in all the same."""
    lock = advisory_lock(name, using="postgres", shared=True, timeout=30)
    ended = threading.Event()
    overlaps = []

    def read() -> None:
        while not ended.is_set():
            with lock:
                overlaps.append(len(holders("postgres", name)))
            time.sleep(0)
        connections.close_all()

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(overlaps) > 20, "nobody reads")
    with Child(share_and_write, "postgres", name) as writer:
        assert writer.hear() == "asking"
        asked = monotonic()
        within(writer.hear(timeout=10) - asked, 2.0)
        ended.set()
        writer.say()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


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
        from django_distlock.manager.registry import registry

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
    with Child(hold, "postgres", name) as child:
        assert child.hear() == "held"
        lease = advisory_lock(name + "-kept", using="postgres").acquire()
        began = monotonic()
        with pytest.raises(LockTimeout):
            advisory_lock(name, using="postgres").acquire(timeout=0.5)
        within(monotonic() - began, 0.55, least=0.5)
        lease.ensure_held()
        assert holders("postgres", name + "-kept") == [session_of(lease).server_id]
        child.say()
        assert child.hear() == "released"
    lease.release()


def test_statement_timeout_of_the_role_does_not_end_a_wait_in_a_transaction(impatient_role: str, name: str) -> None:
    """In the caller's transaction his statement_timeout counts; the wait goes on all the same until its deadline."""
    with Child(hold, "postgres", name) as child:
        assert child.hear() == "held"
        timer = threading.Timer(0.4, child.say)
        with transaction.atomic(using=impatient_role):
            with connections[impatient_role].cursor() as cursor:  # this test may be slow between two statements
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '10s'")
            timer.start()
            with advisory_lock(name, using="postgres", timeout=5):
                assert len(holders("postgres", name)) == 1
            with connections[impatient_role].cursor() as cursor:
                cursor.execute("SHOW lock_timeout")
                assert cursor.fetchone() == ("150ms",)
        timer.join()
        assert child.hear() == "released"


@pytest.mark.parametrize("days", [25, 3660])
def test_r5_a_wait_longer_than_the_engine_can_count_is_a_wait(name: str, days: int) -> None:
    """R5: lock_timeout and poll() end at 2^31 ms, less than 25 days; the contract allows ten years."""
    with Child(hold, "postgres", name) as child:
        assert child.hear() == "held"
        threading.Timer(0.2, child.say).start()
        with advisory_lock(name, using="postgres", timeout=days * 86400.0):
            assert len(holders("postgres", name)) == 1
        assert child.hear() == "released"


@pytest.mark.parametrize("days", [25, 3660])
def test_r5_such_a_wait_in_a_transaction(name: str, days: int) -> None:
    with Child(hold, "postgres", name) as child:
        assert child.hear() == "held"
        threading.Timer(0.2, child.say).start()
        with transaction.atomic(using="postgres"), advisory_lock(name, using="postgres", timeout=days * 86400.0):
            assert len(holders("postgres", name)) == 1
        assert child.hear() == "released"


def test_held_locks_shows_holders_and_waiters_of_all_processes(name: str) -> None:
    shared = name + "-shared"
    with ExitStack() as stack:
        holder = stack.enter_context(Child(hold, "postgres", name))
        assert holder.hear() == "held"
        waiter = stack.enter_context(Child(share_and_write, "postgres", name))
        assert waiter.hear() == "asking"
        eventually(lambda: waiters("postgres", name), "nobody waits")
        with advisory_lock(shared, using="postgres", shared=True):
            (report,) = held_locks("postgres")
            infos = {info.key: info for info in report.locks}
        busy = infos[str(number_of(name))]
        assert report.error is None
        assert (busy.shared, busy.waiters, busy.backend) == (False, 1, "postgres")
        assert busy.details["pid"] == str(holders("postgres", name)[0])
        assert busy.details["application_name"] == f"distlock {socket.gethostname()}:{holder.pid}"
        assert busy.holder
        reading = infos[str(number_of(shared))]
        assert (reading.shared, reading.waiters, reading.name) == (True, 0, shared)
        holder.say()
        assert holder.hear() == "released"
        assert waiter.hear()
        waiter.say()


def number_of(name: str) -> int:
    return key_of("postgres", name).number


def test_r6_a_wrong_password_is_unavailable_with_the_servers_words(settings: Any, name: str) -> None:
    with database_alias("stranger", "postgres", PASSWORD="wrong-canary-password"):
        on(settings, "postgres", session_database="stranger")
        with pytest.raises(BackendUnavailable, match="password authentication failed") as caught:
            advisory_lock(name, using="postgres").acquire(timeout=1)
        assert caught.value.__cause__ is not None
        assert "wrong-canary-password" not in f"{caught.value!r} {caught.value.__cause__!r}"
        (report,) = held_locks("postgres")
        assert report.error is not None


def test_r6_nobody_listening_is_unavailable_at_once(settings: Any, name: str) -> None:
    with database_alias("nobody", "postgres", PORT="1"):
        on(settings, "postgres", session_database="nobody")
        began = monotonic()
        with pytest.raises(BackendUnavailable, match="refused"):
            advisory_lock(name, using="postgres").acquire(timeout=5)
        within(monotonic() - began, 1)


def test_the_wrong_kind_of_database_is_named(settings: Any, name: str) -> None:
    on(settings, "default")
    with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['postgres'\]: .*'default' is sqlite, not PostgreSQL"):
        advisory_lock(name, using="postgres").acquire()


@pytest.mark.parametrize(
    ("driver", "module", "extra"), [("psycopg", "postgres", "postgres"), ("MySQLdb", "mysql", "mysql")]
)
def test_a_missing_driver_names_the_extra(driver: str, module: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{driver!r}] = None
from django.core.exceptions import ImproperlyConfigured
try:
    import django_distlock.backends.{module}.backend
except ImproperlyConfigured as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"pip install 'django-distlock[{extra}]'" in done.stdout, done.stderr
