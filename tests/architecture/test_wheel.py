"""The wheel, in an environment that has Django and nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT
from tests.support.polite import POLITELY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.tier2


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([*POLITELY, *command], cwd=cwd, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT, cwd=folder)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"django_distlock"}
    assert "django_distlock/py.typed" in names
    assert "django_distlock/templates/django_distlock/busy.html" in names
    assert "django_distlock/migrations/0001_initial.py" in names
    assert "django_distlock/backends/redis/scripts/acquire.lua" in names
    assert "django_distlock/templates/admin/django_distlock/heldlock/detail.html" in names
    assert "django_distlock/static/django_distlock/heldlocks.js" in names
    catalogs = {name.rpartition(".")[0] for name in names if name.endswith(".po")}
    assert "django_distlock/locale/de/LC_MESSAGES/django" in catalogs
    assert {f"{catalog}.mo" for catalog in catalogs} <= set(names)
    (points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
    text = zipfile.ZipFile(wheel).read(points).decode()
    assert "[pytest11]\ndistlock = django_distlock.pytest_plugin" in text
    assert (
        "[opentelemetry_instrumentor]\ndjango_distlock = django_distlock.operations.otel:DistlockInstrumentor" in text
    )


def test_it_works_with_django_alone(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "-q", "--no-compile", wheel, cwd=tmp_path)  # most of Django is not looked at
    listed = run(*pip, "list", "--format=freeze", cwd=tmp_path).lower()
    assert not {"psycopg", "mysqlclient", "redis", "kazoo", "opentelemetry-api"} & {
        line.split("==")[0] for line in listed.split()
    }
    (tmp_path / "plain.py").write_text(
        textwrap.dedent(
            """
            SECRET_KEY = "for-this-test-only"
            INSTALLED_APPS = ["django_distlock"]
            DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "plain.sqlite3"}}
            """
        )
    )
    admin = [python, "-m", "django"]
    environment = ["--settings=plain", "--pythonpath=."]
    assert "no issues" in run(*admin, "check", *environment, cwd=tmp_path)
    run(*admin, "migrate", "-v0", *environment, cwd=tmp_path)
    code = "from django_distlock import advisory_lock\nwith advisory_lock('x') as lease: print('held', lease.fence > 0)"
    assert "held True" in run(*admin, "shell", "-c", code, *environment, cwd=tmp_path)
