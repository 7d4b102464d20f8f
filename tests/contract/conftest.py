"""The contract, run for every backend of the matrix: in threads, and in tasks where an engine has code of its own for
them. What an engine has no part in is proven once, on memory, in tests/unit/shared."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.module_loading import import_string

from django_distlock.manager.registry import registry
from tests.conftest import connect
from tests.contract import watching
from tests.contract.actors import Actor, Face
from tests.contract.rivals import Rival, neighbour, serve
from tests.matrix import MATRIX, Entry
from tests.support.processes import Child
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def those(wanted: Callable[[Entry], object]) -> pytest.MarkDecorator:
    """For rules of some backends only."""
    some = [entry for entry in MATRIX if wanted(entry)]
    return pytest.mark.parametrize("entry", some, ids=lambda entry: entry.using, indirect=True)


def flagged(*flags: str) -> pytest.MarkDecorator:
    """The backends that declare all of these."""
    return those(lambda entry: all(getattr(import_string(entry.backend), flag) for flag in flags))


across_processes = those(lambda entry: entry.processes)
with_ttl = flagged("supports_ttl")
with_fence = flagged("supports_fencing")
sharing = flagged("supports_shared")

# Where an engine's code differs between the two.
both_faces = pytest.mark.parametrize("face", ["sync", "async"], indirect=True)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tests of times have servers that must connect and answer within a second."""
    give_time(monkeypatch.setattr)


@pytest.fixture(autouse=True)
def connected(request: pytest.FixtureRequest, nothing_left: None, unhurried: None) -> None:
    """Each test begins with closed backends. A short timeout must not have to open a connection as well."""
    if "using" not in request.fixturenames or request.node.get_closest_marker("cold"):
        return
    request.getfixturevalue("databases")
    using: str = request.getfixturevalue("using")
    connect(using)
    for rival in {"rival", "second_rival"} & set(request.fixturenames):
        request.getfixturevalue(rival).call("connect", using)


@pytest.fixture
def face(request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Face]:
    """Threads, or what :data:`both_faces` says."""
    face = Face(getattr(request, "param", "sync"))
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
def residents(django_db_setup: None) -> Iterator[list[Rival]]:
    """Two processes, for as long as tests run."""
    with Child(serve) as first, Child(serve) as second:
        rivals = [Rival(child) for child in (first, second)]
        yield rivals
        for rival in rivals:
            rival.dismiss()


def somebody_else(entry: Entry, request: pytest.FixtureRequest, number: int) -> Iterator[Rival]:
    rival = request.getfixturevalue("residents")[number] if entry.processes else neighbour()
    yield rival
    rival.reset()
    if not entry.processes:
        rival.dismiss()


@pytest.fixture
def rival(entry: Entry, request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Rival]:
    """Somebody else: another process, or other threads where a lock is not seen outside the process."""
    yield from somebody_else(entry, request, 0)


@pytest.fixture
def second_rival(entry: Entry, request: pytest.FixtureRequest, nothing_left: None) -> Iterator[Rival]:
    """One more process."""
    yield from somebody_else(entry, request, 1)


@pytest.fixture
def backend(using: str) -> Any:
    """The backend behind the alias."""
    return registry.entry(using).backend


@pytest.fixture
def take_away(entry: Entry) -> Callable[[str], None]:
    """Has an operator take a lock away from its holder."""
    return functools.partial(watching.take_away, entry.using)
