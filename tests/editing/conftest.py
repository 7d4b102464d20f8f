"""Two people and an article."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.urls import clear_url_caches

from testproject.articles.models import Article
from tests.editing.people import Person, make_person, remove_people

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def crew(databases: None) -> Iterator[dict[str, Person]]:
    """Ada and Bo may edit articles; the boss may take over."""
    from django_distlock.editing.http.permissions import Gate

    Gate.forget()
    of_the_scene = list(Article.objects.all())
    remove_people()
    try:
        yield {
            "ada": Person(make_person("ada")),
            "bo": Person(make_person("bo")),
            "boss": Person(make_person("boss", is_superuser=True)),
        }
    finally:
        remove_people()
        Article.objects.bulk_create(of_the_scene)


@pytest.fixture
def ada(crew: dict[str, Person]) -> Person:
    return crew["ada"]


@pytest.fixture
def bo(crew: dict[str, Person]) -> Person:
    return crew["bo"]


@pytest.fixture
def boss(crew: dict[str, Person]) -> Person:
    return crew["boss"]


@pytest.fixture
def article(crew: dict[str, Person]) -> Article:
    return Article.objects.create(title="A bridge opens", body="On Saturday.")


@pytest.fixture
def site(crew: dict[str, Person], request: pytest.FixtureRequest, settings: Any) -> None:
    """The addresses of the test's module; without any those of :mod:`tests.editing.site`."""
    own = hasattr(request.module, "urlpatterns")
    settings.ROOT_URLCONF = request.module.__name__ if own else "tests.editing.site"
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [Path(__file__).parent / "templates"]}]
    clear_url_caches()


@pytest.fixture(params=[False, True], ids=["", "atomic"])
def atomic_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With and without ATOMIC_REQUESTS."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
    return bool(request.param)
