"""A site with the middleware, on each of the databases in turn."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test import Client
from django.urls import clear_url_caches

from tests.idempotency.views import Stage, stage
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_distlock.idempotency.IdempotencyMiddleware",
]
LOCKS = {"default": "default", "postgres": "postgres", "mariadb": "mysql"}  # database alias -> lock alias


@pytest.fixture(scope="session")
def tables(django_db_setup: None, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        rows.create()


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


@pytest.fixture(params=["default"])
def alias(request: pytest.FixtureRequest) -> str:
    """SQLite, unless a test says otherwise (``every_database``)."""
    return request.param  # type: ignore[no-any-return]


every_database = pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])


def forget_everything(alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("DELETE FROM django_distlock_idempotency")
        cursor.execute("DELETE FROM distlock_written")


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


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch, alias: str) -> None:
    monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)


class Sender:
    """A client with a credential, so that its header keys count."""

    def __init__(self, key: str | None = None, *, who: str = "a", **defaults: Any) -> None:
        self.key = key
        self.client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {who}"}, **defaults)

    def post(self, shape: str = "plain", data: Any = None, *, key: str | None = None, **more: Any) -> Any:
        """JSON to /<shape>/ with the key in the header."""
        sent = self.key if key is None else key
        headers = {**more.pop("headers", {}), **({} if sent is None else {"Idempotency-Key": sent})}
        body = {"name": "x"} if data is None else data
        return self.client.post(f"/{shape}/", body, content_type="application/json", headers=headers, **more)


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


def states(alias: str) -> list[str]:
    """The states of all keys."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT state FROM django_distlock_idempotency")
        return [state for (state,) in cursor.fetchall()]


def expire(alias: str, seconds: float = 0) -> None:
    """All claims have run out."""
    with connections[alias].cursor() as cursor:
        cursor.execute("UPDATE django_distlock_idempotency SET expires_at = 1")


@pytest.fixture(autouse=True)
def nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that happens to be due would be a thread, and statements, of another test; see test_sweeping.py."""
    from django_distlock.idempotency.upkeep import sweeper

    monkeypatch.setattr(sweeper, "_due", dict.fromkeys(LOCKS, math.inf))
