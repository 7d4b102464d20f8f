"""The script without a browser: its state machine, its size, and that it needs nothing that a strict policy forbids."""

from __future__ import annotations

import gzip
import re
import subprocess

from tests.support.paths import PACKAGE, ROOT

SCRIPT = PACKAGE / "static" / "django_distlock" / "editing.js"
BUDGET = 12 * 1024  # bytes


def test_the_state_machine() -> None:
    command = ["node", "--test", "tests/editing/browser/editing.test.mjs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"^# pass (\d+)", done.stdout, re.MULTILINE)[0]) >= 17


def test_the_script_is_small_and_makes_no_markup_and_no_code_out_of_text() -> None:
    assert len(gzip.compress(SCRIPT.read_bytes(), 9)) < BUDGET
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\.style\b|style="
    assert not re.findall(forbidden, SCRIPT.read_text())
