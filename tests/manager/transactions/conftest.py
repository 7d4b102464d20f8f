"""Rows to write, and a rival who wants the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock.backends.postgres import statements
from tests.manager.transactions import rows
from tests.manager.transactions.rival import ProcessRival, Rival, ThreadRival
from tests.manager.transactions.world import World
from tests.matrix import MATRIX, Entry
from tests.support.sizes import LONG
from tests.support.unhurried import give_time

if TYPE_CHECKING:
    from collections.abc import Iterator

# To a transaction all locks that are in no database are the same, and so are lease tables on a server: in a run of
# usual size Redis and the one on PostgreSQL stand for these.
ALIKE = () if LONG else ("redlock", "zookeeper", "leasetable_mariadb")
WORLDS = tuple(entry for entry in MATRIX if entry.using not in ALIKE)
# Backends whose locks other processes see; memory has a thread for a rival.
SEEN = tuple(entry for entry in WORLDS if entry.processes)
MEMORY = next(entry for entry in MATRIX if not entry.processes)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    give_time(monkeypatch.setattr)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is silent behind the deadline for want of a processor does not cost the transaction: for tests of
    something else than that."""
    monkeypatch.setattr(statements, "SILENT", 2.0)


@pytest.fixture(scope="session")
def tables(django_db_setup: None, django_db_blocker: Any) -> None:
    """The tables of rows.py on every database."""
    with django_db_blocker.unblock():
        rows.create()
        rows.clean()
        connections.close_all()


@pytest.fixture(scope="session")
def process_rival(tables: None) -> Iterator[ProcessRival]:
    rival = ProcessRival()
    yield rival
    rival.stop()


@pytest.fixture
def thread_rival(tables: None, databases: None) -> Iterator[ThreadRival]:
    rival = ThreadRival()
    yield rival
    rival.stop()


@pytest.fixture(params=SEEN, ids=lambda entry: entry.using)
def entry(request: pytest.FixtureRequest, databases: None) -> Entry:
    """Each backend whose locks are seen by other processes."""
    return request.param  # type: ignore[no-any-return]


def worlds(request: pytest.FixtureRequest, entry: Entry, kind: str) -> Iterator[World]:
    rival: Rival = request.getfixturevalue(f"{kind}_rival")
    world = World(entry.using, entry.database or "default", request.getfixturevalue("name"), rival)
    yield world
    world.leave()


@pytest.fixture(
    params=[(entry, kind) for entry in WORLDS for kind in ("process", "thread") if entry.processes or kind == "thread"],
    ids=lambda param: f"{param[0].using}-{param[1]}",
)
def world(request: pytest.FixtureRequest, databases: None, tables: None) -> Iterator[World]:
    """One lock, one database, and for a rival another process, then another thread: on each backend."""
    yield from worlds(request, *request.param)


@pytest.fixture(params=SEEN, ids=lambda entry: entry.using)
def one_world(request: pytest.FixtureRequest, databases: None, tables: None) -> Iterator[World]:
    """One lock, one database, and another process: on each backend whose locks processes see."""
    yield from worlds(request, request.param, "process")


@pytest.fixture
def make_world(process_rival: ProcessRival, name: str, databases: None, tables: None) -> Iterator[Any]:
    """make_world(using, alias): a World with a process for a rival."""
    made: list[World] = []

    def make(using: str, alias: str, suffix: str = "") -> World:
        made.append(World(using, alias, name + suffix, process_rival))
        return made[-1]

    yield make
    for world in made:
        world.leave()


@pytest.fixture
def postgres(make_world: Any) -> World:
    """A lock that belongs to the transaction of PostgreSQL."""
    return make_world("postgres", "postgres")  # type: ignore[no-any-return]


@pytest.fixture
def busy(postgres: World) -> Iterator[str]:
    """The name of a lock on PostgreSQL that the rival holds."""
    name = postgres.name + "-busy"
    postgres.rival.say(["wait", "postgres", name, "postgres"])
    assert postgres.rival.hear() == "waiting"
    postgres.rival.hear()
    yield name
    postgres.rival.say(["release"])
    assert postgres.rival.hear() == "released"
