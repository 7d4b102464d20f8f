"""Several test processes at once (pytest-xdist), each with servers and databases of its own.

A test may stop a server, count its sessions or measure a wait: another test process on the same servers would be seen.
Loaded with ``-p tests.workers``, because the settings ask which servers there are before any conftest is read.
"""

from __future__ import annotations

import os

import pytest

from tests import services
from tests.services_files import state_path

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, ...; empty without xdist
# Most of a run is waiting, not computing: two processors are enough for three.
WORKERS = 3

# The first one takes the servers that are there.
_own = WORKER not in ("", "gw0")

if _own:
    os.environ["DISTLOCK_SERVICES"] = str(state_path().parent / WORKER / "state.json")
    os.environ["DISTLOCK_TEST_SUFFIX"] = f"{os.environ.get('DISTLOCK_TEST_SUFFIX', '')}_{WORKER}"
    services.up(keep=False)


def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: one where the servers are somebody else's and there is only one of each."""
    return 1 if services.is_external() else WORKERS


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process gets the tests that must be alone; the others share the rest, test by test (``--dist loadgroup``)."""
    for item in items:
        if item.get_closest_marker("alone") is not None:
            item.add_marker(pytest.mark.xdist_group("alone"))


def pytest_unconfigure() -> None:
    if _own:
        services.down()
