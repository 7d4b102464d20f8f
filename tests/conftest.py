"""Shared by all tests: a site key, the databases without a flush after each test, and nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from asgiref.sync import SyncToAsync
from django.conf import settings
from django.db import connections
from django.test.utils import setup_databases, teardown_databases

from tests.matrix import MATRIX, Entry
from tests.support import timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.clock import FakeClock

SITE_KEY = "a-site-key-for-the-tests-only-0123456789abcdef"
os.environ["DISTLOCK_SITE_KEY"] = SITE_KEY
settings.DISTLOCK_SITE_KEY = SITE_KEY

# Less than the default TTL of 30 s, whose end would hide a key that was left.
PATIENCE = 25.0  # seconds

# An example may take its time on a busy machine.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

# A shell starts what runs in its background with SIGINT ignored; these tests interrupt themselves and their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: Any, django_db_keepdb: bool, django_db_createdb: bool
) -> Iterator[None]:
    """A test database for every alias. pytest-django makes only those that a ``django_db`` mark names, and tests
    without the mark would run on the real ones."""
    with django_db_blocker.unblock():
        made = setup_databases(
            verbosity=0,
            interactive=False,
            keepdb=django_db_keepdb and not django_db_createdb,
            serialized_aliases=set(),
        )
    yield
    if not django_db_keepdb:
        with django_db_blocker.unblock():
            gc.collect()  # a connection in a reference cycle is closed by that
            connections.close_all()
            for alias in connections:
                if connections[alias].vendor == "postgresql":
                    eventually(lambda alias=alias: not _others(alias), lambda alias=alias: f"open: {_others(alias)}")
                    connections[alias].close()  # several aliases have one database
            teardown_databases(made, verbosity=0)
        leases = Path(connections["default"].settings_dict["TEST"]["NAME"])
        for left in leases.parent.glob(f"{leases.name}-distlock*"):  # the lease table's own file, and its journal
            left.unlink()


@pytest.fixture
def databases(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Every test database, open to threads and other processes, without a transaction around the test and without the
    flush after it: who writes rows deletes them."""
    with django_db_blocker.unblock():
        yield
        for connection in connections.all(initialized_only=True):
            _leave_blocks(connection)
        connections.close_all()
        # the one thread that asgiref keeps for every task without a thread of its own: a later test may restart the
        # server under the connections that this one has left there
        if SyncToAsync.single_thread_executor._threads:
            SyncToAsync.single_thread_executor.submit(connections.close_all).result(PATIENCE)


def _others(alias: str) -> list[tuple[Any, ...]]:
    """The other sessions on a PostgreSQL database, which could not be dropped under them."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT pid, application_name, client_port, backend_start, state, wait_event, left(query, 200)"
            " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        return cursor.fetchall()


def _leave_blocks(connection: Any) -> None:
    """A test that has failed in an ``atomic()`` of its own would else fail those after it: Django opens no connection
    again until the end of the block in which it was closed."""
    connection.in_atomic_block = connection.closed_in_transaction = False
    connection.savepoint_ids, connection.atomic_blocks = [], []


@pytest.fixture(params=MATRIX, ids=lambda entry: entry.using)
def entry(request: pytest.FixtureRequest, databases: None) -> Entry:
    """Each backend of the matrix in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def using(entry: Entry) -> str:
    """The lock alias of each backend in turn."""
    return entry.using


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A lock name of the test's own: locks are seen by other runs on the same server."""
    return f"{request.node.nodeid}-{os.getpid()}-{time.monotonic_ns()}"[-500:]


@pytest.fixture
def fake_clock(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that the test moves, for locks in memory."""
    from tests.support.clock import FakeClock

    return FakeClock(monkeypatch)


def connect(using: str) -> None:
    """Have a connection to the server of an alias before milliseconds count. ``pytest.mark.cold`` does without."""
    from django_distlock import advisory_lock

    advisory_lock(f"connect to {using}", using=using).acquire(timeout=PATIENCE).release()


def eventually(condition: Any, message: Any, patience: float = PATIENCE, pause: float = 0.005) -> None:
    """Poll every ``pause`` seconds until ``condition()`` is true; fail with ``message``, a text or a function that
    returns it, after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, message() if callable(message) else message
        time.sleep(pause)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who needs the machine for itself belongs to the second tier."""
    for item in items:
        if item.get_closest_marker("alone") is not None:
            item.add_marker(pytest.mark.tier2)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """What the machine was late with before is none of this test's bounds."""
    timing.start(item.get_closest_marker("tier2") is not None)


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if call.when == "call":
        item.stash[_failed] = report.failed
    return report  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no lock is held, no lock session is open and none of our threads runs.

    A test that has failed did not come to its releases: that is no second fault.
    """
    yield
    from django_distlock.manager.lock_table import lock_table
    from django_distlock.manager.registry import registry

    held = lock_table.held()
    eventually(lambda: not _threads("distlock-release"), "a release is not through")
    registry.close()
    for hold in held:
        lock_table.end(hold)
    if request.node.stash.get(_failed, False):
        return
    assert not held, f"still held: {[hold.key.name for hold in held]}"
    # what is released on an event loop is given back by a thread
    eventually(lambda: not lock_table.all(), "somebody still waits or claims")
    eventually(lambda: not _sessions(), f"lock sessions are open: {_sessions()}")
    eventually(lambda: not _threads(), f"threads are left: {_threads()}")


def _sessions() -> list[Any]:
    from django_distlock.manager.registry import registry

    return [session for backend in registry if hasattr(backend, "sessions") for session in backend.sessions.all()]


def _threads(prefix: str = "distlock-") -> list[str]:
    """Ours, but for the keepalive thread, which ends by itself when it finds nothing to look after."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(prefix) and thread.name != "distlock-keepalive"
    ]
