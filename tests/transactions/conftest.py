"""Rows to write, and a rival who wants the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock.backends.postgres import transaction
from tests.conftest import PATIENCE
from tests.contract.rivals import Rival, neighbour, serve
from tests.support.processes import Child
from tests.support.unhurried import give_time
from tests.transactions import rows
from tests.transactions.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    MakeWorld = Callable[..., World]

# To a transaction there are three kinds of locks: a lease, one of its own, and one on another session.
KINDS = {"lease": ("leasetable", "default"), "own": ("postgres", "postgres"), "session": ("mysql", "mariadb")}
WORLDS = {
    **KINDS,
    "own_elsewhere": ("postgres", "default"),
    "thread": ("leasetable_postgres", "postgres", "thread"),
}


@pytest.fixture(autouse=True)
def unhurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers may take their time, also behind the deadline of a wait on the caller's own connection. Except in tests
    of just that."""
    if request.node.get_closest_marker("alone") is not None or "proxy" in request.fixturenames:
        return
    give_time(monkeypatch.setattr)
    monkeypatch.setattr(transaction, "SILENCE", PATIENCE)


@pytest.fixture(scope="session")
def tables(django_db_setup: None, django_db_blocker: Any) -> None:
    """The tables of rows.py on every database."""
    with django_db_blocker.unblock():
        rows.create()
        rows.clean()
        connections.close_all()


@pytest.fixture(scope="session")
def process_rival(tables: None) -> Iterator[Rival]:
    with Child(serve) as child:
        rival = Rival(child)
        yield rival
        rival.dismiss()


@pytest.fixture
def make_world(process_rival: Rival, name: str, databases: None) -> Iterator[MakeWorld]:
    """``make_world(using, alias)``: with a process for a rival, or a thread."""
    made: list[World] = []

    def make(using: str, alias: str, kind: str = "process") -> World:
        made.append(World(using, alias, name, process_rival if kind == "process" else neighbour()))
        return made[-1]

    yield make
    for world in made:
        world.leave()
        if world.rival is not process_rival:
            world.rival.dismiss()


@pytest.fixture(params=KINDS)
def each_world(request: pytest.FixtureRequest, make_world: MakeWorld) -> World:
    """One lock of each kind, in the transaction of one database."""
    return make_world(*KINDS[request.param])


@pytest.fixture(params=["own", "lease"])
def world(request: pytest.FixtureRequest, make_world: MakeWorld) -> World:
    """A lock that belongs to the transaction, and one that does not: for what does not depend on the engine."""
    return make_world(*KINDS[request.param])


@pytest.fixture
def lease_world(make_world: MakeWorld) -> World:
    """For what is the same on every engine."""
    return make_world(*KINDS["lease"])


@pytest.fixture
def postgres(make_world: MakeWorld) -> World:
    """A lock that belongs to the transaction of PostgreSQL."""
    return make_world(*KINDS["own"])


@pytest.fixture
def busy(postgres: World) -> Iterator[str]:
    """The name of a lock on PostgreSQL that the rival holds."""
    with postgres.busy("-busy"):
        yield postgres.name + "-busy"
