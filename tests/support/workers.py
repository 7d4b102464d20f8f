"""Several test processes at once (pytest-xdist), each with servers and databases of its own.

A test may stop a server, count its sessions or measure a wait: another test process on the same servers would be seen.
Loaded with ``-p tests.support.workers``, because the settings ask which servers there are before any conftest is read.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support import services
from tests.support.services.files import state_path

if TYPE_CHECKING:
    from collections.abc import Generator

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ...; empty without xdist
# Most of a run is waiting, not computing: two processors are enough for four. Beside the second tier's browsers, web
# servers and kill storms they are not: replies came later than the milliseconds that the tests allow them.
WORKERS, WORKERS_OF_BOTH_TIERS = 4, 3

# The files of these folders go to one process: they share six browsers, each of which takes seconds to start.
AS_ONE = ("tests/browserlocks/pages/",)

# Linux shares the processors out by session first (sched_autogroup), and each server and each browser has one of its
# own: four test processes in one session had all together what one browser has, and timed out in tests of milliseconds.
if WORKER:
    with suppress(PermissionError):  # it leads one
        os.setsid()

# The first one takes the servers that are there.
_own = WORKER not in ("", "gw0")

if _own:
    os.environ["DISTLOCK_SERVICES"] = str(state_path().parent / WORKER / "state.json")
    os.environ["DISTLOCK_TEST_SUFFIX"] = f"{os.environ.get('DISTLOCK_TEST_SUFFIX', '')}_{WORKER}"
    services.up(keep=False)


@pytest.hookimpl(tryfirst=True)  # before the one that counts processors
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``: one where the servers are somebody else's and there is only one of each."""
    if services.is_external():
        return 1
    return WORKERS if "not tier2" in config.option.markexpr else WORKERS_OF_BOTH_TIERS


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # has no types
    """A file, or a folder that is one of AS_ONE, goes to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in AS_ONE if nodeid.startswith(folder)), super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Next to nothing of what it makes is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay until the end: not to be looked at again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Under ``make coverage`` it writes what it has seen: xdist kills a process that does not end within seconds."""
    if "coverage" in sys.modules:
        measured = sys.modules["coverage"].Coverage.current()
        if measured is not None:
            measured.save()


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt() -> None:
    """The terminal's Ctrl-C comes to the session of this process only."""
    if not WORKER:
        for child in psutil.Process().children():
            with suppress(OSError, psutil.NoSuchProcess):
                if os.getsid(child.pid) == child.pid:
                    child.send_signal(signal.SIGINT)


def pytest_unconfigure() -> None:
    if _own:
        services.down()
