"""editors() for pages with lists, and helpers for users' tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_distlock.editing import EditConflict, edit_lock, editors
from django_distlock.editing.resources import resource_of
from django_distlock.editing.testing import being_edited, edit_fields, is_being_edited
from django_distlock.leases import upkeep
from testproject.articles.models import Article, Source
from tests.data.app.models import Currency
from tests.editing.people import make_person
from tests.editing.store.desks import Desk, emptied, make_article

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def articles(databases: None) -> Iterator[list[Article]]:
    for alias in emptied("default"):
        yield [make_article(alias) for _ in range(3)]


def labels(objects: Any, **options: Any) -> dict[Any, str]:
    return {pk: editor.label for pk, editor in editors(objects, **options).items()}


def test_editors_of_a_list_page_cost_one_query(articles: list[Article]) -> None:
    Desk("ada").claim(resource_of(articles[0]))
    Desk("bob").claim(resource_of(articles[2]))
    expected = {articles[0].pk: "Ada", articles[2].pk: "Bob"}
    page = Article.objects.order_by("pk")
    assert len(page) == 3
    with CaptureQueriesContext(connections["default"]) as queries:
        found = editors(page)
    assert len(queries) == 1
    assert found[articles[0].pk].idle < 60
    assert labels(page) == labels(articles) == labels(Article.objects.all()) == expected
    assert labels(Article.objects.all()[:1]) == {articles[0].pk: "Ada"}
    assert labels(Article.objects.exclude(pk__in=expected)) == {}
    first, last = (Article.objects.order_by().filter(pk=articles[number].pk) for number in (0, 2))
    assert labels(first.union(last)) == expected
    for given in (articles, page.all()):
        assert labels(given, besides=Desk("ada").owner.principal) == {articles[2].pk: "Bob"}
    euro = Currency.objects.create(code="EUR")
    Desk("ada").claim(resource_of(euro))
    assert labels(Currency.objects.all()) == {"EUR": "Ada"}
    euro.delete()


def test_objects_of_one_key_in_two_databases(articles: list[Article], settings: Any) -> None:
    """Each function speaks of the database of what it was given."""
    mine, theirs = articles[0], Article(pk=articles[0].pk, title="There")
    for alias in emptied("postgres"):
        theirs.save(using=alias)
        here, there = Article.objects.all(), Article.objects.using(alias)
        with edit_lock(theirs, by="Ada"):
            for rows in (there, there.filter(pk=mine.pk), list(there), there[:1]):
                assert labels(rows) == {mine.pk: "Ada"}
            assert labels(here) == labels(Article.objects.using("default")) == {}
            assert (is_being_edited(mine), is_being_edited(theirs)) == (False, True)
            with edit_lock(mine, by="Bo"):
                assert (labels(here), labels(there)) == ({mine.pk: "Bo"}, {mine.pk: "Ada"})
            assert upkeep.break_lease(resource_of(mine)) is None
            with pytest.raises(EditConflict), edit_lock(theirs, by="Bo"):
                pytest.fail("it is held")
        source = Source.objects.create(article=mine, name="a paper")
        with being_edited(Source.objects.using(alias).create(pk=source.pk, article=theirs, name="a radio"), by="Ada"):
            assert labels(theirs.sources.all()) == {source.pk: "Ada"}
            assert labels(mine.sources.all()) == {}
        # as with a replica: whatever was read from, everything is written to one database
        settings.DATABASE_ROUTERS = [SimpleNamespace(db_for_write=lambda model, **hints: "default")]
        with being_edited(theirs, by="Ada"):
            for rows in (there.all(), list(there), here.all()):
                assert labels(rows) == {mine.pk: "Ada"}


class TestHelpersInsideATestCase(TestCase):
    databases = {"default"}  # noqa: RUF012

    def test_them(self) -> None:
        article, user = make_article("default"), make_person("eve")
        self.client.force_login(user)
        path, data = f"/articles/{article.pk}/", {"title": "New", "body": "...", "section": "news"}
        fields = edit_fields(self.client.get(path))
        assert set(fields) == {"distlock_edit", "distlock_edit_lease"}
        for status in (302, 409):
            assert self.client.post(path, {**fields, **data}).status_code == status
        with being_edited(article, by="Ada"):
            assert is_being_edited(article)
            refused = self.client.post(path, data)
            assert refused.status_code == 409
            assert "Ada is editing this now." in refused.content.decode()
            with pytest.raises(AssertionError), being_edited(article):
                pass
        assert not is_being_edited(article)
        with being_edited(article, by=user):
            assert self.client.post(path, data).status_code == 302
