"""Lists: editors() for pages, list_edits() and break_edit() for operators, and the subcommand."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_distlock.editing import editors, store
from django_distlock.editing.command import Edits
from django_distlock.editing.listing import break_edit, list_edits
from django_distlock.editing.resources import resource_of
from django_distlock.operations.pruning import prune
from testproject.articles.models import Article
from tests.data.app.models import Currency
from tests.editing.store.desks import Desk, emptied, make_article

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def articles(databases: None) -> Iterator[list[Article]]:
    for alias in emptied("default"):
        yield [make_article(alias) for _ in range(3)]


def labels(found: dict[Any, Any]) -> dict[Any, str]:
    return {pk: editor.label for pk, editor in found.items()}


def test_editors_of_a_list_page_cost_one_query(articles: list[Article]) -> None:
    Desk("ada").claim(resource_of(articles[0]))
    Desk("bob").claim(resource_of(articles[2]))
    expected = {articles[0].pk: "Ada", articles[2].pk: "Bob"}
    page = Article.objects.order_by("pk")
    assert len(page) == 3
    with CaptureQueriesContext(connections["default"]) as queries:
        found = editors(page)
    assert labels(found) == expected
    assert len(queries) == 1
    assert found[articles[0].pk].idle < 60
    assert labels(editors(articles)) == expected
    assert labels(editors(Article.objects.all())) == expected
    assert labels(editors(Article.objects.all()[:1])) == {articles[0].pk: "Ada"}
    assert editors(Article.objects.exclude(pk__in=expected)) == {}
    mine = Desk("ada").owner.principal
    for given in (articles, page.all()):
        assert labels(editors(given, besides=mine)) == {articles[2].pk: "Bob"}


def test_keys_that_are_texts(articles: list[Article]) -> None:
    euro = Currency.objects.create(code="EUR")
    Desk("ada").claim(resource_of(euro))
    assert labels(editors(Currency.objects.all())) == {"EUR": "Ada"}
    euro.delete()


def test_operators_list_and_end_them(articles: list[Article]) -> None:
    ada = Desk("ada")
    ada.claim(resource_of(articles[1]))
    found = list_edits("default")
    assert [(row.resource.model, row.resource.pk) for row in found] == [("articles.article", str(articles[1].pk))]
    assert [row.resource for row in list_edits("default", model="articles.Article")] == [row.resource for row in found]
    assert list_edits("default", model="auth.user") == []
    assert break_edit(articles[1], reason="gone home") is not None
    assert break_edit(articles[1]) is None
    assert list_edits("default") == []


def test_old_rows_are_pruned_when_no_form_can_come_back(articles: list[Article], settings: Any) -> None:
    ada, resource = Desk("ada"), resource_of(articles[0])
    ada.claim(resource)
    ada.release(resource)
    assert prune(days=0)["edits"] == 0
    settings.DISTLOCK_EDITING = {"FORM_TTL": 0.000001}
    assert prune(days=30)["edits"] == 1
    assert store.read([resource]) == {}


# the subcommand


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("distlock", "edits", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_the_subcommand_lists_and_ends_one(articles: list[Article]) -> None:
    with pytest.raises(CommandError, match="Say which object"):
        run("--break", "articles.article")
    with pytest.raises(CommandError, match="no database 'nowhere'"):
        run("--database", "nowhere")
    assert json.loads(run("--database", "default")) == []
    Desk("ada").claim(resource_of(articles[0]))
    (found,) = json.loads(run("--database", "default"))
    assert (found["model"], found["pk"], found["edited_by"]) == ("articles.article", str(articles[0].pk), "Ada")
    assert json.loads(run("articles.article", str(articles[1].pk), "--database", "default")) == []
    arguments = ("--break", "articles.article", str(articles[0].pk), "--database", "default")
    with pytest.raises(CommandError, match="add --yes"):
        run(*arguments)
    assert "Ended: articles.article" in run(*arguments, "--yes", "--reason", "gone home")
    with pytest.raises(SystemExit) as ended:
        run(*arguments, "--yes")
    assert ended.value.code == 1


def test_the_table_for_people(articles: list[Article]) -> None:
    assert Edits.table([]) == "Nothing is being edited."
    Desk("ada\x1b[31m").claim(resource_of(articles[0]))
    heading, line = Edits.table(list_edits("default")).splitlines()
    assert heading.split() == ["DATABASE", "MODEL", "PK", "EDITED", "BY", "FOR", "IDLE", "ENDS", "IN"]
    assert "\x1b" not in line
    assert line.startswith("default   articles.article")
