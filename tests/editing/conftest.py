"""Two people and an article."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testproject.articles.models import Article
from tests.editing.people import Person, make_person, remove_people

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def crew(databases: None) -> Iterator[dict[str, Person]]:
    """Ada and Bo may edit articles; the boss may take over."""
    from django_distlock.editing.http.permissions import Gate

    Gate.forget()
    remove_people()
    try:
        yield {
            "ada": Person(make_person("ada")),
            "bo": Person(make_person("bo")),
            "boss": Person(make_person("boss", is_superuser=True)),
        }
    finally:
        remove_people()


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
