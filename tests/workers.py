"""Several test processes at once (pytest-xdist), each with servers and databases of its own.

A test may stop a server, count its sessions or measure a wait: another test process on the same servers would be seen.
Loaded with ``-p tests.workers``, because the settings ask which servers there are before any conftest is read.
"""

from __future__ import annotations

import fcntl
import gc
import os
from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.services_files import state_path

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ...; empty without xdist
# Most of a run is waiting, not computing: two processors are enough for three.
WORKERS = 3

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
    """Those that must be alone come first: the first process gets them all, and the others have no part in them."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is None)


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
