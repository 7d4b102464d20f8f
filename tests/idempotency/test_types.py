"""``request.idempotency`` is known to type checkers: the documentation's example under mypy --strict and pyright."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks

pytestmark = pytest.mark.tier2

# The Makefile has this version of pyright from npm.
VERSION = "1.1.414"
PYRIGHT = Path(sys.prefix) / "pyright" / "node_modules" / "pyright" / "index.js"
CHECKERS = {
    # a separate configuration: that of the project has a plugin
    "mypy": [sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini", "--cache-dir", "cache"],
    "pyright": ["node", str(PYRIGHT), "--pythonpath", sys.executable],
}
WRONG = "\nrequest_of_mine = IdempotentRequest()\nrequest_of_mine.idempotency.derve('mail')\n"


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_example_has_types(checker: str, tmp_path: Path) -> None:
    (example,) = (block.code for block in blocks("docs/idempotency/overview.md") if "IdempotentRequest" in block.code)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    (tmp_path / "right.py").write_text(example)
    (tmp_path / "wrong.py").write_text(example + WRONG)
    done = subprocess.run(
        [*CHECKERS[checker], "right.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    errors = [line for line in done.stdout.splitlines() if " error: " in line or " - error" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert "wrong.py" in errors[0]
    assert "derve" in errors[0]
