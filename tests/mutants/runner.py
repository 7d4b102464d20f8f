"""Puts one fault after the other into a copy of the tree, and runs the tests that should notice it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.paths import ROOT
from tests.support.services.files import state_path

from .mutant import WrongMutant
from .witness import FILE, TOO_SLOW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .mutant import Mutant

# A test that hangs because of the fault has noticed it, and fails after TEST_LIMIT. The whole run has no longer than
# LONGEST, and ENDING once a test has failed: a fault may keep the process from ending. Seconds.
TEST_LIMIT, LONGEST, ENDING = 40, 300, 30
# pytest's exit status if tests have failed, and if all have passed.
FAILED, PASSED = 1, 0
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "tests.mutants.witness")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``caught_by``: the test that noticed the fault; empty if none did, and then ``trouble`` says why."""

    mutant: Mutant
    caught_by: str
    seconds: float
    trouble: str = ""


class Copy:
    """A copy of the tree, as it is on the disk now, with at most one fault in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stamp = time.time()
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        for name in filter(None, names):
            if (ROOT / name).is_file():  # git also lists what was deleted
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        """The fault is in the copy inside the block. WrongMutant if its text is not found."""
        path = self.root / mutant.path
        before = path.read_text()
        self._write(path, mutant.applied_to(before))
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Python compares the time of a source, in seconds, to know whether what it has compiled is out of date."""
        path.write_text(text)
        self._stamp += 2
        os.utime(path, (self._stamp, self._stamp))

    def pytest(self, arguments: Sequence[str], limit: float) -> tuple[int | None, list[dict[str, str]], str]:
        """Its exit status (None: no end in time), the failures, and the end of its output."""
        witness = self.root / ".witness.json"
        witness.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),  # before the installed package, also in processes that tests start
            "DISTLOCK_SERVICES": str(state_path()),
            "DISTLOCK_TEST_SUFFIX": f"{os.environ.get('DISTLOCK_TEST_SUFFIX', '')}_mutants",
            FILE: str(witness),
        }
        with (self.root / ".output").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *OPTIONS, "--timeout", str(TEST_LIMIT), *arguments],
                cwd=self.root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = _wait(process, limit, witness if limit == LONGEST else None)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            text = output.read()
        lines = witness.read_text().splitlines() if witness.exists() else []
        return status, [json.loads(line) for line in lines], text[-3000:]


def _wait(process: subprocess.Popen[bytes], limit: float, witness: Path | None) -> int | None:
    """The exit status; None if there is no end within ``limit`` seconds, or ENDING seconds after ``witness`` exists."""
    end = time.monotonic() + limit
    failed = False
    while time.monotonic() < end:
        try:
            return process.wait(0.1)
        except subprocess.TimeoutExpired:
            if not failed and witness is not None and witness.exists():
                failed, end = True, min(end, time.monotonic() + ENDING)
    return None


def try_one(copy: Copy, mutant: Mutant) -> Outcome:
    began = time.monotonic()

    def outcome(caught_by: str = "", trouble: str = "") -> Outcome:
        return Outcome(mutant, caught_by, time.monotonic() - began, trouble)

    arguments = [*mutant.tests, *(("-k", mutant.only) if mutant.only else ())]
    try:
        with copy.with_fault(mutant):
            status, failures, text = copy.pytest(arguments, LONGEST)
    except WrongMutant as error:
        return outcome(trouble=str(error))
    first = failures[0] if failures else {}
    noticed = ("call", "teardown", *((TOO_SLOW,) if mutant.timed else ()))
    if status in (FAILED, None) and first.get("when") in noticed:
        return outcome(first["test"])
    if status == PASSED:
        return outcome(trouble="SURVIVED: no test has noticed it")
    if status is None:
        return outcome(trouble=f"no end within {LONGEST} s\n{text}")
    return outcome(trouble=f"the tests did not run ({first.get('when', 'status')} {status})\n{text}")


def fail_anyway(copy: Copy, tests: Sequence[str]) -> set[str]:
    """Those of ``tests`` that fail on the copy without a fault: they have noticed nothing.

    They have two attempts, because the machine may be busy with others.
    """
    left = sorted(set(tests))
    for _ in range(2):
        if left:
            _, failures, _ = copy.pytest([*left, "--maxfail", "1000"], 10 * LONGEST)
            left = sorted({failure["test"] for failure in failures})
    return set(left)


def run(mutants: Sequence[Mutant], show: Callable[[Outcome], object]) -> list[Outcome]:
    """The outcome of each; ``show`` gets them as they come, before it is known which of the tests fail anyway."""
    with TemporaryDirectory(prefix="distlock-mutants-") as folder:
        copy = Copy(Path(folder))
        outcomes = []
        for mutant in mutants:
            outcomes.append(try_one(copy, mutant))
            show(outcomes[-1])
        wrong = fail_anyway(copy, [outcome.caught_by for outcome in outcomes if outcome.caught_by])
        return [
            replace(outcome, caught_by="", trouble=f"{outcome.caught_by} fails without the fault as well")
            if outcome.caught_by in wrong
            else outcome
            for outcome in outcomes
        ]
