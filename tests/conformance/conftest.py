"""The contract, run for every backend, with threads and with tasks."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.module_loading import import_string

from django_distlock.manager.registry import registry
from tests.conformance import watching
from tests.conformance.actors import Actor, Face
from tests.conformance.rivals import Neighbour, Rival, serve
from tests.conftest import connect
from tests.matrix import MATRIX, Entry
from tests.support.processes import Child
from tests.support.sizes import LONG
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent

# For rules that speak of several processes: every backend whose locks other processes see.
across_processes = pytest.mark.parametrize(
    "entry", [entry for entry in MATRIX if entry.processes], ids=lambda entry: entry.using, indirect=True
)

# For engines that have semaphores of their own.
SEMAPHORE = [entry for entry in MATRIX if import_string(entry.backend).supports_semaphore]
with_semaphore = pytest.mark.parametrize("entry", SEMAPHORE, ids=lambda entry: entry.using, indirect=True)

# For rules about leases that end by themselves, about fencing tokens, and about both.
TTL = [entry for entry in MATRIX if import_string(entry.backend).supports_ttl]
with_ttl = pytest.mark.parametrize("entry", TTL, ids=lambda entry: entry.using, indirect=True)
FENCED = [entry for entry in MATRIX if import_string(entry.backend).supports_fencing]
with_fence = pytest.mark.parametrize("entry", FENCED, ids=lambda entry: entry.using, indirect=True)
FENCED_TTL = [entry for entry in TTL if entry in FENCED]
with_fence_and_ttl = pytest.mark.parametrize("entry", FENCED_TTL, ids=lambda entry: entry.using, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The lease table does not know whether it is on MariaDB or on PostgreSQL, its statements do: in a run of usual
    size tasks try it on PostgreSQL, and threads on both."""
    if LONG:
        return
    alike = {item for item in items if item.path.parent == HERE and "[async-leasetable_mariadb" in item.name}
    if alike:
        config.hook.pytest_deselected(items=list(alike))
        items[:] = [item for item in items if item not in alike]


@pytest.fixture(autouse=True)
def unhurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tests of times have servers that must connect and answer within half a second."""
    if request.module.__name__ != "tests.conformance.test_timeouts":
        give_time(monkeypatch.setattr)


@pytest.fixture(autouse=True)
def connected(request: pytest.FixtureRequest, nothing_left: None, unhurried: None) -> None:
    """Each test begins with closed backends. A short timeout must not have to open a connection as well."""
    if "using" not in request.fixturenames or request.node.get_closest_marker("cold"):
        return
    using: str = request.getfixturevalue("using")
    connect(using)
    for rival in {"rival", "second_rival"} & set(request.fixturenames):
        request.getfixturevalue(rival).call("connect", using)


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Face]:
    """Threads, then tasks."""
    face = Face(request.param)
    yield face
    face.close()


@pytest.fixture
def me(face: Face) -> Actor:
    return face.actor()


@pytest.fixture
def other(face: Face) -> Actor:
    """Another context of this process."""
    return face.actor()


@pytest.fixture(scope="session")
def resident_rival(django_db_setup: None) -> Iterator[Rival]:
    with Child(serve) as child:
        rival = Rival(child)
        yield rival
        rival.dismiss()


@pytest.fixture
def rival(entry: Entry, request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Any]:
    """Somebody else: another process, or other threads where a lock is not seen outside the process."""
    rival = request.getfixturevalue("resident_rival") if entry.processes else Neighbour()
    yield rival
    rival.reset()


@pytest.fixture(scope="session")
def second_resident(django_db_setup: None) -> Iterator[Rival]:
    with Child(serve) as child:
        rival = Rival(child)
        yield rival
        rival.dismiss()


@pytest.fixture
def second_rival(entry: Entry, request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Any]:
    """One more process."""
    rival = request.getfixturevalue("second_resident") if entry.processes else Neighbour()
    yield rival
    rival.reset()


@pytest.fixture
def backend(using: str) -> Any:
    """The backend behind the alias."""
    return registry.entry(using).backend


@pytest.fixture
def take_away(entry: Entry) -> Callable[[str], None]:
    """Has an operator take a lock away from its holder."""
    return functools.partial(watching.take_away, entry)
