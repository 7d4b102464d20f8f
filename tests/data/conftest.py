"""Each database in turn, and a rival in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests.data.rival import Rival

if TYPE_CHECKING:
    from collections.abc import Iterator

DATABASES = ("default", "postgres", "mariadb")
every_database = pytest.mark.parametrize("alias", DATABASES)


@pytest.fixture(params=DATABASES)
def db_alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    """SQLite, PostgreSQL and MariaDB in turn, each with a fresh session."""
    connections.close_all()
    yield request.param
    connections.close_all()


@pytest.fixture
def alias() -> str:
    """SQLite, unless a test says otherwise: most of what fenced models do is no engine's."""
    return "default"


@pytest.fixture
def fenced(alias: str, databases: None) -> Iterator[None]:
    """The rows of fenced models are gone after each test."""
    from tests.data.app.models import FencedLedger, Register

    yield
    models: tuple[Any, ...] = (FencedLedger, Register)
    for model in models:
        model._default_manager.using(alias).all().delete()


@pytest.fixture
def fresh(databases: None) -> Iterator[None]:
    """Fresh sessions, for tests that change their settings."""
    connections.close_all()
    yield
    connections.close_all()


def started(blocker: Any) -> Iterator[Rival]:
    with blocker.unblock():
        rival = Rival()
    with rival:
        yield rival


@pytest.fixture(scope="module")
def rival_process(django_db_setup: None, django_db_blocker: Any) -> Iterator[Rival]:
    yield from started(django_db_blocker)


@pytest.fixture(scope="module")
def second_process(django_db_setup: None, django_db_blocker: Any) -> Iterator[Rival]:
    yield from started(django_db_blocker)


@pytest.fixture
def rival(rival_process: Rival) -> Iterator[Rival]:
    """Somebody else who wants the same. What a failing test has left it with is given up before rows are cleaned away,
    which would wait for it."""
    yield rival_process
    rival_process.reset()


@pytest.fixture
def second(second_process: Rival) -> Iterator[Rival]:
    """A second rival."""
    yield second_process
    second_process.reset()


@pytest.fixture
def no_accounts(databases: None) -> Iterator[None]:
    """Whatever accounts the test has made are gone after it."""
    from tests.data.app.models import Account

    yield
    for using in DATABASES:
        Account.objects.using(using).all().delete()
