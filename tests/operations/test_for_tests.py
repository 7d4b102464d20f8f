"""What users' own tests have: locks in memory, assertions, a rehearsed loss, races, the runner's and pytest's part."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import unittest
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import SimpleTestCase, TestCase
from django.test.runner import DiscoverRunner

from django_distlock import LockLost, LockNotHeld, advisory_lock, held_locks, lock_all, semaphore
from django_distlock.manager.registry import registry
from django_distlock.testing import LockTestRunner, assert_locked, assert_no_locks_held, lose, override_locks, race
from tests.conftest import eventually
from tests.operations.world import listening
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")


def test_assert_locked(name: str) -> None:
    lock = advisory_lock(name, using="postgres")
    with pytest.raises(AssertionError, match="is not held"):
        assert_locked(name, "postgres")
    with advisory_lock(name + "-other", using="postgres"), pytest.raises(AssertionError, match="-other"):
        assert_locked(name, "postgres")
    with semaphore(name, 2, using="postgres"):
        assert_locked(name, "postgres")
    with lock as lease, pytest.raises(AssertionError, match="is not held any more"), assert_locked(name, "postgres"):
        lease.release()
    with pytest.raises(ZeroDivisionError), lock, assert_locked(name, "postgres"):  # which is not hidden
        raise ZeroDivisionError


@pytest.mark.parametrize("using", ["postgres", "redis", "memory"])  # a session, a lease, no server
def test_a_loss_can_be_rehearsed(using: str, name: str) -> None:
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


def test_what_is_lost_is_the_lease_of_one_lock(name: str) -> None:
    wrong: Any
    with lock_all([name], using="memory") as leases:
        for wrong in (name, leases, None):
            with pytest.raises(TypeError, match=f"^lease must be the Lease of one lock.* not {type(wrong).__name__}"):
                lose(wrong)


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
    def test_plain():
        import sys
        from django.conf import settings
        assert not settings.configured
        assert "django_distlock.testing" not in sys.modules
"""


@pytest.mark.tier2
@pytest.mark.parametrize(
    ("project", "settings", "said"),
    [
        (PROJECT, "testproject.settings", ["3 passed, 1 error", "ERROR at teardown of test_leaves_one",
         "Still held: 'left-behind' on 'default'.", "dropped with 0 sessions"]),
        (PLAIN, "", ["1 passed"]),  # harmless where there is no Django project
    ],
    ids=["project", "plain"],
)  # fmt: skip
def test_the_plugin_of_pytest(project: str, settings: str, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(project))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "django_distlock.pytest_plugin", "-s"]
    command += ["-p", "pytest_django.plugin"] if settings else []
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": settings}
    command += ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, env={**os.environ, **env})
    assert not [part for part in said if part not in done.stdout + done.stderr], done.stdout + done.stderr


# --- locks in memory, and what the transactions of a TestCase do to them


def engines() -> list[str]:
    return [type(registry.entry(alias).backend).__name__ for alias in ("default", "postgres")]


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
    async def coroutine() -> list[str]:
        async with advisory_lock("x"):
            return engines()

    usual, memory = ["LeaseTableBackend", "AdvisoryBackend"], ["MemoryBackend"] * 2
    assert engines() == usual
    with override_locks("memory"):
        assert {type(registry.entry(alias).backend).__name__ for alias in registry.aliases()} == {"MemoryBackend"}
        with override_locks(using="postgres"):  # nested
            assert engines() == memory
    with override_locks(using=["postgres"]):
        assert engines() == [usual[0], memory[1]]
    assert [override_locks()(engines)(), asyncio.run(coroutine())] == [memory, memory]
    assert engines() == usual
    with pytest.raises(ValueError, match="memory"):
        override_locks("redis")
    with pytest.raises(ValueError, match="'nowhere'"), override_locks(using="nowhere"):
        pass


def test_what_is_left_held_is_forgotten() -> None:
    @override_locks()
    class Leaving(SimpleTestCase):
        def leave(self) -> None:
            assert not busy_elsewhere("left")
            leases.append(advisory_lock("left").acquire())

        test_one = test_two = leave

    leases: list[Any] = []
    assert run_case(Leaving) == 2
    assert [lease.lost for lease in leases] == [True, True]
    assert_no_locks_held()


def test_in_a_testcase_a_lock_ends_with_its_block() -> None:
    """That it does not without override_locks is in docs/usage/testing.md, whose code is run."""

    @override_locks()
    class Mine(TestCase):
        async def test_async(self) -> None:
            async with advisory_lock("case"):
                pass
            assert_no_locks_held()

        def test_inside_atomic(self) -> None:
            with transaction.atomic():
                with advisory_lock("case"):
                    User.objects.create(username="x")
                    assert busy_elsewhere("case")
                assert not busy_elsewhere("case")
                assert_no_locks_held()

    assert run_case(Mine) == 2
