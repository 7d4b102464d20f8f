"""What users' own tests have: locks in memory, assertions, a rehearsed loss, races, the runner's and pytest's part."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import unittest
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.test import SimpleTestCase, TestCase
from django.test.runner import DiscoverRunner

from django_distlock import LockLost, LockNotHeld, advisory_lock, held_locks, semaphore
from django_distlock.manager.registry import registry
from django_distlock.testing import LockTestRunner, assert_locked, assert_no_locks_held, lose, override_locks, race
from tests.conftest import eventually
from tests.operations.world import listening
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")


def test_assert_locked(name: str) -> None:
    with pytest.raises(AssertionError, match="is not held"):
        assert_locked(name, "postgres")
    with advisory_lock(name + "-other", using="postgres"), pytest.raises(AssertionError, match="-other"):
        assert_locked(name, "postgres")
    with advisory_lock(name, using="postgres") as lease:
        with assert_locked(name, "postgres"):
            pass
        with pytest.raises(AssertionError, match="is not held any more"), assert_locked(name, "postgres"):
            lease.release()
    with semaphore(name, 2, using="postgres"):
        assert_locked(name, "postgres")
    lock = advisory_lock(name, using="postgres")
    with pytest.raises(ZeroDivisionError), lock, assert_locked(name, "postgres"):  # which is not hidden
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


@pytest.mark.parametrize("using", ["postgres", "mysql", "redis", "redlock", "zookeeper", "leasetable", "memory"])
def test_a_loss_can_be_rehearsed_on_every_backend(using: str, name: str) -> None:
    told: list[Any] = []
    with listening(name) as heard:
        lease = advisory_lock(name, using=using).acquire()
        lease.on_lost(told.append)
        lose(lease, reason="session")
        assert (lease.lost, told) == (True, [lease])
        assert not [info for info in held_locks(using)[0].locks if info.name == name]  # others may have it
        for act in (lease.ensure_held, lease.release):
            with pytest.raises(LockLost):
                act()
    assert [kind for kind, _ in heard] == ["acquired", "lost"]
    assert heard.facts("lost")["reason"] == "session"
    with pytest.raises(LockNotHeld):
        lose(lease)


def test_a_loss_can_be_rehearsed_on_an_event_loop_and_in_a_transaction(name: str) -> None:
    async def scene() -> None:
        async with advisory_lock(name, using="redis", cancel_on_loss=True) as lease:
            lose(lease)
            await asyncio.Event().wait()

    with pytest.raises(LockLost):
        asyncio.run(scene())
    with advisory_lock(name, using="redis", timeout=10):
        pass
    with transaction.atomic("postgres"):
        lease = advisory_lock(name, using="postgres").acquire()
        lose(lease)
        with pytest.raises(LockLost):
            lease.release()


def test_a_race_shows_what_a_lock_prevents() -> None:
    """The naive code registers twice, on real connections; with a lock it does not."""
    both_looked = threading.Barrier(2)
    users = User.objects.using("postgres").filter(username="raced")

    def naive() -> bool:
        missing = not users.all().exists()
        both_looked.wait(25)
        return missing

    assert race(naive) == [True, True]
    used: list[Any] = []

    @advisory_lock("raced", using="postgres", timeout=25)
    def careful() -> bool:
        used.append(connections["postgres"])
        return not users.all().exists() and bool(User.objects.using("postgres").create(username="raced"))

    try:
        assert sorted(race(careful, 4)) == [False, False, False, True]
    finally:
        users.delete()
    assert len(set(map(id, used))) == 4
    assert [wrapper.connection for wrapper in used] == [None] * 4


def test_a_race_gives_results_and_exceptions_in_order_or_says_that_it_does_not_end() -> None:
    one, two, three = race([lambda: 1, lambda: 1 / 0, lambda: 3])
    assert (one, type(two), three) == (1, ZeroDivisionError, 3)
    gate = threading.Event()
    with pytest.raises(TimeoutError, match="1 of 2 calls have not ended: race-0"):
        race([lambda: gate.wait(60), lambda: True], timeout=1)
    gate.set()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "race-0"], "the thread goes on")


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


PROJECT = """
    import pytest
    from django_distlock import advisory_lock
    from django_distlock.manager.registry import registry

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
PLAIN = """
    import sys

    def test_plain():
        from django.conf import settings
        assert not settings.configured
        assert "django_distlock.testing" not in sys.modules
"""


def run_pytest(folder: Path, project: str, settings: str, *arguments: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(textwrap.dedent(project))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "django_distlock.pytest_plugin"]
    command += ["-s", "-c", str(folder / "pytest.ini"), "--rootdir", str(folder), *arguments, str(folder)]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    env["DJANGO_SETTINGS_MODULE"] = settings
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, env=env)
    return done.stdout + done.stderr


@pytest.mark.tier2
def test_the_plugin_of_pytest(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, PROJECT, "testproject.settings", "-p", "pytest_django.plugin")
    for part in (
        "3 passed, 1 error",
        "ERROR at teardown of test_leaves_one",
        "Still held: 'left-behind' on 'default'.",
        "dropped with 0 sessions",
    ):
        assert part in said, said
    # harmless where there is no Django project
    assert "1 passed" in run_pytest(tmp_path, PLAIN, "")


# --- locks in memory, and what the transactions of a TestCase do to them


def engine(alias: str = "default") -> str:
    return type(registry.entry(alias).backend).__name__


def busy_elsewhere(name: str) -> bool:
    """Does another thread find it held?"""

    def look() -> bool:
        lease = advisory_lock(name).try_acquire()
        if lease is not None:
            lease.release()
        return lease is None

    (found,) = race(look, 1)
    return bool(found)


def run_case(case: type[unittest.TestCase]) -> int:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    return result.testsRun


def test_all_aliases_or_those_named_are_in_memory_and_come_back() -> None:
    @override_locks()
    async def coroutine() -> str:
        async with advisory_lock("x"):
            return engine()

    usual = ("LeaseTableBackend", "AdvisoryBackend")
    assert (engine(), engine("postgres")) == usual
    with override_locks("memory"):
        assert {engine(alias) for alias in registry.aliases()} == {"MemoryBackend"}
        with override_locks(using="postgres"):  # nested
            assert engine() == "MemoryBackend"
    with override_locks(using=["postgres"]):
        assert (engine(), engine("postgres")) == ("LeaseTableBackend", "MemoryBackend")
    assert [override_locks()(engine)(), asyncio.run(coroutine())] == ["MemoryBackend"] * 2
    assert (engine(), engine("postgres")) == usual
    with pytest.raises(ValueError, match="memory"):
        override_locks("redis")
    with pytest.raises(ValueError, match="'nowhere'"), override_locks(using="nowhere"):
        pass


def test_what_is_left_held_is_forgotten() -> None:
    with override_locks():
        lease = advisory_lock("left").acquire()
    assert lease.lost
    assert_no_locks_held()

    @override_locks()
    class Leaving(SimpleTestCase):
        def leave(self) -> None:
            assert not busy_elsewhere("left")
            lease = advisory_lock("left").acquire()
            self.addCleanup(lambda: lease)

        test_one = test_two = leave

    assert run_case(Leaving) == 2


def test_in_a_testcase_a_lock_ends_with_its_block_or_with_the_atomic_around_it() -> None:
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

        def test_commit_and_rollback(self) -> None:
            for error in ((), (ZeroDivisionError,)):
                with self.subTest(error), contextlib.suppress(*error), transaction.atomic():
                    with transaction.atomic(), advisory_lock("case"):
                        User.objects.create(username=f"x{error}")
                    assert busy_elsewhere("case")
                    for each in error:
                        raise each
                assert not busy_elsewhere("case")
                assert_no_locks_held()

    assert run_case(Kept) == 1
    assert run_case(Mine) == 3
