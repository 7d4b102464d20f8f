"""A site with the middleware, on each of the databases in turn."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.urls import clear_url_caches

from tests.idempotency.actors import Sender
from tests.idempotency.views import Stage, redirect, stage
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.actors import Browser

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_distlock.idempotency.IdempotencyMiddleware",
]
LOCKS = {"default": "default", "postgres": "postgres", "mariadb": "mysql"}  # database alias -> lock alias
every_database = pytest.mark.parametrize("alias", list(LOCKS))
on_servers = pytest.mark.parametrize("alias", ["postgres", "mariadb"])


@pytest.fixture(scope="session")
def tables(django_db_setup: None, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        rows.create()


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


@pytest.fixture(params=["default"])
def alias(request: pytest.FixtureRequest) -> str:
    """SQLite, unless a test says otherwise: only the storage has SQL of its own, and test_storages.py tries that."""
    return request.param  # type: ignore[no-any-return]


def sql(alias: str, statement: str, *parameters: Any) -> list[Any]:
    """What the statement finds; {keys} is the table of the keys."""
    with connections[alias].cursor() as cursor:
        cursor.execute(statement.format(keys="django_distlock_idempotency"), parameters)
        return list(cursor.fetchall()) if cursor.description else []


def forget_everything(alias: str) -> None:
    sql(alias, "DELETE FROM {keys}")
    sql(alias, "DELETE FROM distlock_written")


@pytest.fixture
def site(databases: None, tables: None, alias: str, key: str, settings: Any) -> Iterator[Stage]:
    """The views of tests.idempotency.views behind the middleware, with their keys and rows in ``alias``."""
    settings.MIDDLEWARE = MIDDLEWARE
    settings.ROOT_URLCONF = "tests.idempotency.views"
    # Sender's credential stands for a client that something above the view has checked
    here = {"DATABASE": alias, "LOCK": LOCKS[alias], "FORM_WAIT": 0, "REPLAY_TO_CREDENTIALS": True}
    settings.DISTLOCK_IDEMPOTENCY = here
    clear_url_caches()
    stage.reset(alias, f"effect-{key}")
    yield stage
    for each in {alias, "default"}:
        forget_everything(each)


def change(settings: Any, **values: Any) -> None:
    """Change settings of the keys."""
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, **values}


def serve(settings: Any, urls: str) -> None:
    """The site has the views of this module."""
    settings.ROOT_URLCONF = urls
    clear_url_caches()


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch, alias: str) -> None:
    monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)


@pytest.fixture
def sender(site: Stage, key: str) -> Sender:
    return Sender(key)


@pytest.fixture
def user(site: Stage, key: str) -> Iterator[Sender]:
    """A sender that is logged in: an authenticated principal."""
    from django.contrib.auth.models import User  # real servers take settings from this file

    somebody = User.objects.create(username=f"user-{key[:8]}")
    sender = Sender(key)
    sender.client.force_login(somebody)
    yield sender
    somebody.delete()


@pytest.fixture
def browser(site: Stage) -> Browser:
    """Its forms are saved, and lead to another page."""
    from tests.idempotency.actors import Browser

    site.answer = redirect
    return Browser()


def states(alias: str) -> list[str]:
    """The states of all keys."""
    return [state for (state,) in sql(alias, "SELECT state FROM {keys}")]


def expire(alias: str) -> None:
    """All claims have run out, and the lifetime of all answers is over."""
    sql(alias, "UPDATE {keys} SET expires_at = 1")


@pytest.fixture(autouse=True)
def nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that happens to be due would be a thread, and statements, of another test; see test_upkeep.py."""
    from django_distlock.idempotency.upkeep import sweeper

    monkeypatch.setattr(sweeper, "_due", dict.fromkeys(LOCKS, math.inf))
