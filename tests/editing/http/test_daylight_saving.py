"""Edit locks on a server whose time zone has daylight saving: one hour of the year occurs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock.editing import store
from tests.support.zones import autumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testproject.articles.models import Article
    from tests.editing.people import Person
    from tests.support.zones import Autumn


@pytest.fixture
def clocks(crew: dict[str, Person], settings: Any) -> Iterator[Autumn]:
    settings.DISTLOCK_EDITING = {"DATABASE": "mariadb", "TTL": 60}
    with autumn("mariadb") as found:
        yield found
        with connections["mariadb"].cursor() as cursor:
            cursor.execute("DELETE FROM django_distlock_editlease")


def grant(person: Person, article: Article) -> str:
    return person.open(f"/articles/{article.pk}/")["distlock_edit"]


def test_a_lock_does_not_end_with_the_hour_that_occurs_twice(
    ada: Person, bo: Person, article: Article, clocks: Autumn
) -> None:
    clocks.after()
    ada.claim(grant(ada, article))
    clocks.over()
    found = bo.ask("claim", grant(bo, article), lease="b" * 32)
    assert (found["state"], found["holder"]["label"]) == ("busy", "Ada")


def test_a_lock_is_not_kept_for_an_hour(ada: Person, article: Article, clocks: Autumn) -> None:
    clocks.before()
    ada.claim(grant(ada, article))
    clocks.after()
    (lease,) = store.held("mariadb")
    assert lease.expires_in <= 60
