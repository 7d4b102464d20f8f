"""The gate: what fails once is flaky, what fails twice is a failure, and what is in quarantine fails nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support import gate
from tests.support.gate import FIRST_TIER, MOST_FAILURES, Gate
from tests.support.outcomes import QUARANTINE, quarantine
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TESTS = """
import pathlib
import pytest

def test_good(): pass

@pytest.mark.alone
def test_flaky():
    done = pathlib.Path(__file__).with_suffix(".done")
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


def judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: str, *arguments: str, first: str = ""
) -> tuple[int, list[str]]:
    """Exit status and report of the gate for a file of tests. ``first``: options before those of the gate."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "DJANGO_SETTINGS_MODULE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", first)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(gate, "FOLDER", tmp_path)
    monkeypatch.setattr(gate, "REPORT", tmp_path / "report.txt")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n alone\n tier2\n chaos\n")
    (tmp_path / "test_some.py").write_text(tests)
    status = Gate(arguments, FIRST_TIER, (), tmp_path).run()
    return status, (tmp_path / "report.txt").read_text().splitlines()


def test_a_flaky_test_is_read_and_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, report = judged(tmp_path, monkeypatch, TESTS)
    assert status == 0
    assert any("AssertionError: the first time" in line for line in report)
    assert report[-2].startswith("FLAKY ")
    assert report[-2].endswith("test_some.py::test_flaky")
    assert report[-1] == "2 passed, 0 failed, 0 skipped"


def test_what_fails_again_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, report = judged(tmp_path, monkeypatch, TESTS + BAD)
    assert status == 1
    assert [line.rpartition("::")[2] for line in report if line.startswith("FAILED")] == ["test_bad", "test_teardown"]
    assert report[-1] == "2 passed, 2 failed, 0 skipped"


def test_many_failures_do_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = f"import pytest\n@pytest.mark.parametrize('number', range({MOST_FAILURES}))\n"
    status, report = judged(tmp_path, monkeypatch, TESTS + many + "def test_many(number): assert False")
    assert status == 1
    assert report[-1] == f"1 passed, {MOST_FAILURES + 1} failed, 0 skipped"


def test_a_file_that_cannot_be_read_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, report = judged(tmp_path, monkeypatch, "1 / 0")
    assert status == 1
    assert " 0 failed" not in report[-1]


def test_no_test_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(tmp_path, monkeypatch, "") == (1, ["", "0 passed, 0 failed, 0 skipped"])


def test_processes_that_cannot_start_are_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """xdist starts others, gives up, runs nothing and says so with exit status 0."""
    dies = "import os\nif os.environ.get('PYTEST_XDIST_WORKER', 'gw0') != 'gw0': os._exit(3)"
    (tmp_path / "dying.py").write_text(dies)
    # before the plugin that starts servers for each process, which would stay
    status, report = judged(tmp_path, monkeypatch, TESTS, "-n", "2", first="-p dying")
    assert status == 1
    assert " 0 failed" not in report[-1]


def test_a_signal_ends_pytest_in_order(tmp_path: Path) -> None:
    """Its processes stop their servers only then."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n alone\n tier2\n chaos\n")
    (tmp_path / "test_some.py").write_text(
        "import pathlib, time, pytest\n"
        "@pytest.fixture\n"
        "def server():\n    yield\n    pathlib.Path(__file__).with_name('stopped').touch()\n"
        "def test_long(server):\n    print('begun', flush=True)\n    time.sleep(60)\n"
    )
    code = (
        "import pathlib, sys; from tests.support import gate; gate.FOLDER = pathlib.Path(sys.argv.pop(1)); "
        "gate.REPORT = gate.FOLDER / 'report.txt'; sys.exit(gate.main())"
    )
    options = ("--one-process", "-s", "-c", tmp_path / "pytest.ini", tmp_path / "test_some.py")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path, *options], cwd=ROOT, env=kept, stdout=subprocess.PIPE, text=True
    ) as gated:
        assert gated.stdout is not None
        while "begun" not in gated.stdout.readline():
            pass
        gated.terminate()
        gated.stdout.read()
        assert gated.wait(30) == 1
    assert (tmp_path / "stopped").exists()
    assert "ended by signal 15" in (tmp_path / "report.txt").read_text()


def test_quarantine() -> None:
    assert quarantine("# a comment\n\n2026-11-25 | tests/a.py::test_b[x y] | no idea\n") == {
        "tests/a.py::test_b[x y]": "no idea"
    }
    assert len(quarantine(QUARANTINE.read_text())) <= 10


@pytest.mark.parametrize(
    "text",
    [
        "tests/a.py::test_b",
        "2026-11-25 | tests/a.py::test_b | ",
        "".join(f"2026-11-25 | tests/a.py::test_{n} | why\n" for n in range(11)),
    ],
    ids=["bare", "without a reason", "eleven"],
)
def test_a_quarantine_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form|11 tests are in quarantine"):
        quarantine(text)
