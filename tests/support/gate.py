"""Runs the suite and judges it: ``make test``.

Most tests share the machine, in several processes. Those marked ``alone`` follow in one process, with nothing beside
them. In the first tier a failure is a failure. In the second one what has failed runs once more by itself: a test that
fails again is a failure, one that passes is reported as flaky, with its first traceback. More than MOST_FLAKY fail the
run; with more than MOST_FAILURES nothing runs again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support import outcomes
from tests.support.outcomes import Outcomes
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MOST_FAILURES, MOST_FLAKY = 8, 5
FOLDER = ROOT / "build" / "gate"
REPORT = FOLDER / "report.txt"
PLUGINS = ("-p", "tests.support.workers", "-p", "tests.support.outcomes")
TIERS = {"1": "not chaos and not tier2", "2": "not chaos and tier2", "all": "not chaos"}
PROCESSES = ("-n", "auto", "--dist", "loadfile")
# Exit codes of pytest.
OK, TESTS_FAILED, NO_TESTS = 0, 1, 5


@dataclass
class Gate:
    """``arguments`` go to each pytest; ``marks`` chooses the tests, as pytest's ``-m`` does; ``processes``: xdist's
    options, none for one process. ``again``: what has failed runs once more. ``measured``: what stands before pytest.

    ``root`` is the folder of pytest's configuration: the names of tests are relative to it.
    """

    arguments: Sequence[str]
    marks: str
    processes: Sequence[str]
    again: bool = True
    measured: Sequence[str] = ()
    root: Path = ROOT
    first: Outcomes = field(default_factory=Outcomes)  # of the first run of each test
    second: Outcomes = field(default_factory=Outcomes)  # of those that ran again
    broken: list[str] = field(default_factory=list)  # runs of pytest that came to no verdict
    child: subprocess.Popen[bytes] | None = None

    def signalled(self, number: int, _frame: object) -> None:
        """Have pytest end, whose processes stop their servers: for that it wants Ctrl-C, which the terminal sends to it
        as well."""
        self.broken.append(f"ended by signal {number}")
        if number != signal.SIGINT and self.child is not None:
            self.child.send_signal(signal.SIGINT)

    def run(self) -> int:
        """Run everything; print the report, which ends with the numbers. The exit status."""
        marks = f"({self.marks}) and " if self.marks else ""
        self._pytest("together", [*self.processes, *self.arguments, "-m", f"{marks}not alone"], self.first)
        if not self.broken:
            self._pytest("alone", [*self.arguments, "-m", f"{marks}alone"], self.first)
        failed = sorted(self.first.having("failed"))
        if not self.broken and self.again and 0 < len(failed) <= MOST_FAILURES:
            again = FOLDER / "again.txt"
            again.write_text("".join(f"{test}\n" for test in failed))
            self._pytest("again", ["-p", "no:randomly", "-m", self.marks, f"@{again}"], self.second)
        text = self.report().encode(errors="backslashreplace").decode()
        REPORT.write_text(text)
        print(text, end="", flush=True)
        return int(bool(self.red or not (self.first.having("passed") or self.second.having("passed"))))

    def _pytest(self, step: str, arguments: Sequence[str], found: Outcomes) -> None:
        print(f"\n=== {step}", flush=True)
        file = FOLDER / f"{step}.json"
        file.unlink(missing_ok=True)
        command = [sys.executable, *self.measured, "-m", "pytest", *PLUGINS, *arguments]
        environment = {**os.environ, outcomes.FILE: str(file)}
        with subprocess.Popen(command, cwd=self.root, env=environment) as self.child:
            code = self.child.wait()
        self.child = None
        if code not in (OK, TESTS_FAILED, NO_TESTS) or not file.exists():
            self.broken.append(f"{step}: pytest ended with exit status {code}")
        if not file.exists():
            return
        seen = Outcomes(**json.loads(file.read_text()))
        if code == TESTS_FAILED and not seen.having("failed"):
            self.broken.append(f"{step}: pytest failed, and no test did")
        missing = seen.collected - len(seen.tests)
        if not self.broken and (missing or (seen.broken and not seen.collected)):
            self.broken.append(f"{step}: {missing} tests have no outcome. {'; '.join(seen.broken)}")
        found.tests |= seen.tests

    @property
    def flaky(self) -> list[str]:
        """Tests that failed, and passed when they ran once more by themselves."""
        return sorted(self.first.having("failed").keys() & self.second.having("passed"))

    @property
    def failed(self) -> list[str]:
        return sorted(self.first.having("failed").keys() - set(self.flaky))

    @property
    def red(self) -> list[str]:
        """What makes the run fail: tests, and what else."""
        too_many = [f"{len(self.flaky)} tests are flaky, and {MOST_FLAKY} may be"] * (len(self.flaky) > MOST_FLAKY)
        return [*self.failed, *self.broken, *too_many]

    def report(self) -> str:
        """What to read, and last of all the numbers."""
        failed, quarantined = self.first.having("failed"), Outcomes(self.first.tests | self.second.tests)
        named = [("FLAKY", test, failed[test]) for test in self.flaky]
        named += [("QUARANTINED", test, text) for test, text in sorted(quarantined.having("quarantined").items())]
        lines = []
        for title, test, text in named:
            lines += ["", f"{title} {test}", *(f"    {line}" for line in text.splitlines())]
        lines += ["", *(f"{title} {test}" for title, test, _ in named), *(f"FAILED {test}" for test in self.failed)]
        lines += self.red[len(self.failed) :]
        passed, skipped = (len(self.first.having(outcome)) for outcome in ("passed", "skipped"))
        skipped += len(named) - len(self.flaky)
        lines.append(f"{passed + len(self.flaky)} passed, {len(self.red)} failed, {skipped} skipped")
        return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        usage="python -m tests.support.gate [options] [options of pytest]", allow_abbrev=False
    )
    parser.add_argument("--tier", choices=TIERS, default="1")
    parser.add_argument("-m", dest="marks", help="as pytest has it, in place of a tier")
    parser.add_argument("--one-process", action="store_true", help="without xdist")
    parser.add_argument("--again", action="store_true", help="run once more what has failed, in the first tier too")
    parser.add_argument("--coverage", action="store_true", help="measure what is run")
    options, arguments = parser.parse_known_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    marks, processes = options.marks or TIERS[options.tier], () if options.one_process else PROCESSES
    measured = ("-m", "coverage", "run") if options.coverage else ()
    gate = Gate(arguments, marks, processes, again=options.again or options.tier != "1", measured=measured)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, gate.signalled)
    return gate.run()


if __name__ == "__main__":
    sys.exit(main())
