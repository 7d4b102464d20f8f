"""What became of each test, for the program that started pytest; and the tests that are in quarantine.

Loaded with ``-p tests.support.outcomes``.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# In the environment: the file that gets the outcomes.
FILE = "DISTLOCK_OUTCOMES"
QUARANTINE = Path(__file__).parents[1] / "quarantine.txt"
MOST_IN_QUARANTINE = 10
ENTRY = re.compile(r"\d{4}-\d\d-\d\d \| (?P<test>tests/\S+\.py::.+?) \| (?P<reason>.+)")


WORST_LAST = ("passed", "skipped", "quarantined", "failed")


@dataclass
class Outcomes:
    """The outcome of each test, and the traceback of one that has failed or is in quarantine."""

    tests: dict[str, tuple[str, str]] = field(default_factory=dict)
    collected: int = 0
    broken: list[str] = field(default_factory=list)  # processes of xdist that died

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """A test has three reports, and may fail in each; the first failure counts."""
        outcome: str = "quarantined" if hasattr(report, "in_quarantine") else report.outcome
        if outcome == "passed" and getattr(report, "when", "") != "call":
            return
        known, _ = self.tests.get(report.nodeid, (WORST_LAST[0], ""))
        if report.nodeid not in self.tests or WORST_LAST.index(outcome) > WORST_LAST.index(known):
            self.tests[report.nodeid] = outcome, report.longreprtext

    def having(self, outcome: str) -> dict[str, str]:
        """The tests with this outcome, and their tracebacks."""
        return {test: text for test, (found, text) in self.tests.items() if found == outcome}

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(self), indent=1))


def quarantine(text: str) -> dict[str, str]:
    """The tests of a quarantine file and their reasons. ValueError names a line that is not as it should be."""
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            if not (entry := ENTRY.fullmatch(line)):
                raise ValueError(f"not of the form «date | test | reason»: {line}")
            found[entry["test"]] = entry["reason"]
    if len(found) > MOST_IN_QUARANTINE:
        raise ValueError(f"{len(found)} tests are in quarantine, and {MOST_IN_QUARANTINE} may be")
    return found


_outcomes = Outcomes()
_reasons = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.stash[_reasons] = quarantine(QUARANTINE.read_text())
    except ValueError as error:
        raise pytest.UsageError(f"{QUARANTINE.name}: {error}") from error


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test in quarantine, or one case of it, fails nothing; pytest lists it under XFAIL with the reason."""
    report: Any = yield
    reasons = item.config.stash[_reasons]
    reason = reasons.get(item.nodeid) or reasons.get(item.nodeid.partition("[")[0])
    if reason and report.failed:
        report.outcome, report.wasxfail, report.in_quarantine = "skipped", f"in quarantine: {reason}", True
    return report  # type: ignore[no-any-return]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _outcomes.note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _outcomes.note(report)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    if error:
        _outcomes.broken.append(f"the process {node.gateway.id} died: {error}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: list[str]) -> None:
    _outcomes.collected = max(_outcomes.collected, len(ids))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get(FILE)
    if path and not hasattr(session.config, "workerinput"):  # the processes of xdist report to the first one
        _outcomes.collected = max(_outcomes.collected, session.testscollected)
        _outcomes.write(Path(path))
