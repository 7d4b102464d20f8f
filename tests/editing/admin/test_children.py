"""A model that is edited on a page of its own and as an inline of its parent; options of one admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_distlock.editing import EditLockAdmin
from django_distlock.editing.grants import read_grant
from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article, Source
from tests.data.app.models import Node
from tests.editing import site as views
from tests.editing.admin.test_change import sent
from tests.editing.people import is_held

if TYPE_CHECKING:
    from tests.editing.people import Person


class Inline(admin.TabularInline):  # type: ignore[type-arg]
    model = Source


class Parents(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    inlines = (Inline,)


class Children(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    edit_lock = {"WHEN": "open", "TTL_WITHOUT_SCRIPT": 120}  # noqa: RUF012
    edit_lock_column = False


class NodeInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Node


class Nodes(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    inlines = (NodeInline,)


urlpatterns = [views.beats, views.admin_site("family", (Article, Parents), (Source, Children), (Node, Nodes))]


@pytest.fixture
def source(site: None, article: Article) -> Source:
    return Source.objects.create(article=article, name="The mayor")


def parent(article: Article) -> str:
    return reverse("family:articles_article_change", args=[article.pk])


def child(source: Source) -> str:
    return reverse("family:articles_source_change", args=[source.pk])


def test_a_child_that_is_edited_keeps_the_parent_from_being_saved(
    ada: Person, bo: Person, article: Article, source: Source
) -> None:
    ada.open(child(source))  # WHEN = "open"
    fields = bo.open(parent(article))
    for verb in ("claim", "adopt"):  # all or nothing
        assert bo.ask(verb, fields["distlock_edit"], lease="b" * 32, previous="a" * 32)["state"] == "busy"
    assert not EditLeaseRow.rows.filter(model="articles.article").exclude(lease="").exists()
    source.name = "The baker"
    assert bo.client.post(parent(article), sent(fields, source)).status_code == 409


@pytest.mark.parametrize("place", ["parent", "child"])
def test_a_parent_is_taken_over_with_its_children(
    ada: Person, bo: Person, boss: Person, article: Article, source: Source, place: str
) -> None:
    if place == "parent":
        ada.claim(ada.open(parent(article))["distlock_edit"])
    else:
        ada.open(child(source))  # WHEN = "open"
    for person, answer in ((bo, "error"), (boss, "held")):
        grant = person.open(parent(article))["distlock_edit"]
        asked = person.ask("claim", grant, lease="c" * 32)
        assert (asked["state"], asked["can_take_over"]) == ("busy", person is boss)
        assert person.ask("takeover", grant, lease="d" * 32)["state"] == answer
    assert list(EditLeaseRow.rows.exclude(lease="").values_list("lease", flat=True)) == ["d" * 32] * 2
    data = {"article": article.pk, "name": "The baker"}
    assert bo.client.post(child(source), {**data, **bo.open(child(source))}).status_code == 409


def test_the_admin_of_a_child_decides_who_takes_it_over(
    ada: Person, boss: Person, article: Article, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Children, "may_take_over", lambda self, request, obj: False)
    ada.open(child(source))
    grant = boss.open(parent(article))["distlock_edit"]
    assert boss.ask("takeover", grant, lease="d" * 32) == {"state": "error", "reason": "permission"}
    assert is_held(source)


def test_children_that_one_may_only_see_stay_free(ada: Person, bo: Person, article: Article, source: Source) -> None:
    bo.user.user_permissions.remove(*Permission.objects.filter(codename__in=["change_source", "delete_source"]))
    fields = bo.open(parent(article))
    bo.claim(fields["distlock_edit"])
    assert is_held(article)
    assert not EditLeaseRow.rows.filter(model="articles.source").exclude(lease="").exists()
    data = {"article": article.pk, "name": "The baker"}
    assert ada.client.post(child(source), {**data, **ada.open(child(source))}).status_code == 302
    sent_by_bo = {"title": "x", "body": "y", "section": "news", **fields}
    sent_by_bo |= {"sources-TOTAL_FORMS": "0", "sources-INITIAL_FORMS": "0"}
    assert bo.client.post(parent(article), sent_by_bo).status_code == 302


def test_a_child_of_itself_is_locked_once(boss: Person, site: None) -> None:
    node = Node.objects.create(name="a")
    try:
        Node.objects.update(parent=node)
        text = boss.open(reverse("family:dataapp_node_change", args=[node.pk]))["distlock_edit"]
        assert len(read_grant(text, None).resources) == 1
    finally:
        node.delete()


def test_deleting_the_parent_looks_at_its_children(ada: Person, bo: Person, article: Article, source: Source) -> None:
    ada.open(child(source))
    address = reverse("family:articles_article_delete", args=[article.pk])
    refused = bo.client.post(address, {"post": "yes", **bo.open(address)})
    assert refused.status_code == 409
    text = refused.content.decode()
    assert "The mayor" in text
    assert "Ada" in text
    assert Article.objects.exists()
    chosen = {"action": "delete_selected", "_selected_action": [article.pk], "post": "yes"}
    assert bo.client.post(reverse("family:articles_article_changelist"), chosen).status_code == 409
    assert Article.objects.exists()


def test_the_mode_off_costs_no_statement(ada: Person, article: Article, source: Source, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"MODE": "off"}
    for page in (parent(article), reverse("family:articles_article_changelist")):
        with CaptureQueriesContext(connection) as queries:
            assert "distlock" not in ada.client.get(page).content.decode()
        assert not [query for query in queries if "editlease" in query["sql"]]
    with CaptureQueriesContext(connection) as queries:
        assert ada.client.post(parent(article), sent({}, source, body="By Ada.")).status_code == 302
    assert not [query for query in queries if "editlease" in query["sql"]]
