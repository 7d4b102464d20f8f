"""The state machine of the script, without a browser."""

from __future__ import annotations

import re
import subprocess

from tests.support.paths import ROOT


def test_the_state_machine() -> None:
    command = ["node", "--test", "tests/editing/browser/editing.test.mjs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"^# pass (\d+)", done.stdout, re.MULTILINE)[0]) >= 17
