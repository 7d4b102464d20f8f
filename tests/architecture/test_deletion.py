"""Features can be deleted: what is left does not know of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.tier2

PROGRAM = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_distlock"], DATABASES={
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
from django.core.management import call_command
call_command("check")
call_command("migrate", verbosity=0)
from django_distlock import advisory_lock
with advisory_lock("a"):
    print("held")
"""


@pytest.mark.parametrize("feature", ["idempotency", "editing", "browser"])
def test_the_rest_works_without_the_package(tmp_path: Path, feature: str) -> None:
    package = tmp_path / "django_distlock"
    shutil.copytree(ROOT / "django_distlock", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(package / feature)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout.split()[-1:]) == (0, ["held"]), ran.stderr
