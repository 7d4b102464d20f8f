"""Each database in turn, and a rival in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests.data.rival import Rival

if TYPE_CHECKING:
    from collections.abc import Iterator

DATABASES = ("default", "postgres", "mariadb")


@pytest.fixture(params=DATABASES)
def db_alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    """SQLite, PostgreSQL and MariaDB in turn, each with a fresh session."""
    connections.close_all()
    yield request.param
    connections.close_all()


@pytest.fixture(params=DATABASES)
def alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    """Each database in turn, with the rows of fenced models gone after each test."""
    from tests.data.app.models import FencedLedger, Node, Place, Register

    yield request.param
    models: tuple[Any, ...] = (FencedLedger, Register, Node, Place)
    for model in models:
        model._default_manager.using(request.param).all().delete()


@pytest.fixture
def fresh(databases: None) -> Iterator[None]:
    """Fresh sessions, for tests that change their settings."""
    connections.close_all()
    yield
    connections.close_all()


@pytest.fixture(scope="module")
def rival_process(django_db_setup: None, django_db_blocker: Any) -> Iterator[Rival]:
    with django_db_blocker.unblock():
        rival = Rival()
    yield rival
    rival.stop()


@pytest.fixture
def rival(rival_process: Rival) -> Iterator[Rival]:
    """Somebody else who wants the same tables. What a failing test has left it with is given up before rows are cleaned
    away, which would wait for it."""
    yield rival_process
    rival_process.reset()


@pytest.fixture
def no_accounts(databases: None) -> Iterator[None]:
    """Whatever accounts the test has made are gone after it."""
    from tests.data.app.models import Account

    yield
    for using in DATABASES:
        Account.objects.using(using).all().delete()
