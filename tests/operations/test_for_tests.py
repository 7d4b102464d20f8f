"""What users' own tests have: assertions, a rehearsed loss, races, the runner's and pytest's part."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.test.runner import DiscoverRunner

from django_distlock import LockLost, LockNotHeld, advisory_lock, held_locks, semaphore
from django_distlock.manager.registry import registry
from django_distlock.testing import LockTestRunner, assert_locked, assert_no_locks_held, lose, race
from tests.conftest import eventually
from tests.operations.listening import listening
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
        lease = advisory_lock(name, using="postgres").acquire()
    with semaphore(name, 2, using="postgres"):
        assert_locked(name, "postgres")
    with pytest.raises(ZeroDivisionError), assert_locked(name, "postgres"), lease:  # which is not hidden
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
        assert lease.lost
        assert told == [lease]
        assert not [info for info in held_locks(using)[0].locks if info.name == name]  # others may have it
        for act in (lease.ensure_held, lease.release):
            with pytest.raises(LockLost):
                act()
    assert heard.kinds() == ["acquired", "lost"]
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

    def naive() -> bool:
        missing = not User.objects.using("postgres").filter(username="raced").exists()
        both_looked.wait(25)
        return missing

    assert race(naive) == [True, True]
    used: list[Any] = []

    @advisory_lock("raced", using="postgres", timeout=25)
    def careful() -> bool:
        used.append(connections["postgres"])
        users = User.objects.using("postgres").filter(username="raced")
        if users.exists():
            return False
        User.objects.using("postgres").create(username="raced")
        return True

    try:
        assert sorted(race(careful, 4)) == [False, False, False, True]
    finally:
        User.objects.using("postgres").filter(username="raced").delete()
    assert len(set(map(id, used))) == 4
    assert [wrapper.connection for wrapper in used] == [None] * 4


def test_a_race_gives_results_and_exceptions_in_order_or_says_that_it_does_not_end() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    one, two, three = race([lambda: 1, fail, lambda: 3])
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
    from django.db import connection
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


def run_pytest(folder: Path, project: str, *arguments: str, **env: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(textwrap.dedent(project))
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


@pytest.mark.tier2
def test_the_plugin_of_pytest(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, PROJECT, "-p", "pytest_django.plugin", DJANGO_SETTINGS_MODULE="testproject.settings")
    assert "3 passed, 1 error" in said, said
    assert "ERROR at teardown of test_leaves_one" in said
    assert "Still held: 'left-behind' on 'default'." in said
    assert "dropped with 0 sessions" in said
    # harmless where there is no Django project
    assert "1 passed" in run_pytest(tmp_path, PLAIN, DJANGO_SETTINGS_MODULE="")
