"""The second tier's judge: what fails once is flaky, what fails twice is a failure; a run without a verdict is red."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import gate
from tests.support.gate import MOST_FLAKY, Gate
from tests.support.outcomes import quarantine
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.tier2

TESTS = """
import pathlib
import pytest

def test_good(): pass

@pytest.mark.alone
@pytest.mark.parametrize("number", range({flaky}))
def test_flaky(number):
    done = pathlib.Path(__file__).with_suffix(f".{{number}}")
    first = not done.exists()
    done.touch()
    assert not first, "the first time"

@pytest.fixture
def broken():
    yield
    raise OSError("a teardown")
"""
BAD = """
def test_bad(): raise RuntimeError("each time")
def test_teardown(broken): pass
"""


def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: str, *, again: bool = True) -> tuple[int, list[str]]:
    """Exit status and report of the gate for a file of tests."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(gate, "FOLDER", tmp_path)
    monkeypatch.setattr(gate, "REPORT", tmp_path / "report.txt")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n alone\n")
    (tmp_path / "test_some.py").write_text(tests)
    status = Gate((), "", (), again=again, root=tmp_path).run()
    return status, (tmp_path / "report.txt").read_text().splitlines()


def test_a_flaky_test_is_read_and_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, report = judged(tmp_path, monkeypatch, TESTS.format(flaky=1))
    assert status == 0
    assert any("AssertionError: the first time" in line for line in report)
    assert report[-2].startswith("FLAKY ")
    assert report[-1] == "2 passed, 0 failed, 0 skipped"


def test_many_flaky_tests_are_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, report = judged(tmp_path, monkeypatch, TESTS.format(flaky=MOST_FLAKY + 1))
    assert status == 1
    assert " 0 failed" not in report[-1]


def test_what_fails_again_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, report = judged(tmp_path, monkeypatch, TESTS.format(flaky=1) + BAD)
    assert status == 1
    assert [line.rpartition("::")[2] for line in report if line.startswith("FAILED")] == ["test_bad", "test_teardown"]
    assert report[-1] == "2 passed, 2 failed, 0 skipped"


def test_in_the_first_tier_nothing_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, report = judged(tmp_path, monkeypatch, TESTS.format(flaky=1), again=False)
    assert status == 1
    assert report[-1] == "1 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize("tests", ["", "1 / 0"], ids=["no test", "a file that cannot be read"])
def test_a_run_without_a_verdict_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: str) -> None:
    assert judged(tmp_path, monkeypatch, tests)[0] == 1


def test_quarantine_wants_date_and_reason() -> None:
    assert quarantine("# why\n\n2026-11-25 | tests/a.py::test_b[x y] | no idea\n") == {
        "tests/a.py::test_b[x y]": "no idea"
    }
    with pytest.raises(ValueError, match="not of the form"):
        quarantine("2026-11-25 | tests/a.py::test_b | ")
