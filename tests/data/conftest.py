"""Fresh sessions and empty tables for each test, and rivals in other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.db.backends.signals import connection_created

from tests.data.rival import Rival
from tests.data.world import DATABASES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def fresh(databases: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Sessions as they begin, and no row of ours is left."""
    from tests.data.app import models

    connections.close_all()
    used: set[str] = set()

    def note(connection: Any, **_: Any) -> None:
        used.add(connection.alias)

    connection_created.connect(note)
    yield
    connection_created.disconnect(note)
    made: tuple[Any, ...] = (models.Entry, models.Wallet, models.Node, models.Restaurant, models.Place, models.Student)
    made += (models.Course, models.Currency, models.Ledger, models.FencedLedger, models.Register, models.Account)
    for using in DATABASES:  # also where the connection was lost
        if using in used or "rival" in request.fixturenames:
            for model in made:
                model._base_manager.using(using).all().delete()
    connections.close_all()


@pytest.fixture
def using() -> str:
    """SQLite, unless a test says otherwise: most of what fenced models do is no engine's."""
    return "default"


def process(django_db_setup: None, django_db_blocker: Any) -> Iterator[Rival]:
    with django_db_blocker.unblock():
        started = Rival()
    with started:
        yield started


rival_process = pytest.fixture(process, scope="module", name="rival_process")
second_process = pytest.fixture(process, scope="module", name="second_process")


@pytest.fixture
def rival(fresh: None, rival_process: Rival) -> Iterator[Rival]:
    """Somebody else who wants the same; what it still has would keep the rows from being cleaned away."""
    yield rival_process
    rival_process.reset()


@pytest.fixture
def second(fresh: None, second_process: Rival) -> Iterator[Rival]:
    yield second_process
    second_process.reset()
