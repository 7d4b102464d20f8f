"""A site with the middleware, on SQLite unless a test names another database: only the storage has SQL of its own."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests.idempotency import MIDDLEWARE
from tests.idempotency.world import DATABASES, Browser, Sender, Stage, forget_everything, redirect, serve, stage
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def tables(django_db_setup: None, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        rows.create()


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


@pytest.fixture(params=["default"])
def alias(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def site(
    databases: None, tables: None, alias: str, key: str, settings: Any, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    """The views of the test module, or of tests.idempotency.views, with keys and rows in ``alias``."""
    settings.MIDDLEWARE = MIDDLEWARE
    # Sender's credential stands for a client that something above the view has checked
    here = {"DATABASE": alias, "FORM_WAIT": 0, "REPLAY_TO_CREDENTIALS": True}
    settings.DISTLOCK_IDEMPOTENCY = here
    serve(settings, request.module.__name__ if hasattr(request.module, "urlpatterns") else "tests.idempotency.views")
    stage.reset(alias, f"effect-{key}")
    yield stage
    for each in {alias, "default"}:
        forget_everything(each)


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch, alias: str) -> None:
    monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", True)


@pytest.fixture
def sender(site: Stage, key: str) -> Sender:
    return Sender(key)


@pytest.fixture
def user(site: Stage, key: str) -> Iterator[Sender]:
    """A sender that is logged in: an authenticated principal."""
    from django.contrib.auth.models import User

    somebody = User.objects.create(username=f"user-{key[:8]}")
    sender = Sender(key)
    sender.client.force_login(somebody)
    yield sender
    somebody.delete()


@pytest.fixture
def browser(site: Stage) -> Browser:
    """Its forms are saved, and lead to another page."""
    site.answer = redirect
    return Browser()


@pytest.fixture(autouse=True)
def nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that happens to be due would be a thread, and statements, of another test; see test_operation.py."""
    from django_distlock.idempotency.upkeep import sweeper

    monkeypatch.setattr(sweeper, "_due", dict.fromkeys(DATABASES, math.inf))
