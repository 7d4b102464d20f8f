"""Articles and their edit locks on each database, at each level of isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections

from testproject.articles.models import Article
from tests.support.places import ALIASES, EVERYWHERE, Place, isolate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=list(ALIASES))
def alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    """Each database in turn, without articles and locks."""
    yield from emptied(request.param)


@pytest.fixture(params=EVERYWHERE, ids=str)
def place(request: pytest.FixtureRequest, databases: None) -> Iterator[Place]:
    """Each database and level of isolation in turn."""
    found: Place = request.param
    isolate(found)
    for _ in emptied(found.alias):
        yield found
    connections[found.alias].close()


def emptied(alias: str) -> Iterator[str]:
    _forget(alias)
    yield alias
    _forget(alias)


def _forget(alias: str) -> None:
    Article.objects.using(alias).all().delete()
    with connections[alias].cursor() as cursor:
        cursor.execute("DELETE FROM django_distlock_editlease")
