"""What users' own tests have: locks in memory, assertions, a rehearsed loss, races, and fixtures of pytest."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import unittest
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase
from django.test.runner import DiscoverRunner

from django_distlock import LockLost, LockNotHeld, advisory_lock, held_locks, semaphore
from django_distlock.holdings import holdings
from django_distlock.registry import registry
from django_distlock.testing import (
    LockTestRunner,
    assert_locked,
    assert_no_locks_held,
    close_lock_sessions,
    lose,
    override_locks,
    race,
)
from tests.conftest import eventually
from tests.operations.listening import listening

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.usefixtures("databases")


def engine(alias: str = "default") -> str:
    return type(registry.entry(alias).backend).__name__


def busy_elsewhere(name: str) -> bool:
    """Does another thread find it held?"""
    found: list[Any] = []

    def look() -> None:
        lease = advisory_lock(name).try_acquire()
        found.append(lease is None)
        if lease is not None:
            lease.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return bool(found[0])


# --- override_locks


def test_all_aliases_or_those_named_are_in_memory_and_come_back() -> None:
    assert (engine(), engine("postgres")) == ("LeaseTableBackend", "AdvisoryBackend")
    with override_locks("memory"):
        assert {engine(alias) for alias in registry.aliases()} == {"MemoryBackend"}
        with override_locks(using="postgres"):  # nested
            assert engine() == "MemoryBackend"
    with override_locks(using=["postgres"]):
        assert (engine(), engine("postgres")) == ("LeaseTableBackend", "MemoryBackend")
    assert (engine(), engine("postgres")) == ("LeaseTableBackend", "AdvisoryBackend")


def test_it_decorates_functions_and_coroutines() -> None:
    @override_locks()
    def plain() -> str:
        return engine()

    @override_locks()
    async def coroutine() -> str:
        async with advisory_lock("x"):
            await asyncio.sleep(0)
        return engine()

    assert [plain(), asyncio.run(coroutine()), engine()] == ["MemoryBackend", "MemoryBackend", "LeaseTableBackend"]


def test_what_is_left_held_is_forgotten() -> None:
    with override_locks():
        leases = [advisory_lock("left").acquire()]
    assert leases[0].lost
    assert not holdings.held()
    with override_locks():
        assert not busy_elsewhere("left")


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="memory"):
        override_locks("redis")
    with pytest.raises(ValueError, match="'nowhere'"), override_locks(using="nowhere"):
        pass


def run_case(case: type[unittest.TestCase]) -> unittest.TestResult:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    return result


def test_in_a_testcase_a_lock_ends_with_its_block() -> None:
    """Without override_locks the transaction of the test keeps it."""

    class Kept(TestCase):
        def test_kept(self) -> None:
            with advisory_lock("case"):
                pass
            assert busy_elsewhere("case")

    @override_locks()
    class Mine(TestCase):
        def test_given_back(self) -> None:
            with advisory_lock("case"):
                assert busy_elsewhere("case")
            assert not busy_elsewhere("case")
            assert_no_locks_held()

        async def test_async(self) -> None:
            async with advisory_lock("case"):
                pass
            assert_no_locks_held()

    run_case(Kept)
    assert run_case(Mine).testsRun == 2


def test_in_a_testcase_a_lock_inside_atomic_is_kept_until_that_ends() -> None:
    @override_locks()
    class Mine(TestCase):
        def test_commit_and_rollback(self) -> None:
            for fails in (False, True):
                with listening("case") as heard:
                    try:
                        with transaction.atomic():
                            with transaction.atomic(), advisory_lock("case"):
                                User.objects.create(username="x")
                            assert busy_elsewhere("case")
                            if fails:
                                raise ZeroDivisionError
                            User.objects.all().delete()
                    except ZeroDivisionError:
                        pass
                    assert not busy_elsewhere("case")
                    assert heard.kinds()[0] == "acquired"
                    assert "released" in heard.kinds()
                assert_no_locks_held()
                assert "savepoint_commit" not in connection.__dict__

    run_case(Mine)


def test_each_test_of_a_class_begins_with_nothing() -> None:
    @override_locks()
    class Leaving(SimpleTestCase):
        def leave(self) -> None:
            assert not busy_elsewhere("same")
            lease = advisory_lock("same").acquire()
            self.addCleanup(lambda: lease)

        test_one = test_two = leave

    assert run_case(Leaving).testsRun == 2


# --- assertions


def test_assert_locked_on_every_backend(using: str, name: str) -> None:
    with pytest.raises(AssertionError, match="is not held"):
        assert_locked(name, using)
    with advisory_lock(name + "-other", using=using), pytest.raises(AssertionError, match="-other"):
        assert_locked(name, using)
    with advisory_lock(name, using=using) as lease:
        assert_locked(name, using)
        with assert_locked(name, using):
            pass
        with pytest.raises(AssertionError, match="is not held any more"), assert_locked(name, using):
            lease.release()
        lease = advisory_lock(name, using=using).acquire()
    with semaphore(name, 2, using=using):
        assert_locked(name, using)
    lease.release()


def test_an_exception_of_the_block_is_not_hidden(name: str) -> None:
    lease = advisory_lock(name, using="memory").acquire()
    with pytest.raises(ZeroDivisionError), assert_locked(name, "memory"), lease:
        raise ZeroDivisionError


def test_assert_no_locks_held_names_them(name: str) -> None:
    assert_no_locks_held()
    with advisory_lock(name, using="memory"), pytest.raises(AssertionError, match=r"on 'memory'\.$"):
        assert_no_locks_held()
    with transaction.atomic():
        with advisory_lock(name, using="memory"):
            pass
        with pytest.raises(AssertionError, match="until its transaction ends"):
            assert_no_locks_held()


# --- a rehearsed loss


def test_a_loss_can_be_rehearsed_on_every_backend(using: str, name: str) -> None:
    told: list[Any] = []
    with listening(name) as heard:
        lease = advisory_lock(name, using=using).acquire()
        lease.on_lost(told.append)
        lose(lease, reason="session")
        assert lease.lost
        assert told == [lease]
        (report,) = held_locks(using)
        assert not [info for info in report.locks if info.name == name]  # others may have it
        with pytest.raises(LockLost):
            lease.ensure_held()
        with pytest.raises(LockLost):
            lease.release()
    assert heard.kinds() == ["acquired", "lost"]
    assert heard.facts("lost")["reason"] == "session"
    with pytest.raises(LockNotHeld):
        lose(lease)


def test_a_loss_can_be_rehearsed_on_an_event_loop(using: str, name: str) -> None:
    async def scene() -> None:
        async with advisory_lock(name, using=using, cancel_on_loss=True) as lease:
            lose(lease)
            await asyncio.sleep(30)

    async def again() -> None:
        async with advisory_lock(name, using=using, timeout=10):
            pass

    with pytest.raises(LockLost):
        asyncio.run(scene())
    asyncio.run(again())


def test_a_lock_inside_a_transaction_can_be_lost(name: str) -> None:
    with transaction.atomic("postgres"):
        lease = advisory_lock(name, using="postgres").acquire()
        assert lease._holding.scope == "transaction"
        lose(lease)
        with pytest.raises(LockLost):
            lease.release()


# --- races


def test_a_race_shows_what_a_lock_prevents() -> None:
    """The naive code registers twice, on real connections; with a lock it does not."""
    both_looked = threading.Barrier(2)

    def naive() -> bool:
        missing = not User.objects.using("postgres").filter(username="raced").exists()
        both_looked.wait(10)
        return missing

    assert race(naive) == [True, True]

    @advisory_lock("raced", using="postgres")
    def careful() -> bool:
        users = User.objects.using("postgres").filter(username="raced")
        if users.exists():
            return False
        User.objects.using("postgres").create(username="raced")
        return True

    try:
        assert sorted(race(careful, 4)) == [False, False, False, True]
    finally:
        User.objects.using("postgres").filter(username="raced").delete()


def test_a_race_gives_results_and_exceptions_in_order() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    one, two, three = race([lambda: 1, fail, lambda: 3])
    assert (one, type(two), three) == (1, ZeroDivisionError, 3)


def test_a_race_closes_its_connections() -> None:
    used: list[Any] = []

    def use() -> None:
        used.append(connections["postgres"])
        connections["postgres"].ensure_connection()

    race(use, 3)
    assert len(set(map(id, used))) == 3
    assert [wrapper.connection for wrapper in used] == [None] * 3


def test_a_race_that_does_not_end_says_so() -> None:
    gate = threading.Event()
    with pytest.raises(TimeoutError, match="1 of 2 calls have not ended: race-0"):
        race([lambda: gate.wait(10), lambda: True], timeout=0.2)
    gate.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "race-0"], "the thread goes on")


# --- test runners


def test_the_runner_closes_lock_sessions_before_it_drops_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    open_then: list[int] = []
    backend: Any = registry.entry("postgres").backend
    monkeypatch.setattr(
        DiscoverRunner, "teardown_databases", lambda self, old, **kwargs: open_then.append(len(backend.sessions.all()))
    )
    with advisory_lock("x", using="postgres"):
        pass
    assert backend.sessions.all()
    LockTestRunner().teardown_databases([])
    assert open_then == [0]
    close_lock_sessions()


PROJECT = """
    import pytest
    from django.db import connection
    from django_distlock import advisory_lock
    from django_distlock.registry import registry

    @pytest.fixture(scope="session")
    def django_db_setup():
        yield
        print("dropped with", len(registry.entry("postgres").backend.sessions.all()), "sessions")

    def test_memory(distlock_memory):
        with advisory_lock("x"):
            assert type(registry.entry("default").backend).__name__ == "MemoryBackend"

    def test_leaves_one(distlock_memory, no_locks_left):
        advisory_lock("left-behind").acquire()

    def test_session(django_db_setup, django_db_blocker):
        with django_db_blocker.unblock(), advisory_lock("x", using="postgres"):
            pass
        assert registry.entry("postgres").backend.sessions.all()
"""


def run_pytest(folder: Path, *arguments: str, **env: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "django_distlock.pytest_plugin"]
    done = subprocess.run(
        [*command, "-s", "-c", str(folder / "pytest.ini"), "--rootdir", str(folder), *arguments, str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), **env},
    )
    return done.stdout + done.stderr


def test_the_fixtures_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(PROJECT))
    said = run_pytest(tmp_path, "-p", "pytest_django.plugin", DJANGO_SETTINGS_MODULE="testproject.settings")
    assert "3 passed, 1 error" in said, said
    assert "ERROR at teardown of test_leaves_one" in said
    assert "Still held: 'left-behind' on 'default'." in said
    assert "dropped with 0 sessions" in said


def test_the_plugin_is_harmless_where_there_is_no_django_project(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_plain():\n"
        "    from django.conf import settings\n"
        "    assert not settings.configured\n"
        "    assert 'django_distlock.testing' not in sys.modules\n"
    )
    assert "1 passed" in run_pytest(tmp_path, DJANGO_SETTINGS_MODULE="")
