"""What tests/support/timing.py promises of a test that was too slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.timing import TooSlow, within

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]

SCENES = """
import itertools
from django_distlock import BackendUnavailable
from tests.support.timing import within

runs, answers = itertools.count(1), itertools.count(1)

def test_slow_twice():
    within(0.2 / next(runs), 0.1)

def test_slow_of_its_own():
    within(0.2, 0.1)

def test_wrong():
    assert 0.2 < 0.1

def test_a_server_without_a_processor():
    if next(answers) < 2:
        raise BackendUnavailable("The Redis server of alias 'redis': Redis did not answer in time.")

def test_a_server_that_refuses():
    raise BackendUnavailable("The Redis server of alias 'redis': connection refused")
"""


def test_what_it_refuses() -> None:
    within(0.1, 0.1, least=0.1)
    with pytest.raises(TooSlow, match=r"^p99 took 0\.1001 s, and may take 0\.1 s$"):
        within(0.1001, 0.1, what="p99")
    with pytest.raises(AssertionError, match=r"less than 0\.1 s$") as caught:
        within(0.0999, 0.2, least=0.1)
    assert caught.type is AssertionError, "too early is no matter of the machine"


def test_only_what_was_slow_is_measured_again(pytester: pytest.Pytester, pytestconfig: pytest.Config) -> None:
    """With the options of our own configuration, in a process of its own."""
    path: Path = pytester.makepyfile(SCENES)
    options = [str(part) for part in pytestconfig.getini("addopts")]
    reruns = options[options.index("--reruns") :]
    reruns[reruns.index("--reruns-delay") + 1] = "0"
    pytester.syspathinsert(pytestconfig.rootpath)
    plain = ["-p", "no:django", "-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider"]
    result = pytester.runpytest_subprocess(*plain, *reruns, path)
    assert result.parseoutcomes() == {"passed": 2, "failed": 3, "rerun": 1 + 3 + 1}
