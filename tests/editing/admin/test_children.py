"""A model that is edited on a page of its own and as an inline of its parent; options of one admin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.db import connection, models
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_distlock.editing import EditLockAdmin
from django_distlock.editing.admin.lists import held_of
from django_distlock.editing.grants import read_grant
from django_distlock.editing.http.forms import FIELD
from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article, Source
from tests.data.app.models import Node
from tests.editing import site as views
from tests.editing.admin.test_change import sent
from tests.editing.people import HIDDEN, is_held
from tests.editing.store.conftest import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    listed = bo.client.get(reverse("family:articles_source_changelist"))
    assert "being_edited" not in listed.content.decode()  # edit_lock_column


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


# objects in another database than the router says

OTHER = "postgres"


class Elsewhere(EditLockAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    """As in Django's docs on several databases."""

    list_display = ("title", "section")
    list_editable = ("section",)
    actions = ("publish",)

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using(OTHER)

    def save_model(self, request: Any, obj: Any, form: Any, change: bool) -> None:
        obj.save(using=OTHER)

    @admin.action
    def publish(self, request: Any, queryset: Any) -> None:
        queryset.update(published=True)


urlpatterns.append(views.admin_site("elsewhere", (Article, Elsewhere)))
LIST = "elsewhere:articles_article_changelist"


@pytest.fixture
def theirs(site: None) -> Iterator[Article]:
    for alias in emptied(OTHER):
        yield Article.objects.using(alias).create(title="A bridge opens", body="On Saturday.")


def test_an_editable_list(ada: Person, theirs: Article) -> None:
    Article.objects.create(pk=theirs.pk, title="Another one", body="By the router.")
    page = ada.client.get(reverse(LIST)).content.decode()
    sent = {
        "form-TOTAL_FORMS": 1,
        "form-INITIAL_FORMS": 1,
        "form-0-id": theirs.pk,
        "form-0-section": "sport",
        FIELD: [value for name, value in HIDDEN.findall(page) if name == FIELD],
        "_save": "Save",
    }
    assert ada.client.post(reverse(LIST), sent).status_code == 302
    theirs.refresh_from_db()
    assert theirs.section == "sport"
    assert Article.objects.get().section == "news"
    Article.objects.using(OTHER).update(section="culture")
    assert ada.client.post(reverse(LIST), sent).status_code == 409


def test_actions_and_the_filter(ada: Person, bo: Person, theirs: Article) -> None:
    change = reverse("elsewhere:articles_article_change", args=[theirs.pk])
    ada.claim(ada.open(change)[FIELD])
    for action in ("publish", "delete_selected"):
        chosen = {"action": action, "_selected_action": [theirs.pk], "post": "yes"}
        assert bo.client.post(reverse(LIST), chosen).status_code == 409
    theirs.refresh_from_db()
    assert not theirs.published
    listed = bo.client.get(reverse(LIST), {"being_edited": "others"}).context["cl"].result_list
    assert list(listed) == [theirs]
    fields = bo.open(reverse("elsewhere:articles_article_change", args=[theirs.pk]))
    assert bo.client.post(change, {"title": "x", "body": "y", "section": "news", **fields}).status_code == 409


def test_keys_that_are_no_numbers(databases: None) -> None:
    for key in (models.UUIDField, models.DateField):
        meta = type("Meta", (), {"app_label": "dataapp", "managed": False})
        name = f"With{key.__name__}"
        model = type(name, (models.Model,), {"key": key(primary_key=True), "Meta": meta, "__module__": __name__})
        assert held_of(model, "default") == {}
