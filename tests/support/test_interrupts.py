"""tests/support/interrupts.py interrupts where the running Python would: no place is left out, and none is made up."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support import interrupts_probe as probe
from tests.support.interrupts import Interrupter, interrupted_everywhere
from tests.support.nursery import ROOT

PATIENCE = 20.0  # seconds


def test_places_are_those_of_the_running_python() -> None:
    interrupter = Interrupter(sys.maxsize, probe)
    interrupter.run(probe.everything)
    known = {(name, line) for name, line in interrupter.met if line is not None and name != "everything"}
    expected = {place for place in known if place[0] != "sometimes"}
    out = subprocess.run(
        [sys.executable, "-m", "tests.support.interrupts_probe", str(PATIENCE)],
        input=json.dumps(sorted(expected)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=2 * PATIENCE,
    ).stdout
    seen = {(name, line) for name, line in json.loads(out) if name in {name for name, _ in known}}
    assert len(expected) > 25
    assert seen - known == set(), "a test would not interrupt there"
    assert expected - seen == set(), "a test would interrupt where Python does not"


def test_each_place_is_interrupted_once() -> None:
    got: list[str] = []

    def act() -> None:
        try:
            probe.calls(probe.THING)
        except KeyboardInterrupt as interrupt:
            got.append(str(interrupt))
            raise

    assert interrupted_everywhere(act, lambda: None, probe) == len(got) > 6
    assert {text.partition(",")[0] for text in got} == {"calls", "given", "Thing.method"}


def test_what_is_watched_lives_no_longer() -> None:
    """A generator that is left behind by an interrupt is closed at once, as it would be without a watcher."""
    closed: list[bool] = []

    def flow() -> object:
        try:
            yield
        finally:
            closed.append(True)

    def act() -> None:
        started = flow()
        next(started)
        probe.given(1)

    def clean() -> None:
        assert closed.pop()
        assert not closed

    assert interrupted_everywhere(act, clean, probe) == 1
