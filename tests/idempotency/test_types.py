"""``request.idempotency`` is known to type checkers: the documentation's example under mypy --strict."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import blocks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.tier2

# A configuration of its own: that of the project has a plugin.
MYPY = [sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini", "--cache-dir", "cache"]
WRONG = "\nrequest_of_mine = IdempotentRequest()\nrequest_of_mine.idempotency.derve('mail')\n"


def test_the_example_has_types(tmp_path: Path) -> None:
    (example,) = (block.code for block in blocks("docs/idempotency/overview.md") if "IdempotentRequest" in block.code)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    (tmp_path / "right.py").write_text(example)
    (tmp_path / "wrong.py").write_text(example + WRONG)
    done = subprocess.run([*MYPY, "right.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert "wrong.py" in errors[0]
    assert "derve" in errors[0]
