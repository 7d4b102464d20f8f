"""A plugin of pytest that writes down the tests that failed, for the runner: ``-p tests.mutants.witness``.

An error of the set-up or of the collection is written down as what it is: it says that the fault broke the tests, and
not that a test has noticed it. So is a test that was only too slow.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

FILE = "DISTLOCK_WITNESS"  # in the environment: the path of the file
# The error of a test that the machine was too busy for, which has noticed nothing.
TOO_SLOW = "TooSlow"


def write(test: str, when: str, message: str) -> None:
    with Path(os.environ[FILE]).open("a") as file:
        file.write(json.dumps({"test": test, "when": when, "message": message}) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        message = _message(report)
        write(report.nodeid, TOO_SLOW if TOO_SLOW in message else report.when or "", message)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write(report.nodeid, "collect", report.longreprtext)


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longreprtext)
