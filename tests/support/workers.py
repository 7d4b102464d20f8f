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
from typing import TYPE_CHECKING, TypeVar

import psutil
import pytest

from tests.support import services
from tests.support.services.files import state_path

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

T = TypeVar("T")

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ...; empty without xdist
# Most of a run is waiting, not computing: two processors are enough for four. Beside the second tier's browsers, web
# servers and kill storms they are not: replies came later than the milliseconds that the tests allow them.
WORKERS, WORKERS_OF_BOTH_TIERS = 4, 3
COUNT = "PYTEST_XDIST_WORKER_COUNT"  # in the environment of each

# So many processes begin with the tests in browsers, which are many programs each; the others take some at the end.
BROWSERS = 2
WITH_BROWSERS = {"people", "browsers"}  # the parameters of such tests

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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that take many seconds come in the middle of what each process but the first gets, so that none is left for
    the end, and those that share something dear side by side: no process makes it again, or waits until another one has
    made it. Those in browsers are the first that the last two processes get.
    """
    together: dict[str, list[pytest.Item]] = {}
    browsers: dict[str, list[pytest.Item]] = {}
    for item in items:
        if WITH_BROWSERS & parameters(item).keys():
            browsers.setdefault(str(item.path.parent), []).append(item)
        elif (group := group_of(item)) is not None:
            together.setdefault(group, []).append(item)
    workers = int(os.environ.get(COUNT, "1"))
    groups = [together[group] for group in sorted(together)]
    items[:] = spread(items, groups, workers, first=halves(list(browsers.values())))


def group_of(item: pytest.Item) -> str | None:
    """What it shares: the replays of one engine, or what its module sets up."""
    if "replayed" in getattr(item, "fixturenames", ()):
        return str(parameters(item).get("engine", "sqlite"))
    return None if item.get_closest_marker("long") is None else str(item.path)


def parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def halves(packages: list[list[T]]) -> list[list[T]]:
    """Each package's tests with a browser in as many parts as may run at a time."""
    parts: list[list[T]] = [[] for _ in range(BROWSERS)]
    for tests in packages:
        for number, part in enumerate(parts):
            part += tests[len(tests) * number // BROWSERS : len(tests) * (number + 1) // BROWSERS]
    return parts


def spread(items: list[T], groups: list[list[T]], workers: int, first: Sequence[list[T]] = ()) -> list[T]:
    """The items with each of the groups together, in the middle of what a worker but the first begins with, and
    ``first`` at the beginnings of the last workers' pieces, one for each.

    xdist deals out the items in order, one piece for each worker, and who has none left takes from the end of another's
    piece.
    """
    if workers < 2 or workers <= len(first):
        return items
    taken = {id(item) for group in (*groups, *first) for item in group}
    order = [item for item in items if id(item) not in taken]
    piece = len(items) // workers
    for number in range(1, workers):
        begin = number * piece
        if number >= workers - len(first):
            order[begin:begin] = first[number - workers]
        share = [item for group in groups[number - 1 :: workers - 1] for item in group]
        middle = max(0, number * piece + piece // 2 - len(share) // 2)
        order[middle:middle] = share
    return order


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
