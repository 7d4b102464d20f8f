"""Lock sessions are closed before test databases are dropped; the fixtures of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from django.test.runner import DiscoverRunner

from django_distlock import advisory_lock
from django_distlock.manager.registry import registry
from django_distlock.testing import (
    LockTestRunner,
    close_lock_sessions,
)
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")


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
