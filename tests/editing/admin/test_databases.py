"""An admin whose objects are in another database than the router says, and models whose keys are no numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.db import models
from django.urls import reverse

from django_distlock.editing import EditLockAdmin
from django_distlock.editing.admin.lists import held_of
from django_distlock.editing.http.forms import FIELD
from testproject.articles.models import Article
from tests.editing import site as views
from tests.editing.people import HIDDEN
from tests.editing.store.conftest import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.editing.people import Person

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


urlpatterns = [views.beats, views.admin_site("elsewhere", (Article, Elsewhere))]
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
