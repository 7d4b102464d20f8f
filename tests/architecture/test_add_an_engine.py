"""CONTRIBUTING's "Add an engine", followed step by step: its code becomes a package, and the contract's tests run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.tier2

# A part of it, for time; without the tests in which an operator breaks a lock, or sees who waits at the engine, which
# this one does not offer.
CONTRACT = "cancellation errors names sets walk"
CHOSEN = "toy and not event_loop_ends"


def section(title: str) -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def package(folder: Path) -> None:
    """Each Python block of the section is a file; its first line is a comment with the file's name."""
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", section("Add an engine"), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in blocks] == ["backends/files/__init__.py", "backends/files/backend.py"]
    folder.mkdir()
    for name, code in blocks:
        (folder / name.rpartition("/")[2]).write_text(code)


def test_the_engine_of_the_guide_passes_the_contract(tmp_path: Path) -> None:
    package(tmp_path / "toyengine")
    locks = tmp_path / "locks"
    locks.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "DISTLOCK_TOY_DIRECTORY": str(locks),
        "DISTLOCK_TEST_SUFFIX": "_toy" + os.environ.get("DISTLOCK_TEST_SUFFIX", ""),
    }
    files = [f"tests/contract/test_{name}.py" for name in CONTRACT.split()]
    command = [sys.executable, "-m", "pytest", "-q", "--ds", "tests.support.toy_engine", "-k", CHOSEN, *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 15


def test_what_the_guide_names_is_there() -> None:
    """Every path in the section, but for those of the new engine."""
    names = re.findall(r"`((?:django_distlock|tests|docs)/[\w./]+)`", section("Add an engine"))
    assert names
    assert not [name for name in names if not (ROOT / name).exists()]
