"""Several test processes at once (pytest-xdist), each with servers and databases of its own.

A test may stop a server, count its sessions or measure a wait: another test process on the same servers would be seen.
Loaded with ``-p tests.support.workers``, because the settings ask which servers there are before any conftest is read.
"""

from __future__ import annotations

import fcntl
import gc
import os
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.support import services
from tests.support.services.files import state_path

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ...; empty without xdist
# Most of a run is waiting, not computing: two processors are enough for four.
WORKERS = 4
COUNT = "PYTEST_XDIST_WORKER_COUNT"  # in the environment of each

# The first one takes the servers that are there.
_own = WORKER not in ("", "gw0")
_alone = state_path().with_suffix(".alone")

if _own:
    os.environ["DISTLOCK_SERVICES"] = str(state_path().parent / WORKER / "state.json")
    os.environ["DISTLOCK_TEST_SUFFIX"] = f"{os.environ.get('DISTLOCK_TEST_SUFFIX', '')}_{WORKER}"
    services.up(keep=False)


@pytest.hookimpl(tryfirst=True)  # before the one that counts processors
def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: one where the servers are somebody else's and there is only one of each."""
    return 1 if services.is_external() else WORKERS


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that must be alone come first: the first process gets them all, and the others have no part in them.

    Those that take many seconds come in the middle of what the others get, so that none is left for the end, and those
    that share something dear side by side: no process makes it again, or waits until another one has made it.
    """
    items.sort(key=lambda item: item.get_closest_marker("alone") is None)
    together: dict[str, list[pytest.Item]] = {}
    for item in items:
        if (group := group_of(item)) is not None:
            together.setdefault(group, []).append(item)
    items[:] = spread(items, [together[group] for group in sorted(together)], int(os.environ.get(COUNT, "1")))


def group_of(item: pytest.Item) -> str | None:
    """What it shares: the replays of one engine, or what its module sets up."""
    if item.get_closest_marker("alone") is not None:
        return None
    if "replayed" in getattr(item, "fixturenames", ()):
        callspec = getattr(item, "callspec", None)
        return "sqlite" if callspec is None else str(callspec.params.get("engine", "sqlite"))
    return None if item.get_closest_marker("long") is None else str(item.path)


def spread(items: list[T], groups: list[list[T]], workers: int) -> list[T]:
    """The items with each of the groups together, in the middle of what a worker but the first begins with: xdist deals
    out the items in order, one piece for each, and who has none left takes from the end of another's piece."""
    if workers < 2:
        return items
    taken = {id(item) for group in groups for item in group}
    order = [item for item in items if id(item) not in taken]
    piece = len(items) // workers
    for number in range(1, workers):
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


def pytest_unconfigure() -> None:
    if _own:
        services.down()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test marked ``alone`` has the machine to itself, as far as the other ones that are marked so go: those that
    need all processors, and those that measure times of milliseconds."""
    if item.get_closest_marker("alone") is None:
        return (yield)
    with _alone.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)
