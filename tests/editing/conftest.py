"""Two people and an article, on the pages of :mod:`tests.editing.site`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.urls import clear_url_caches

from django_distlock.models import IdempotencyRecord
from testproject.articles.models import Article, Source
from tests.editing.people import Person, make_person, remove_people

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def crew(databases: None, settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = "tests.editing.site"
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [Path(__file__).parent / "templates"]}]
    clear_url_caches()
    of_the_scene = list(Article.objects.all())
    remove_people()
    try:
        yield
    finally:
        remove_people()
        IdempotencyRecord.rows.all().delete()  # tests of idempotency count all of them
        Article.objects.bulk_create(of_the_scene)


@pytest.fixture
def ada(crew: None) -> Person:
    return Person(make_person("ada"))


@pytest.fixture
def bo(crew: None) -> Person:
    return Person(make_person("bo"))


@pytest.fixture
def boss(crew: None) -> Person:
    """May take over."""
    return Person(make_person("boss", is_superuser=True))


@pytest.fixture
def article(crew: None) -> Article:
    return Article.objects.create(title="A bridge opens", body="On Saturday.")


@pytest.fixture
def sources(article: Article) -> list[Source]:
    return [Source.objects.create(article=article, name=name) for name in ("one", "three", "two")]


@pytest.fixture(params=[False, True], ids=["", "atomic"])
def atomic_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without ATOMIC_REQUESTS."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
